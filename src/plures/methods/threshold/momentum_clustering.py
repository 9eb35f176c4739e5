"""Momentum-Clustering: the server clusters the clients' momenta; d numbers each way instead of N times as many.

    client   m_i  <-  alpha g_i + (1 - alpha) m_i          g_i: its gradient at the model it was sent
    server   v_k  <-  Threshold-Clustering of m_1 .. m_N, from last round's v_k
             k(i)  =  the nearest center of m_i
             x_k  <-  x_k - lr v_k

Momentum lowers the variance of what is clustered to alpha / (2 - alpha) of that of a gradient, and lags by about
1 / alpha rounds. Momenta are taken at different models, so what is apart may look alike: near their own optima all
are about 0. The server therefore keeps one model per cluster, and every ``audit`` rounds asks everybody for the gradient
at each of these models, one an exchange (and in every round until everybody was there once); whoever lies nearer to the
cluster of another model moves there.

First centers are drawn by k-means++ among the momenta of the first round, all at one model; of ``num_starts`` draws
the best is taken. Distances are capped at their median there, so that an attacker far away is no better a center than
anybody else.

With ``num_clusters=0`` every client is its own center and has a model of its own.

Werner, He, Jordan, Jaggi, Karimireddy: Provably Personalized and Robust Federated Learning, arXiv 2306.08393. The
capped draw, the audit and the choice of newcomers are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import Aggregator, check_weighting, client_weights
from plures.aggregate.points import cleaned, combine, distances_to, rows_by_uid, usable
from plures.aggregate.variances import keep_variances_positive
from plures.errors import BadValue, require, require_choice, require_least
from plures.method import Forecast, Method, Report, Traits, Views
from plures.methods.threshold.gradients import (
    GradientUpload,
    KeptPoints,
    OfferedModels,
    ThresholdOptions,
    as_bits,
    as_float,
    center_aggregator,
    cluster_offered,
    clusters_of,
    gap_warnings,
    gradient_at,
    largest_clusters,
    noise_at,
    radius_warnings,
    robust_centers,
    serve_offered,
    surroundings,
)
from plures.methods.threshold.momentum_table import (
    MomentumTable,
    draw_centers,
    end_round,
    nearest_center,
    new_momentum_table,
    radius_of_present,
    scale_rows,
    spread_around,
)
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Weights
from plures.wording import bytes_in_words

REASSIGN = ("always", "audit")


@method(
    title="Momentum-Clustering",
    paper="arXiv:2306.08393",
    degree="num_clusters",
    limits=[
        Limit(
            "one center, a ball for all, no memory: plain FedAvg",
            {"num_clusters": 1, "radius": "fixed", "alpha": 1.0},
            "fedavg",
            {"weighting": "uniform"},
        )
    ],
)
def momentum_clustering(
    model: Model,
    *,
    num_clusters: int = 2,
    plan: Plan = Plan(),
    clustering: ThresholdOptions = ThresholdOptions(),
    alpha: float = 0.1,
    weighting: str = "uniform",
    aggregate: str = "center",
    audit: int = 10,
    reassign: str = "audit",
    num_starts: int = 64,
    num_offered: int = 8,
) -> Method:
    """One of ``num_clusters`` models for every client, moved by the center of the momenta around it.

    Args:
        num_clusters: Number of models; 1 is one model for all, 0 one for every client.
        plan: How clients train locally; a client's gradient at a model is what the plan moves it by, over ``lr``.
        clustering: Whose momenta a center keeps.
        alpha: Share of a new gradient in a client's momentum, in (0, 1]; 1 is no memory, less is less noise and more
            delay, about 1 / alpha rounds.
        weighting: "uniform" counts all clients alike, "examples" by their training rows.
        aggregate: "center", or an aggregator of the kept momenta instead, such as "median" (options set off by
            semicolons).
        audit: Every so many rounds everybody sends its gradient at every model, and moves to the nearest cluster; 0 is
            never.
        reassign: Whether clients change clusters in audits alone ("audit") or in every round ("always").
        num_starts: Draws of first centers, of which the best is taken.
        num_offered: With ``num_clusters=0``, how many models, of the largest clusters, newcomers choose from.
    """
    require(num_clusters >= 0, "num_clusters", num_clusters, "0 (everybody for itself) or more")
    require(0 < alpha <= 1, "alpha", alpha, "a number in (0, 1]")
    require(audit >= 0, "audit", audit, "0 (never) or a number of rounds")
    require_choice("reassign", reassign, REASSIGN)
    require_least(1, num_starts=num_starts)
    check_weighting(weighting)
    settings = MomentumClustering(
        model=model,
        plan=plan,
        num_clusters=num_clusters,
        clustering=clustering,
        alpha=alpha,
        weighting=weighting,
        average=center_aggregator(aggregate),
        audit=audit if num_clusters > 1 else 0,
        reassign=reassign,
        num_starts=num_starts,
        num_offered=num_offered,
    )
    return Method(
        model=model,
        start=partial(start, settings),
        send=partial(send, settings),
        offer=partial(offer, settings),
        join=join,
        train=partial(train, settings),
        merge=partial(merge, settings),
        serve=lambda key, offer, private, data: serve_offered(model, offer, data),
        predict=model.apply,
        plan=plan,
        views=Views(
            assign=lambda offer, private, data: {"cluster": cluster_offered(model, offer, data)},
            report=lambda server: Report(
                gap_warnings(server.noise * alpha / (2 - alpha), server.gap, server.spread)
            ),
            forecast=partial(forecast, settings),
        ),
        traits=Traits(
            exchanges=partial(num_exchanges, settings) if settings.audit else 1, num_clusters=num_clusters
        ),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class MomentumClustering:
    """The options of Momentum-Clustering, checked."""

    model: Model
    plan: Plan
    num_clusters: int  # 0: everybody is its own center
    clustering: ThresholdOptions
    alpha: float
    weighting: str
    average: Aggregator | None  # of the kept momenta; None for their center
    audit: int  # rounds; 0 for never, also where there is nothing to choose from
    reassign: str
    num_starts: int
    num_offered: int


class MomentumRequest(NamedTuple):
    """A model, whether only the gradient at it is wanted, and whether to forget the momentum."""

    model: Weights
    audit: Array
    forget: Array


class OwnMomentum(NamedTuple):
    """A client's momentum, and how many gradients are in it."""

    momentum: Weights
    num_gradients: Array


def start(settings: MomentumClustering, key: Key, num_clients: int) -> MomentumTable:
    """All models the same, and nobody heard."""
    if settings.num_clusters > num_clients:
        raise BadValue("num_clusters", settings.num_clusters, f"at most the {num_clients} clients there are")
    number = settings.num_clusters or num_clients
    models = jax.tree.map(lambda leaf: jnp.stack([leaf] * number), settings.model.init(key))
    return new_momentum_table(jax.random.fold_in(key, 1), models, num_clients, own=not settings.num_clusters)


def num_exchanges(settings: MomentumClustering, server: MomentumTable) -> Array:
    """One for every model where this round has an audit, and one for the momenta."""
    first = server._replace(exchange=jnp.zeros_like(server.exchange))
    return jnp.where(is_audit(settings, first), settings.num_clusters + 1, 1)


def is_audit(settings: MomentumClustering, server: MomentumTable) -> Array:
    """Whether this exchange asks for gradients: all but the last of a round with an audit."""
    if not settings.audit:
        return jnp.asarray(False)
    # Until everybody was there once, in every round: who is new has to be put somewhere.
    due = (server.round % settings.audit == 0) | ~server.met.all()
    return server.heard.any() & due & (server.exchange < settings.num_clusters)


def send(settings: MomentumClustering, server: MomentumTable, uid: Array) -> MomentumRequest:
    """A client's own model; in an audit, the same for all."""
    index, audit = jnp.minimum(uid, len(server.label) - 1), is_audit(settings, server)
    model = tree.at(server.models, jnp.where(audit, server.exchange, server.label[index]))
    return MomentumRequest(model, audit, server.moved[index])


def join(key: Key, offer: OfferedModels) -> OwnMomentum:
    """No momentum yet."""
    return OwnMomentum(tree.zeros_like(offer.own), jnp.zeros((), jnp.int32))


def train(
    settings: MomentumClustering, key: Key, request: MomentumRequest, own: OwnMomentum, data: Data
) -> tuple[GradientUpload, OwnMomentum, Info]:
    """A client's momentum; in an audit, its gradient."""
    gradient, info = gradient_at(settings.model, settings.plan, key, request.model, data)
    noise = noise_at(settings.model, settings.plan, key, request.model, data)
    share = jnp.where((own.num_gradients == 0) | request.forget, 1.0, settings.alpha)
    momentum = jax.tree.map(lambda old, new: (1 - share) * old + share * new, own.momentum, gradient)
    momentum = momentum._replace(stats=gradient.stats)  # running statistics are running means already
    after = OwnMomentum(momentum, jnp.where(request.forget, 1, own.num_gradients + 1))
    upload = GradientUpload(tree.choose(request.audit, gradient, momentum), as_bits(noise))
    return upload, tree.choose(request.audit, own, after), info


def merge(
    settings: MomentumClustering, server: MomentumTable, uploads: GradientUpload, weights: Array, uids: Array
) -> MomentumTable:
    """The table after an exchange."""
    number = len(server.label)
    sent = rows_by_uid(uploads, uids, number)
    present = jnp.zeros(number).at[uids].set(client_weights(weights, settings.weighting))
    audit = is_audit(settings, server)
    server = server._replace(noise=jnp.where(present > 0, as_float(sent.noise), server.noise))
    step = partial(step_clusters if settings.num_clusters else step_alone, settings)
    if not settings.audit:
        after = step(server, sent.gradient, present)
    else:
        after = jax.lax.cond(audit, partial(audit_model, settings), step, server, sent.gradient, present)
    # Only at the end of a round: how many exchanges it has must not change on the way.
    return after._replace(met=server.met.at[uids].max(~audit))


def audit_model(
    settings: MomentumClustering, server: MomentumTable, points: Weights, weights: Array
) -> MomentumTable:
    """The table after everybody sent its gradient at one model: how far each is from those who have it."""
    counts = usable(points.params, weights)
    # From last round's center: half of a cluster may be attackers, so its median is no safe start.
    begin = jax.tree.map(lambda leaf: leaf[server.exchange][None], server.centers.params)
    radius = radius_of_present(settings.clustering.rule, (weights > 0).sum())
    found = settings.clustering.cluster(points.params, begin, weights=weights, radius=radius)
    squares = jnp.square(distances_to(tree.at(found.centers, 0), cleaned(points.params, counts)))
    # A cluster that nobody has is closed; one whose members are away is not.
    alive = (server.heard & (server.label == server.exchange)).any()
    distances = server.distances.at[:, server.exchange].set(jnp.where(counts & alive, squares, -1.0))
    heard = counts & (distances >= 0).any(1)
    last = server.exchange == settings.num_clusters - 1
    nearest = jnp.where(distances < 0, jnp.inf, distances).argmin(1).astype(jnp.int32)
    label = jnp.where(last & heard, nearest, server.label)
    return server._replace(
        distances=distances, label=label, moved=server.moved | (label != server.label), exchange=server.exchange + 1
    )


def step_clusters(
    settings: MomentumClustering, server: MomentumTable, points: Weights, weights: Array
) -> MomentumTable:
    """The table at the end of a round: new centers, a step of every model along its own."""
    now, later = jax.random.split(server.key)
    first = ~server.heard.any()
    clean = cleaned(points, usable(points, weights))
    draw = partial(draw_centers, now, clean, weights, settings.num_clusters, settings.num_starts)
    begin = jax.lax.cond(first, draw, lambda: server.centers)
    free = first | (settings.reassign == "always")
    # Without audits who is new goes to the nearest center, for better or worse.
    known = server.heard | (settings.audit > 0)
    label = jnp.where(known, server.label, nearest_center(points, weights, begin, server.label))
    mine = weights * (label == jnp.arange(settings.num_clusters)[:, None])  # (clusters, clients)
    radius = radius_of_present(settings.clustering.rule, (weights > 0).sum())

    def find(begin: Weights, own: Array) -> tuple[Array, Array, Array]:
        center = jax.tree.map(lambda leaf: leaf[None], begin.params)
        found = settings.clustering.cluster(points.params, center, weights=own, radius=radius)
        return found.weights[0], found.kept[0], found.rest[0]

    mix, kept, rest = jax.vmap(find)(begin, jnp.where(free, weights, mine))
    plain = tree.add(combine(mix, clean), scale_rows(rest, begin))
    group = KeptPoints(clean, weights, kept, jnp.ones(len(kept), bool))
    centers = robust_centers(settings.average, group, plain, jnp.arange(len(weights)), now)
    label = jnp.where(free, nearest_center(points, weights, centers, label), label)
    near = surroundings(points.params, weights, mix / jnp.maximum(mix.sum(1, keepdims=True), 1e-30), kept)
    # A center with nobody around it says nothing: its model stays.
    steps = scale_rows(settings.plan.lr * kept.any(1), centers)
    after = server._replace(
        models=keep_variances_positive(server.models, tree.subtract(server.models, steps)),
        centers=centers,
        label=label,
        kept=kept,
        gap=near.gap[label],
        spread=spread_around(near.squares, centers, label),
        key=later,
    )
    return end_round(server, after, weights)


def step_alone(
    settings: MomentumClustering, server: MomentumTable, points: Weights, weights: Array
) -> MomentumTable:
    """The same where every client is the center of its own cluster."""
    found = settings.clustering.cluster(points.params, weights=weights)
    near = surroundings(points.params, weights, found.weights, found.kept)
    clean = cleaned(points, usable(points, weights))
    here, everyone = weights > 0, jnp.ones(len(weights), bool)
    group = KeptPoints(clean, weights, found.kept, everyone)
    plain = combine(found.weights, clean)
    steps = robust_centers(settings.average, group, plain, jnp.arange(len(weights)), server.key)
    models = jax.tree.map(
        lambda old, by: jnp.where(tree.along(here, old), old - settings.plan.lr * by, old), server.models, steps
    )
    after = server._replace(
        models=keep_variances_positive(server.models, models),
        centers=steps,
        kept=jnp.where(here[:, None], found.kept, server.kept),
        gap=jnp.where(here, near.gap, server.gap),
        spread=jnp.where(here, spread_around(near.squares, steps, server.label), server.spread),
    )
    return end_round(server, after, weights)


def offer(settings: MomentumClustering, server: MomentumTable, uid: Array) -> OfferedModels:
    """A client's own model, and for newcomers all models, or those of the largest clusters."""
    index = jnp.minimum(uid, len(server.label) - 1)
    if settings.num_clusters:
        clusters, some = server.label, jnp.arange(settings.num_clusters)
    else:
        clusters = clusters_of(server.kept)
        some = largest_clusters(clusters, settings.num_offered)
    return OfferedModels(
        own=tree.at(server.models, server.label[index]),
        known=(uid < len(server.label)) & server.heard[index],
        label=clusters[index],
        others=tree.at(server.models, some),
        labels=some if settings.num_clusters else clusters[some],
    )


def forecast(settings: MomentumClustering, num_clients: int, group_sizes: Sequence[int]) -> Forecast:
    """What a round costs, and what is wrong with the radius."""
    size = tree.num_bytes(jax.eval_shape(settings.model.init, jax.random.key(0)))
    cost = (
        f"N={num_clients} clients need {bytes_in_words(2 * num_clients * size)} for momenta and "
        f"{num_clients:,} gradients per round"
    )
    number = settings.num_clusters * num_clients
    more = f", {number:,} more in every {settings.audit}th" if settings.audit else ""
    return Forecast(cost + more, radius_warnings(settings.clustering.rule, num_clients, group_sizes))
