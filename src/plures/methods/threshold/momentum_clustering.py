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
from plures.aggregate.points import combine, counted, distances_to, rows_by_uid
from plures.aggregate.variances import keep_variances_positive
from plures.errors import BadValue, require, require_choice, require_least
from plures.method import Forecast, Method, Report, Traits, Views
from plures.methods.threshold.gradients import (
    GradientUpload,
    KeptPoints,
    OfferedModels,
    ThresholdOptions,
    center_aggregator,
    clusters_of,
    gap_warnings,
    gradient_at,
    largest_clusters,
    noise_at,
    radius_warnings,
    robust_centers,
    surroundings,
)
from plures.methods.threshold.momentum_table import (
    MomentumTable,
    draw_centers,
    end_round,
    nearest_center,
    new_momentum_table,
    radius_of_present,
    spread_around,
)
from plures.registry import Limit, OptionGroup, method
from plures.types import Data, Info, Key, Model, Plan, Weights
from plures.wording import bytes_in_words

REASSIGN = ("always", "audit")


@dataclass(frozen=True, kw_only=True)
class MomentumOptions(OptionGroup):
    """How momenta are clustered.

    Args:
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

    alpha: float = 0.1
    weighting: str = "uniform"
    aggregate: str = "center"
    audit: int = 10
    reassign: str = "audit"
    num_starts: int = 64
    num_offered: int = 8

    def __post_init__(self) -> None:
        require(0 < self.alpha <= 1, "alpha", self.alpha, "a number in (0, 1]")
        require(self.audit >= 0, "audit", self.audit, "0 (never) or a number of rounds")
        require_choice("reassign", self.reassign, REASSIGN)
        require_least(1, num_starts=self.num_starts)
        check_weighting(self.weighting)


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
    options: MomentumOptions = MomentumOptions(),
) -> Method:
    """One of ``num_clusters`` models for every client, moved by the center of the momenta around it.

    Args:
        num_clusters: Number of models; 1 is one model for all, 0 one for every client.
        plan: How clients train locally; a client's gradient at a model is what the plan moves it by, over ``lr``.
        clustering: Whose momenta a center keeps.
        options: How momenta are clustered.
    """
    require(num_clusters >= 0, "num_clusters", num_clusters, "0 (everybody for itself) or more")
    average = center_aggregator(options.aggregate)
    return MomentumClustering(model, plan, num_clusters, clustering, options, average).build()


class MomentumRequest(NamedTuple):
    """A model, whether only the gradient at it is wanted, and whether to forget the momentum."""

    model: Weights
    audit: Array
    forget: Array


class OwnMomentum(NamedTuple):
    """A client's momentum, and how many gradients are in it."""

    momentum: Weights
    num_gradients: Array


def join(key: Key, offer: OfferedModels) -> OwnMomentum:
    """No momentum yet."""
    return OwnMomentum(tree.zeros_like(offer.own), jnp.zeros((), jnp.int32))


@dataclass(frozen=True, eq=False)
class MomentumClustering:
    """Momentum-Clustering: what server and clients do."""

    model: Model
    plan: Plan
    num_clusters: int  # 0: everybody is its own center
    clustering: ThresholdOptions
    options: MomentumOptions
    average: Aggregator | None  # of the kept momenta; None for their center

    @property
    def audit(self) -> int:
        """Rounds between two audits; 0 for never, also where there is nothing to choose from."""
        return self.options.audit if self.num_clusters > 1 else 0

    def build(self) -> Method:
        """The method of these settings."""
        model, alpha = self.model, self.options.alpha
        return Method(
            model=model,
            start=self.start,
            send=self.send,
            offer=self.offer,
            join=join,
            train=self.train,
            merge=self.merge,
            serve=lambda key, offer, private, data: offer.serve(model, data),
            predict=model.apply,
            plan=self.plan,
            views=Views(
                assign=lambda offer, private, data: {"cluster": offer.cluster(model, data)},
                report=lambda server: Report(
                    gap_warnings(server.noise * alpha / (2 - alpha), server.gap, server.spread)
                ),
                forecast=self.forecast,
            ),
            traits=Traits(exchanges=self.num_exchanges if self.audit else 1, num_clusters=self.num_clusters),
        )

    def start(self, key: Key, num_clients: int) -> MomentumTable:
        """All models the same, and nobody heard."""
        if self.num_clusters > num_clients:
            raise BadValue("num_clusters", self.num_clusters, f"at most the {num_clients} clients there are")
        number = self.num_clusters or num_clients
        models = jax.tree.map(lambda leaf: jnp.stack([leaf] * number), self.model.init(key))
        return new_momentum_table(jax.random.fold_in(key, 1), models, num_clients, own=not self.num_clusters)

    def num_exchanges(self, server: MomentumTable) -> Array:
        """One for every model where this round has an audit, and one for the momenta."""
        first = server._replace(exchange=jnp.zeros_like(server.exchange))
        return jnp.where(self.is_audit(first), self.num_clusters + 1, 1)

    def is_audit(self, server: MomentumTable) -> Array:
        """Whether this exchange asks for gradients: all but the last of a round with an audit."""
        if not self.audit:
            return jnp.asarray(False)
        # Until everybody was there once, in every round: who is new has to be put somewhere.
        due = (server.round % self.audit == 0) | ~server.met.all()
        return server.heard.any() & due & (server.exchange < self.num_clusters)

    def send(self, server: MomentumTable, uid: Array) -> MomentumRequest:
        """A client's own model; in an audit, the same for all."""
        index, audit = jnp.minimum(uid, len(server.label) - 1), self.is_audit(server)
        model = tree.at(server.models, jnp.where(audit, server.exchange, server.label[index]))
        return MomentumRequest(model, audit, server.moved[index])

    def train(
        self, key: Key, request: MomentumRequest, own: OwnMomentum, data: Data
    ) -> tuple[GradientUpload, OwnMomentum, Info]:
        """A client's momentum; in an audit, its gradient."""
        gradient, info = gradient_at(self.model, self.plan, key, request.model, data)
        noise = noise_at(self.model, self.plan, key, request.model, data)
        share = jnp.where((own.num_gradients == 0) | request.forget, 1.0, self.options.alpha)
        momentum = jax.tree.map(lambda old, new: (1 - share) * old + share * new, own.momentum, gradient)
        momentum = momentum._replace(stats=gradient.stats)  # running statistics are running means already
        after = OwnMomentum(momentum, jnp.where(request.forget, 1, own.num_gradients + 1))
        upload = GradientUpload.of(tree.choose(request.audit, gradient, momentum), noise)
        return upload, tree.choose(request.audit, own, after), info

    def merge(self, server: MomentumTable, uploads: GradientUpload, weights: Array, uids: Array) -> MomentumTable:
        """The table after an exchange."""
        number = len(server.label)
        sent = rows_by_uid(uploads, uids, number)
        present = jnp.zeros(number).at[uids].set(client_weights(weights, self.options.weighting))
        audit = self.is_audit(server)
        server = server._replace(noise=jnp.where(present > 0, sent.variance, server.noise))
        step = self.step_clusters if self.num_clusters else self.step_alone
        if not self.audit:
            after = step(server, sent.gradient, present)
        else:
            after = jax.lax.cond(audit, self.audit_model, step, server, sent.gradient, present)
        # Only at the end of a round: how many exchanges it has must not change on the way.
        return after._replace(met=server.met.at[uids].max(~audit))

    def audit_model(self, server: MomentumTable, points: Weights, weights: Array) -> MomentumTable:
        """The table after everybody sent its gradient at one model: how far each is from those who have it."""
        counts, clean = counted(points.params, weights)
        # From last round's center: half of a cluster may be attackers, so its median is no safe start.
        begin = jax.tree.map(lambda leaf: leaf[server.exchange][None], server.centers.params)
        radius = radius_of_present(self.clustering.rule, (weights > 0).sum())
        found = self.clustering.cluster(points.params, begin, weights=weights, radius=radius)
        squares = jnp.square(distances_to(tree.at(found.centers, 0), clean))
        # A cluster that nobody has is closed; one whose members are away is not.
        alive = (server.heard & (server.label == server.exchange)).any()
        distances = server.distances.at[:, server.exchange].set(jnp.where(counts & alive, squares, -1.0))
        heard = counts & (distances >= 0).any(1)
        last = server.exchange == self.num_clusters - 1
        nearest = jnp.where(distances < 0, jnp.inf, distances).argmin(1).astype(jnp.int32)
        label = jnp.where(last & heard, nearest, server.label)
        return server._replace(
            distances=distances,
            label=label,
            moved=server.moved | (label != server.label),
            exchange=server.exchange + 1,
        )

    def step_clusters(self, server: MomentumTable, points: Weights, weights: Array) -> MomentumTable:
        """The table at the end of a round: new centers, a step of every model along its own."""
        now, later = jax.random.split(server.key)
        first = ~server.heard.any()
        _, clean = counted(points, weights)
        draw = partial(draw_centers, now, clean, weights, self.num_clusters, self.options.num_starts)
        begin = jax.lax.cond(first, draw, lambda: server.centers)
        free = first | (self.options.reassign == "always")
        # Without audits who is new goes to the nearest center, for better or worse.
        known = server.heard | (self.audit > 0)
        label = jnp.where(known, server.label, nearest_center(points, weights, begin, server.label))
        mine = weights * (label == jnp.arange(self.num_clusters)[:, None])  # (clusters, clients)
        radius = radius_of_present(self.clustering.rule, (weights > 0).sum())

        def find(begin: Weights, own: Array) -> tuple[Array, Array, Array]:
            center = jax.tree.map(lambda leaf: leaf[None], begin.params)
            found = self.clustering.cluster(points.params, center, weights=own, radius=radius)
            return found.weights[0], found.kept[0], found.rest[0]

        mix, kept, rest = jax.vmap(find)(begin, jnp.where(free, weights, mine))
        plain = tree.add(combine(mix, clean), tree.scale_rows(rest, begin))
        group = KeptPoints(clean, weights, kept, jnp.ones(len(kept), bool))
        centers = robust_centers(self.average, group, plain, jnp.arange(len(weights)), now)
        label = jnp.where(free, nearest_center(points, weights, centers, label), label)
        near = surroundings(points.params, weights, mix / jnp.maximum(mix.sum(1, keepdims=True), 1e-30), kept)
        # A center with nobody around it says nothing: its model stays.
        steps = tree.scale_rows(self.plan.lr * kept.any(1), centers)
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

    def step_alone(self, server: MomentumTable, points: Weights, weights: Array) -> MomentumTable:
        """The same where every client is the center of its own cluster."""
        found = self.clustering.cluster(points.params, weights=weights)
        near = surroundings(points.params, weights, found.weights, found.kept)
        _, clean = counted(points, weights)
        here, everyone = weights > 0, jnp.ones(len(weights), bool)
        group = KeptPoints(clean, weights, found.kept, everyone)
        plain = combine(found.weights, clean)
        steps = robust_centers(self.average, group, plain, jnp.arange(len(weights)), server.key)
        moved = tree.subtract(server.models, tree.scale(self.plan.lr, steps))
        models = tree.choose_rows(here, moved, server.models)
        after = server._replace(
            models=keep_variances_positive(server.models, models),
            centers=steps,
            kept=jnp.where(here[:, None], found.kept, server.kept),
            gap=jnp.where(here, near.gap, server.gap),
            spread=jnp.where(here, spread_around(near.squares, steps, server.label), server.spread),
        )
        return end_round(server, after, weights)

    def offer(self, server: MomentumTable, uid: Array) -> OfferedModels:
        """A client's own model, and for newcomers all models, or those of the largest clusters."""
        index = jnp.minimum(uid, len(server.label) - 1)
        if self.num_clusters:
            clusters, some = server.label, jnp.arange(self.num_clusters)
        else:
            clusters = clusters_of(server.kept)
            some = largest_clusters(clusters, self.options.num_offered)
        return OfferedModels(
            own=tree.at(server.models, server.label[index]),
            known=(uid < len(server.label)) & server.heard[index],
            label=clusters[index],
            others=tree.at(server.models, some),
            labels=some if self.num_clusters else clusters[some],
        )

    def forecast(self, num_clients: int, group_sizes: Sequence[int]) -> Forecast:
        """What a round costs, and what is wrong with the radius."""
        size = tree.num_bytes(jax.eval_shape(self.model.init, jax.random.key(0)))
        cost = (
            f"N={num_clients} clients need {bytes_in_words(2 * num_clients * size)} for momenta and "
            f"{num_clients:,} gradients per round"
        )
        number = self.num_clusters * num_clients
        more = f", {number:,} more in every {self.audit}th" if self.audit else ""
        return Forecast(cost + more, radius_warnings(self.clustering.rule, num_clients, group_sizes))
