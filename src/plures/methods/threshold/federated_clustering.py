"""Federated-Clustering: a model for every client, moved by the gradients of those who see it as the client does.

    z_ij  =  gradient of client j at the model x_i of client i         (the same minibatches for all models)
    v_i   =  Threshold-Clustering of z_i1 .. z_iN, from z_ii           (plures.aggregate.threshold_clustering)
    x_i  <-  x_i - lr b_i,     b_i <- momentum b_i + v_i

All gradients of a comparison are taken at one model, so clients of other clusters lie apart even where everybody is
near an own optimum. Number and sizes of clusters need not be known. A point outside the ball has no influence: robust
against clients who send anything at all.

A gradient is (x - x after the plan) / lr. Models travel in blocks, one block an exchange, so that memory is N models
and a block of gradients and not N x N of them; equal models travel once. Bytes are counted in whole blocks (``block=1``
counts to the model). A lost upload counts as nobody, and the model of who is absent stays; gradients are asked for at
all models, whoever takes part.

It needs N^2 gradients a round and shows every model to every client, and the server sees single gradients: no secure
aggregation. It is no help without clusters, where the gap between them is below about three deviations of a gradient,
or where clients have very different numbers of rows.

Werner, He, Jordan, Jaggi, Karimireddy: Provably Personalized and Robust Federated Learning, arXiv 2306.08393.
``look``, ``unite``, cached rounds, and the choice of newcomers are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import check_weighting, client_weights
from plures.aggregate.points import combine, rows_by_uid
from plures.errors import BadValue, require, require_choice, require_least
from plures.method import Forecast, Method, Report, Traits, Views
from plures.methods.threshold.comparison import (
    CenterRule,
    ModelComparison,
    center_rule,
    compare_at,
    steps_of_groups,
)
from plures.methods.threshold.gradients import (
    GradientUpload,
    OfferedModels,
    ThresholdOptions,
    clusters_of,
    gap_warnings,
    gradient_at,
    largest_clusters,
    noise_at,
    radius_warnings,
)
from plures.methods.threshold.model_table import (
    HeavyBall,
    ModelTable,
    draw_groups,
    group_of,
    move_models,
    new_table,
    num_distinct,
    unite_clusters,
)
from plures.registry import Limit, OptionGroup, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights
from plures.wording import bytes_in_words

BETWEEN = ("cached", "local")
MESSAGE = 2**19  # bytes of models that travel in one exchange, unless said otherwise
LARGE_MESSAGE = 2**24  # the same on an accelerator, which is idle with less
MOST_MODELS = 64  # in one exchange, unless said otherwise


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(OptionGroup):
    """How models are compared and moved.

    Args:
        momentum: Share of the last step that a model keeps, in [0, 1); 0 is none.
        dampened: Whether momentum is a running mean of the steps instead of their sum.
        weighting: "uniform" counts all clients alike, "examples" by their training rows.
        aggregate: "center", or an aggregator of the kept gradients instead, such as "median" (options set off by
            semicolons).
        look: How gradients are compared: "euclidean", "cosine" (directions alone), or "layers" (all layers alike).
        groups: Clients are divided into so many groups at random, anew in every round, and only compared inside them:
            N^2 / groups gradients a round.
        every: Models are compared in every so many rounds; in between a client sends one gradient, at its own model.
        between: How a model moves in the rounds between: by the last collaboration weights ("cached"), which trusts
            whoever was kept last (against attackers compare in every round), or by its own gradient ("local").
        unite: Every so many rounds the models of a cluster (clients who keep mostly the same ones) become their median;
            0 is never.
        num_offered: How many models, of the largest clusters, newcomers choose from by their training rows.
        block: Models that travel in one exchange; without it as many as fit into a message of 0.5 MB (16 MB on an
            accelerator), at most 64.
    """

    momentum: float = 0.0
    dampened: bool = False
    weighting: str = "uniform"
    aggregate: str = "center"
    look: str = "euclidean"
    groups: int = 1
    every: int = 1
    between: str = "cached"
    unite: int = 0
    num_offered: int = 8
    block: int | None = None

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, "momentum", self.momentum, "a number in [0, 1)")
        require_choice("between", self.between, BETWEEN)
        require(self.unite >= 0, "unite", self.unite, "0 (never) or a number of rounds")
        require_least(1, groups=self.groups, every=self.every, num_offered=self.num_offered, block=self.block or 1)
        check_weighting(self.weighting)


@method(
    title="Federated-Clustering",
    paper="arXiv:2306.08393",
    degree="radius",
    limits=[
        Limit("the nearest alone is the client itself", {"radius": "k_nearest:k=1"}, same_served_as="local_only"),
        Limit("a ball for all: plain FedAvg", {"radius": "fixed"}, "fedavg", {"weighting": "uniform"}),
    ],
)
def federated_clustering(
    model: Model,
    *,
    plan: Plan = Plan(),
    clustering: ThresholdOptions = ThresholdOptions(),
    comparison: ComparisonOptions = ComparisonOptions(),
) -> Method:
    """A model for every client, trained with the clients whose gradients at it are near its own.

    Args:
        plan: How clients train locally; a client's gradient at a model is what the plan moves it by, over ``lr``.
        clustering: Whose gradients a client keeps; keeping all is FedAvg.
        comparison: How models are compared and moved.
    """
    sparing = comparison.groups == 1 and jax.default_backend() == "cpu"
    rule = center_rule(clustering, comparison.aggregate, comparison.look, sparing=sparing)
    return FederatedClustering(model, plan, comparison, rule).build()


class FederatedOffer(NamedTuple):
    """Models for a client or a newcomer, and how many others its own was trained with."""

    models: OfferedModels
    collaborators: Array
    own_weight: Array


@dataclass(frozen=True, eq=False)
class FederatedClustering:
    """Federated-Clustering: what server and clients do."""

    model: Model
    plan: Plan
    options: ComparisonOptions
    rule: CenterRule

    @cached_property
    def model_bytes(self) -> int:
        """Bytes of one model."""
        return tree.num_bytes(jax.eval_shape(self.model.init, jax.random.key(0)))

    @property
    def descent(self) -> HeavyBall:
        """How models move."""
        return HeavyBall(self.plan.lr, self.options.momentum, self.options.dampened)

    def build(self) -> Method:
        """The method of these settings."""
        return Method(
            model=self.model,
            start=self.start,
            send=self.send,
            offer=self.offer,
            train=self.train,
            merge=self.merge,
            serve=lambda key, offer, private, data: offer.models.serve(self.model, data),
            predict=self.model.apply,
            plan=self.plan,
            views=Views(
                assign=self.assign,
                report=report if self.options.look == "euclidean" else None,
                forecast=self.forecast,
            ),
            traits=Traits(receivers=self.receivers, exchanges=self.num_exchanges, num_clusters=0),
        )

    def width(self, group_size: int) -> int:
        """How many models travel in an exchange."""
        message = MESSAGE if jax.default_backend() == "cpu" else LARGE_MESSAGE
        fitting = max(1, min(MOST_MODELS, message // max(self.model_bytes, 1)))
        return min(self.options.block or fitting, group_size)

    def compares(self, server: ModelTable) -> Array:
        """Whether models are compared in this round."""
        return server.round % self.options.every == 0

    def start(self, key: Key, num_clients: int) -> ModelTable:
        """Everybody at the same model."""
        if self.options.groups > num_clients:
            raise BadValue("groups", self.options.groups, f"at most the {num_clients} clients there are")
        models = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_clients), self.model.init(key))
        return new_table(
            jax.random.fold_in(key, 1), models, self.options.groups, momentum=bool(self.descent.momentum)
        )

    def num_exchanges(self, server: ModelTable) -> Array:
        """Exchanges of this round: until every model has travelled, or one in a round between comparisons."""
        width = self.width(server.queue.shape[1])
        number = (num_distinct(server) + width - 1) // width
        return jnp.where(self.compares(server), number.max(), 1)

    def whose_models(self, server: ModelTable, uid: Array) -> Array:
        """(block,) whose models this client is sent in this exchange; its own in a round between comparisons."""
        group, size = group_of(server)[uid], server.queue.shape[1]
        index = server.exchange * self.width(size) + jnp.arange(self.width(size))
        whose = server.queue[group, jnp.minimum(index, size - 1)]
        return jnp.where(self.compares(server), whose, uid)

    def receivers(self, server: ModelTable, uid: Array) -> Array:
        """Whom a client's messages are for; in between they are for the server, that is for nobody in particular."""
        return jnp.where(self.compares(server), self.whose_models(server, uid), len(server.label))

    def send(self, server: ModelTable, uid: Array) -> Weights:
        """A block of models."""
        return tree.at(server.models, self.whose_models(server, uid))

    def train(self, key: Key, models: Weights, private: Tree, data: Data) -> tuple[GradientUpload, Tree, Info]:
        """The gradient at every model, and the noise of the first."""
        model, plan = self.model, self.plan
        gradients, infos = jax.vmap(lambda weights: gradient_at(model, plan, key, weights, data))(models)
        noise = noise_at(model, plan, key, tree.at(models, 0), data)
        info = {name: values.mean() for name, values in infos.items()}
        number = jax.tree.leaves(models)[0].shape[0]
        return GradientUpload.of(gradients, jnp.broadcast_to(noise, (number,))), private, info

    def merge(self, server: ModelTable, uploads: GradientUpload, weights: Array, uids: Array) -> ModelTable:
        """The table after an exchange; after the last one of a round, ready for the next round."""
        number = len(server.label)
        sent = rows_by_uid(uploads, uids, number)
        present = jnp.zeros(number).at[uids].set(client_weights(weights, self.options.weighting))
        server = server._replace(noise=jnp.where(present > 0, sent.variance[:, 0], server.noise))
        compare, between = self.compare_block, self.step_between
        if self.options.every == 1:
            server = compare(server, sent.gradient, present)
        else:
            server = jax.lax.cond(self.compares(server), compare, between, server, sent.gradient, present)
        done = server.exchange + 1 >= self.num_exchanges(server)
        return jax.lax.cond(done, self.end_round, lambda table: table._replace(exchange=table.exchange + 1), server)

    def compare_block(self, server: ModelTable, gradients: Weights, weights: Array) -> ModelTable:
        """The table after the clients whose models were sent made their step."""
        width, last = self.width(server.queue.shape[1]), server.queue.shape[1] - 1

        def gradients_at(index: int | Array) -> Weights:
            return jax.tree.map(lambda leaf: leaf[:, index], gradients)

        def look_at(index: Array) -> ModelComparison:
            position = server.exchange * width + index
            whose = jnp.where(position < num_distinct(server), server.queue[:, jnp.minimum(position, last)], -1)
            find = partial(compare_at, self.rule, server.alike, gradients_at(index), weights)
            if self.options.groups == 1:
                return jax.tree.map(lambda leaf: leaf[None], find(server.members[0], whose[0]))
            return jax.vmap(find)(server.members, whose)

        # Who goes with whom is found for the whole block at once, the steps model by model: those need more memory.
        block = jnp.arange(width)
        found = jax.lax.map(look_at, block) if self.rule.sparing else jax.vmap(look_at)(block)

        def step(index: int | Array, server: ModelTable) -> ModelTable:
            return self.step_compared(server, tree.at(found, index), gradients_at(index), weights)

        return jax.lax.fori_loop(0, width, step, server)

    def step_compared(
        self, server: ModelTable, found: ModelComparison, gradients: Weights, weights: Array
    ) -> ModelTable:
        """The table after the steps of those who were compared; ``found`` is stacked over groups."""
        number = len(server.label)
        flat, steps = steps_of_groups(self.rule, server.key, gradients, weights, found)
        who = flat.who
        whole = rows_by_uid(steps, who, number)  # those of nobody, N, are dropped
        moved = jnp.zeros(number, bool).at[who].set(True, mode="drop")
        return move_models(self.descent, server, whole, moved)._replace(
            collaboration=server.collaboration.at[who].set(flat.mix, mode="drop"),
            kept=server.kept.at[who].set(flat.kept, mode="drop"),
            gap=server.gap.at[who].set(flat.gap, mode="drop"),
            spread=server.spread.at[who].set(flat.spread, mode="drop"),
        )

    def step_between(self, server: ModelTable, gradients: Weights, weights: Array) -> ModelTable:
        """The table after a round in which everybody sent the gradient at its own model."""
        own = jax.tree.map(lambda leaf: leaf[:, 0], gradients)
        present = (weights > 0) & jax.vmap(tree.all_finite)(own)
        clean = jax.tree.map(lambda leaf: jnp.where(tree.along(present, leaf), leaf, 0), own)
        if self.options.between == "local":
            return move_models(self.descent, server, clean, present, raw=True)
        mix = server.collaboration * present
        mix = mix / jnp.maximum(mix.sum(1, keepdims=True), 1e-30)
        return move_models(self.descent, server, combine(mix, clean), present)

    def end_round(self, server: ModelTable) -> ModelTable:
        """The table after the last exchange of a round."""
        server = server._replace(
            label=clusters_of(server.kept), round=server.round + 1, exchange=jnp.zeros_like(server.exchange)
        )
        if self.options.unite:
            late = server.round % self.options.unite == 0
            server = jax.lax.cond(late, unite_clusters, lambda table: table, server)
        return draw_groups(server)

    def offer(self, server: ModelTable, uid: Array) -> FederatedOffer:
        """A client's own model, and those of the largest clusters for newcomers."""
        number = len(server.label)
        index = jnp.minimum(uid, number - 1)
        first = largest_clusters(server.label, self.options.num_offered)
        models = OfferedModels(
            own=tree.at(server.models, index),
            known=(uid < number) & (server.steps[index] > 0),
            label=server.label[index],
            others=tree.at(server.models, first),
            labels=server.label[first],
        )
        return FederatedOffer(models, server.kept[index].sum(), server.collaboration[index, index])

    def assign(self, offer: FederatedOffer, private: Tree, data: Data) -> Info:
        """A client's cluster, and whom its model was trained with."""
        known = offer.models.known
        return {
            "cluster": offer.models.cluster(self.model, data),
            "collaborators": jnp.where(known, offer.collaborators, 0),
            "own_weight": jnp.where(known, offer.own_weight, 0.0),
        }

    def forecast(self, num_clients: int, group_sizes: Sequence[int]) -> Forecast:
        """What a round costs, and what is wrong with the radius."""
        size = -(-num_clients // self.options.groups)
        need = (1 + bool(self.descent.momentum) + 2 * self.width(size)) * num_clients * self.model_bytes
        whole = num_clients * size * self.model_bytes
        spared = f" ({bytes_in_words(whole)} if all gradients were kept at once)" if whole > need else ""
        cost = (
            f"N={num_clients} clients need {bytes_in_words(need)} for models and gradients{spared} and "
            f"{num_clients * size:,} gradients per round"
        )
        return Forecast(cost, radius_warnings(self.rule.clustering.rule, size, group_sizes, self.options.groups))


def report(server: ModelTable) -> Report:
    """A warning where clusters can hardly be told apart by gradients as they are; rescaled ones have another noise."""
    return Report(gap_warnings(server.noise, server.gap, server.spread))
