"""Momentum-Clustering: the server clusters the clients' momenta; d numbers each way instead of N times as many.

    client   m_i  <-  alpha g_i + (1 - alpha) m_i          g_i: its slope at the model it was sent
    server   v_k  <-  Threshold-Clustering of m_1 .. m_N, from last round's v_k
             k(i)  =  the nearest center of m_i
             x_k  <-  x_k - lr v_k

Momentum lowers the variance of what is clustered to alpha / (2 - alpha) of that of a slope, and lags by about
1 / alpha rounds. Momenta are taken at different models, so what is apart may look alike: near their own optima all
are about 0. The server therefore keeps one model per cluster, and every ``audit`` rounds asks everybody for the slope
at each of these models in turn (and in every round until everybody was there once); whoever lies nearer to the
cluster of another model moves there. ``reassign`` says
whether clients also move in the rounds between ("always"), or only then ("audit").

First centers are drawn by k-means++ among the momenta of the first round, all at one model; of ``num_starts`` draws
the best is taken. Distances are capped at their median there, so that a liar far away is no better a center than
anybody else.

With ``num_clusters=0`` every client is its own center and has a model of its own.

Werner, He, Jordan, Jaggi, Karimireddy: Provably Personalized and Robust Federated Learning, arXiv 2306.08393. The
capped draw, the audit and the choice of newcomers are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import (
    Clustered,
    Quantile,
    Radius,
    as_radius,
    check_weighting,
    client_weights,
    threshold_clustering,
)
from plures.aggregate.points import cleaned, combine, distances_to, usable
from plures.errors import BadValue, UnknownChoice
from plures.methods._centers import losses_of
from plures.methods._momenta import Asked, First, Kept, Momenta, Offer, Told, nearest, scaled, seeded, spread_of
from plures.methods._views import (
    aggregated,
    as_bits,
    as_float,
    clusters_of,
    doubts,
    in_order,
    inside_clusters,
    largest,
    noise_at,
    radius_warnings,
    sizes_told,
    slope_at,
    surroundings,
    with_stats,
)
from plures.norms import guarded
from plures.registry import Limit, method
from plures.types import Data, Forecast, Info, Key, Method, Model, Plan, Weights

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
        ),
    ],
)
def momentum_clustering(
    model: Model,
    *,
    num_clusters: int = 2,
    plan: Plan = Plan(),
    radius: Radius | float | str = "quantile:q=0.2;at_least=2",
    alpha: float = 0.1,
    max_iter: int = 100,
    tol: float = 1e-6,
    weighting: str = "uniform",
    aggregate: str = "center",
    audit: int = 10,
    reassign: str = "audit",
    num_starts: int = 64,
    num_offered: int = 8,
) -> Method:
    """One of ``num_clusters`` models for every client, moved by the center of the momenta around it.

    ``radius`` is a rule or a number (``plures.aggregate.as_radius``); options of a rule are set off by semicolons.
    ``aggregate`` puts an aggregator of the kept momenta, such as "median", in the place of the center. ``audit=0``
    never asks again. ``num_clusters=0``: a model for everybody; ``num_offered`` of them are offered to
    newcomers.
    """
    _check(num_clusters, alpha, audit, reassign, num_starts)
    rule = as_radius(radius)
    check_weighting(weighting)
    average = inside_clusters(aggregate)
    own_centers = num_clusters == 0
    cluster = partial(threshold_clustering, max_iter=max_iter, tol=tol, path="gram")

    def inside(number: Array) -> Callable[..., Clustered]:
        """Clustering of some of ``number`` clients; a share is one of all of them."""
        if isinstance(rule, Quantile) and not rule.compat:
            return partial(cluster, radius=First(rule, number))
        return partial(cluster, radius=rule)

    def start(key: Key, num_clients: int) -> Momenta:
        if num_clusters > num_clients:
            raise BadValue("num_clusters", num_clusters, f"at most the {num_clients} clients there are")
        number = num_clusters or num_clients
        models = jax.tree.map(lambda leaf: jnp.stack([leaf] * number), model.init(key))
        nothing = jnp.zeros(num_clients)
        label = jnp.arange(num_clients, dtype=jnp.int32) if own_centers else jnp.zeros(num_clients, jnp.int32)
        return Momenta(
            models,
            tree.zeros_like(models),
            label,
            jnp.zeros(num_clients, bool),
            jnp.zeros(num_clients, bool),
            jnp.zeros(num_clients, bool),
            nothing,
            nothing,
            nothing,
            jnp.zeros((number, num_clients), bool),
            jnp.zeros((num_clients, number)) - 1.0,
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
            jax.random.fold_in(key, 1),
        )

    audits = audit > 0 and num_clusters > 1

    def auditing(server: Momenta) -> Array:
        """Whether this turn asks for slopes: all but the last of a round with an audit."""
        if not audits:
            return jnp.asarray(False)
        # Until everybody was there once, in every round: who is new has to be put somewhere.
        due = (server.round % audit == 0) | ~server.met.all()
        return server.heard.any() & due & (server.turn < num_clusters)

    def turns(server: Momenta) -> Array:
        return jnp.where(auditing(server._replace(turn=jnp.zeros_like(server.turn))), num_clusters + 1, 1)

    def send(server: Momenta, uid: Array) -> Asked:
        place = jnp.minimum(uid, len(server.label) - 1)
        now = auditing(server)
        return Asked(
            tree.at(server.models, jnp.where(now, server.turn, server.label[place])), now, server.moved[place]
        )

    def join(key: Key, offer: Offer) -> Kept:
        return Kept(tree.zeros_like(offer.own), jnp.zeros((), jnp.int32))

    def train(key: Key, asked: Asked, kept: Kept, data: Data) -> tuple[Told, Kept, Info]:
        slope, info = slope_at(model, plan, key, asked.model, data)
        noise = noise_at(model, plan, key, asked.model, data)
        share = jnp.where((kept.slopes == 0) | asked.forget, 1.0, alpha)
        momentum = jax.tree.map(lambda old, new: (1 - share) * old + share * new, kept.momentum, slope)
        momentum = momentum._replace(stats=slope.stats)  # running statistics are running means already
        private = Kept(momentum, jnp.where(asked.forget, 1, kept.slopes + 1))
        return (
            Told(tree.choose(asked.audit, slope, momentum), as_bits(noise)),
            tree.choose(asked.audit, kept, private),
            info,
        )

    def merge(server: Momenta, uploads: Told, weights: Array, uids: Array) -> Momenta:
        number = len(server.label)
        sent = in_order(uploads, uids, number)
        there = jnp.zeros(number).at[uids].set(client_weights(weights, weighting))
        noise = jnp.where(there > 0, as_float(sent.noise), server.noise)
        server, now = server._replace(noise=noise), auditing(server)
        if not audits:
            after = stepped(server, sent.point, there)
        else:
            after = jax.lax.cond(now, audited, stepped, server, sent.point, there)
        # Only at the end of a round: how many turns it has must not change on the way.
        return after._replace(met=server.met.at[uids].max(~now))

    def stepped(server: Momenta, points: Weights, weights: Array) -> Momenta:
        """The server at the end of a round: new centers, a step of every model along its own."""
        if own_centers:
            return on_their_own(server, points, weights)
        now, later = jax.random.split(server.key)
        first = ~server.heard.any()
        clean = cleaned(points, usable(points, weights))
        draw = partial(seeded, now, clean, weights, num_clusters, num_starts)
        begin = jax.lax.cond(first, draw, lambda: server.centers)
        free = first | (reassign == "always")
        # Without audits who is new goes to the nearest center, for better or worse.
        label = jnp.where(server.heard | audits, server.label, nearest(points, weights, begin, server.label))
        mine = weights * (label == jnp.arange(num_clusters)[:, None])  # (clusters, clients)
        weighed = jnp.where(free, weights, mine)

        def one(begin: Weights, own: Array) -> tuple[Array, Array, Array]:
            found = inside((weights > 0).sum())(
                points.params, jax.tree.map(lambda leaf: leaf[None], begin.params), weights=own
            )
            return found.weights[0], found.kept[0], found.rest[0]

        mix, kept, rest = jax.vmap(one)(begin, weighed)
        plain = tree.add(combine(mix, clean), scaled(rest, begin))
        centers = robust(plain, clean, weights, kept, now)
        label = jnp.where(free, nearest(points, weights, centers, label), label)
        near = surroundings(points.params, weights, mix / jnp.maximum(mix.sum(1, keepdims=True), 1e-30), kept)
        # A center with nobody around it says nothing: its model stays.
        models = guarded(server.models, tree.subtract(server.models, scaled(plan.lr * kept.any(1), centers)))
        spread = spread_of(near.squares, centers, label)
        return ended(server, models, centers, label, kept, near.gap[label], spread, weights)._replace(key=later)

    def on_their_own(server: Momenta, points: Weights, weights: Array) -> Momenta:
        """The same where every client is the center of its own cluster."""
        found = cluster(points.params, weights=weights, radius=rule)
        near = surroundings(points.params, weights, found.weights, found.kept)
        clean = cleaned(points, usable(points, weights))
        steps = robust(combine(found.weights, clean), clean, weights, found.kept, server.key)
        models = jax.tree.map(
            lambda old, by: jnp.where(tree.along(weights > 0, old), old - plan.lr * by, old), server.models, steps
        )
        models = guarded(server.models, models)
        spread = spread_of(near.squares, steps, server.label)
        here = weights > 0
        kept = jnp.where(here[:, None], found.kept, server.kept)
        gap, spread = jnp.where(here, near.gap, server.gap), jnp.where(here, spread, server.spread)
        return ended(server, models, steps, server.label, kept, gap, spread, weights)

    def robust(plain: Weights, points: Weights, weights: Array, kept: Array, key: Key) -> Weights:
        """The aggregates of the kept momenta in the place of plain centers, where that is asked for."""
        everyone = jnp.ones(len(kept), bool)
        found, fine = aggregated(average, points, weights, kept, everyone, jnp.arange(len(weights)), key)
        centers = jax.tree.map(lambda new, old: jnp.where(tree.along(fine, old), new, old), found, plain)
        return with_stats(points, weights, kept, everyone, centers)

    def ended(
        server: Momenta,
        models: Weights,
        centers: Weights,
        label: Array,
        kept: Array,
        gap: Array,
        spread: Array,
        weights: Array,
    ) -> Momenta:
        return server._replace(
            models=models,
            centers=centers,
            label=label,
            heard=server.heard | (weights > 0),
            # In the first round all momenta were taken at one model, so they hold for any. Who is away is told later.
            moved=((label != server.label) | (server.moved & (weights <= 0))) & server.heard.any(),
            kept=kept,
            gap=gap,
            spread=spread,
            turn=jnp.zeros_like(server.turn),
            round=server.round + 1,
        )

    def audited(server: Momenta, points: Weights, weights: Array) -> Momenta:
        """After everybody sent its slope at one model: how far each is from those who have it."""
        counts = usable(points.params, weights)
        # From last round's center: half of a cluster may be liars, so its median is no safe start.
        begin = jax.tree.map(lambda leaf: leaf[server.turn][None], server.centers.params)
        found = inside((weights > 0).sum())(points.params, begin, weights=weights)
        squares = jnp.square(distances_to(tree.at(found.centers, 0), cleaned(points.params, counts)))
        # A cluster that nobody has is closed; one whose members are away is not.
        alive = (server.heard & (server.label == server.turn)).any()
        far = jnp.where(counts & alive, squares, -1.0)
        table = server.table.at[:, server.turn].set(far)
        heard = counts & (table >= 0).any(1)
        last = server.turn == num_clusters - 1
        label = jnp.where(
            last & heard, jnp.where(table < 0, jnp.inf, table).argmin(1).astype(jnp.int32), server.label
        )
        return server._replace(
            table=table, label=label, moved=server.moved | (label != server.label), turn=server.turn + 1
        )

    def offer(server: Momenta, uid: Array) -> Offer:
        place = jnp.minimum(uid, len(server.label) - 1)
        clusters = clusters_of(server.kept) if own_centers else server.label
        some = largest(clusters, num_offered) if own_centers else jnp.arange(num_clusters)
        labels = clusters[some] if own_centers else some
        known = (uid < len(server.label)) & server.heard[place]
        return Offer(
            tree.at(server.models, server.label[place]),
            known,
            clusters[place],
            tree.at(server.models, some),
            labels,
        )

    def best(offer: Offer, data: Data) -> Array:
        return losses_of(model, offer.others, data).argmin()

    def serve(key: Key, offer: Offer, private: Kept, data: Data) -> Weights:
        return tree.choose(offer.known, offer.own, tree.at(offer.others, best(offer, data)))

    def assign(offer: Offer, private: Kept, data: Data) -> Info:
        return {"cluster": jnp.where(offer.known, offer.label, offer.labels[best(offer, data)])}

    def forecast(num_clients: int, group_sizes: Sequence[int]) -> Forecast:
        size = tree.num_bytes(jax.eval_shape(model.init, jax.random.key(0)))
        said = (
            f"N={num_clients} clients need {sizes_told(2 * num_clients * size)} for momenta and "
            f"{num_clients:,} slopes per round"
        )
        more = f", {num_clusters * num_clients:,} more in every {audit}th" if audits else ""
        return Forecast(said + more, radius_warnings(rule, num_clients, group_sizes))

    return Method(
        model=model,
        start=start,
        send=send,
        offer=offer,
        join=join,
        train=train,
        merge=merge,
        serve=serve,
        predict=model.apply,
        plan=plan,
        assign=assign,
        notes=lambda server: doubts(server.noise * alpha / (2 - alpha), server.gap, server.spread),
        forecast=forecast,
        turns=turns if audits else 1,
        num_clusters=num_clusters,
    )


def _check(num_clusters: int, alpha: float, audit: int, reassign: str, num_starts: int) -> None:
    if num_clusters < 0:
        raise BadValue("num_clusters", num_clusters, "0 (everybody for itself) or more")
    if not 0 < alpha <= 1:
        raise BadValue("alpha", alpha, "a number in (0, 1]")
    if audit < 0:
        raise BadValue("audit", audit, "0 (never) or a number of rounds")
    if reassign not in REASSIGN:
        raise UnknownChoice("reassign", reassign, REASSIGN)
    if num_starts < 1:
        raise BadValue("num_starts", num_starts, "1 or more")
