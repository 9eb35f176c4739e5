"""How HypCluster's models come to start apart: short phases whose server state holds the first centers.

    farthest    FedAvg for ``warm`` rounds; clients train candidates from it for ``scout_epochs``; clients score
                them all; centers are chosen one after the other, each for the client with the largest excess loss
    kmeans++    the same, but that client is drawn in proportion to its excess
    partition   clients are divided at random into as many groups as clusters for ``warm`` rounds
    random      draws of the model's own initialization

With ``num_starts`` above 1 that many sets of centers race for ``race`` rounds; the best on valid rows goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.errors import BadValue, Unsupported, require_choice, require_least
from plures.local import losses_of, mean_loss
from plures.method import Method, then
from plures.methods.fedavg import Server, fedavg
from plures.registry import OptionGroup
from plures.types import Data, Info, Key, Model, Tree, Weights

SMALL = 1e-9
SCOUTED = ("farthest", "kmeans++")
INITS = (*SCOUTED, "partition", "random")


@dataclass(frozen=True, kw_only=True)
class ClusterStart(OptionGroup):
    """How the models of clusters come to start apart.

    Args:
        init: "farthest" (centers among candidates, each for the client that the others serve worst), "kmeans++" (the same,
            that client drawn by its excess loss), "partition" (clients divided at random) or "random" (the model's own
            initialization, several times).
        warm: Rounds of FedAvg before candidates are trained, or of training in groups for "partition".
        num_candidates: How many clients' models are candidates for centers; None is 16 or twice the clusters, whichever is
            more.
        scout_epochs: Epochs for which candidates are trained from the warm model.
        num_starts: How many sets of centers are tried, for "farthest" and "kmeans++"; 1 is no race.
        race: Rounds for which these sets are trained side by side before valid rows choose one.
    """

    init: str = "farthest"
    warm: int = 5
    num_candidates: int | None = None
    scout_epochs: int = 5
    num_starts: int = 1
    race: int = 5

    def __post_init__(self) -> None:
        require_choice("init", self.init, INITS)
        require_least(1, warm=self.warm, scout_epochs=self.scout_epochs, num_starts=self.num_starts, race=self.race)
        if self.num_starts > 1 and self.init not in SCOUTED:
            wanted = f"1 with init={self.init}: only farthest and kmeans++ have restarts"
            raise BadValue("num_starts", self.num_starts, wanted)

    def check(self, num_clusters: int) -> None:
        """Refuse fewer candidates than clusters."""
        if self.candidates(num_clusters) < num_clusters:
            wanted = f"at least num_clusters ({num_clusters})"
            raise BadValue("num_candidates", self.num_candidates, wanted)

    def candidates(self, num_clusters: int) -> int:
        """How many candidates there are for so many clusters."""
        return max(16, 2 * num_clusters) if self.num_candidates is None else self.num_candidates


def start_apart(loop: Method, base: Method, scouts: Method, start: ClusterStart, num_clusters: int) -> Method:
    """The ``loop`` after what makes its models start apart; ``scouts`` is FedAvg as candidates are trained."""
    if start.init == "random":
        _check_apart(base.model)
        return loop
    if start.init == "partition":
        groups = group_rounds(base, num_clusters)
        return then(
            groups, start.warm, loop, hand_over=lambda key, fresh, before: _begun(fresh, before.base.weights)
        )
    if start.num_starts > 1:
        scored = then(score_round(loop, start.num_starts), 1, loop, hand_over=_from_scores)
        races = race_rounds(loop, start.num_starts)
        loop = then(races, start.race, scored, hand_over=lambda key, fresh, before: fresh._replace(sets=before))

    def hand_over(key: Key, fresh: Tree, before: CandidateCenters) -> Tree:
        return _begun(fresh, before.centers if start.num_starts > 1 else tree.at(before.centers, 0))

    number = start.candidates(num_clusters)
    judge_base = judge_round(
        base, num_clusters=num_clusters, num_starts=start.num_starts, num_candidates=number, rule=start.init
    )
    return scout_and_judge(base, start.warm, scout_round(scouts, number), judge_base, loop, hand_over)


def scout_and_judge(
    base: Method, warm: int, scouts: Method, judge_base: Method, main: Method, hand_over: Callable[..., Tree]
) -> Method:
    """``main`` after ``warm`` rounds of ``base``, a round of ``scouts`` and one of judging them."""
    judged = then(judge_base, 1, main, hand_over=hand_over)
    scouted = then(scouts, 1, judged, hand_over=lambda key, fresh, scouts: fresh._replace(scouts=scouts))
    return then(base, warm, scouted, hand_over=lambda key, fresh, warm: fresh._replace(start=warm.weights))


def scout_method(base: Method, epochs: int, averaging: Averaging) -> Method:
    """FedAvg by which candidates are trained."""
    plan = replace(base.plan, epochs=epochs, steps=None)
    return fedavg(base.model, plan=plan, averaging=Averaging(weighting=averaging.weighting))


class Candidates(NamedTuple):
    """A common start, models that some clients made of it, and which of them are there."""

    start: Weights
    models: Weights  # (candidates, ...)
    filled: Array  # (candidates,)


def scout_round(base: Method, num_candidates: int) -> Method:
    """One round in which clients train candidates from a common start; those of the first clients are kept."""
    model = base.model

    def start(key: Key, num_clients: int) -> Candidates:
        first = model.init(key)
        blank = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_candidates), first)
        return Candidates(first, blank, jnp.zeros(num_candidates, bool))

    def merge(server: Candidates, uploads: Weights, weights: Array, uids: Array) -> Candidates:
        number = min(num_candidates, len(uids))
        # Clients whose upload counts come first; among them those of the lowest uid.
        order = jnp.lexsort((uids, weights <= 0))[:number]
        kept = jax.vmap(lambda update: tree.add(server.start, update))(tree.at(uploads, order))
        fine = weights[order] > 0
        models = jax.tree.map(
            lambda old, new: old.at[:number].set(jnp.where(tree.along(fine, new), new, old[:number])),
            server.models,
            kept,
        )
        return Candidates(server.start, models, server.filled.at[:number].set(fine))

    return replace(
        base,
        start=start,
        send=lambda server, uid: server.start,
        merge=merge,
        views=replace(base.views, common=lambda shared: shared),
    )


class CandidateCenters(NamedTuple):
    """Candidates, and the centers chosen among them: one set for every restart."""

    scouts: Candidates
    key: Key
    centers: Weights  # (restarts, clusters, ...)


def judge_round(base: Method, *, num_clusters: int, num_starts: int, num_candidates: int, rule: str) -> Method:
    """One round in which clients score all candidates; the server chooses centers by the scores."""
    model = base.model
    before = scout_round(base, num_candidates)

    def start(key: Key, num_clients: int) -> CandidateCenters:
        scouts = before.start(key, num_clients)
        shape = (num_starts, num_clusters)
        centers = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*shape, *leaf.shape)), scouts.start)
        return CandidateCenters(scouts, jax.random.fold_in(key, 1), centers)

    def merge(server: CandidateCenters, uploads: Array, weights: Array, uids: Array) -> CandidateCenters:
        # Sorted by uid: where clients are stored makes no difference to what is drawn.
        order = jnp.argsort(uids)
        table, mass = uploads[order], weights[order]

        def one(key: Key) -> Weights:
            picks = pick_centers(key, table, mass, server.scouts.filled, num_clusters, rule)
            return tree.at(server.scouts.models, picks)

        return server._replace(centers=jax.vmap(one)(jax.random.split(server.key, num_starts)))

    def serve(key: Key, models: Weights, private: Tree, data: Data) -> Weights:
        return tree.at(models, losses_of(model, models, data).argmin())

    return replace(
        base,
        start=start,
        send=lambda server, uid: server.scouts.models,
        train=lambda key, models, private, data: (losses_of(model, models, data), private, {}),
        merge=merge,
        serve=serve,
        views=replace(base.views, common=None),
    )


def pick_centers(key: Key, losses: Array, weights: Array, filled: Array, number: int, rule: str) -> Array:
    """Which candidates become centers, from the (clients, candidates) losses.

    The first is drawn. Then, one after the other, a client is picked by its excess (its loss under the centers so
    far minus its loss under the best candidate there is): the largest one ("farthest") or a draw in proportion
    ("kmeans++"). The candidate that serves this client best, of those not taken, is the next center.
    """
    counts = weights > 0
    table = jnp.where(filled[None] & counts[:, None], losses, jnp.inf)
    own = jnp.where(counts, table.min(1), 0.0)
    keys = jax.random.split(key, number)
    first = jax.random.categorical(keys[0], jnp.where(filled, 0.0, -jnp.inf))

    def add(index: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        picks, taken = now
        reached = jnp.where(taken[None], table, jnp.inf).min(1)
        excess = jnp.where(counts, reached - own, -1.0)
        far = excess.argmax()
        if rule == "kmeans++":
            chance = jnp.log(jnp.maximum(excess, SMALL)) + jnp.where(counts, 0.0, -jnp.inf)
            far = jax.random.categorical(keys[index], chance)
        best = jnp.where(taken | ~filled, jnp.inf, table[far]).argmin()
        return picks.at[index].set(best), taken.at[best].set(True)

    taken = jnp.zeros(len(filled), bool).at[first].set(True)
    picks = jnp.zeros(number, jnp.int32).at[0].set(first)
    return jax.lax.fori_loop(1, number, add, (picks, taken))[0]


class GroupServers(NamedTuple):
    """One model per group, with its optimizer, and the group of every client."""

    base: Server  # (groups, ...)
    group: Array  # (clients,)


def group_rounds(base: Method, num_groups: int) -> Method:
    """FedAvg inside groups that clients were divided into at random."""

    def start(key: Key, num_clients: int) -> GroupServers:
        one = base.start(key, num_clients)
        order = jax.random.permutation(jax.random.fold_in(key, 1), num_clients)
        return GroupServers(jax.tree.map(lambda leaf: jnp.stack([leaf] * num_groups), one), order % num_groups)

    def group_of(server: GroupServers, uid: Array) -> Array:
        return jnp.where(uid < len(server.group), server.group[jnp.minimum(uid, len(server.group) - 1)], 0)

    def send(server: GroupServers, uid: Array) -> Weights:
        return tree.at(server.base.weights, group_of(server, uid))

    def merge(server: GroupServers, uploads: Weights, weights: Array, uids: Array) -> GroupServers:
        after, _ = merge_by_cluster(base, server.base, uploads, server.group[uids], weights, uids)
        return server._replace(base=after)

    return replace(base, start=start, send=send, merge=merge, views=replace(base.views, common=None))


def merge_by_cluster(
    base: Method, servers: Server, updates: Weights, cluster: Array, weights: Array, uids: Array
) -> tuple[Server, Array]:
    """Every cluster's server after its own clients' updates, and its rows; one that nobody chose is untouched."""

    def one(number: Array, own: Server) -> tuple[Server, Array]:
        mine = jnp.where(cluster == number, weights, 0.0)
        return tree.choose(mine.sum() > 0, base.merge(own, updates, mine, uids), own), mine.sum()

    number = jax.tree.leaves(servers)[0].shape[0]
    return jax.vmap(one)(jnp.arange(number), servers)


def _begun(fresh: Tree, models: Weights) -> Tree:
    """Clusters that begin with these models."""
    return fresh._replace(base=fresh.base._replace(weights=models))


def race_rounds(loop: Method, num_starts: int) -> Method:
    """Several sets of clusters trained side by side, each client taking part in all of them."""

    def start(key: Key, num_clients: int) -> Tree:
        one = loop.start(key, num_clients)
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * num_starts), one)

    def train(key: Key, choices: Tree, private: Tree, data: Data) -> tuple[Tree, Tree, Info]:
        uploads, _, info = jax.vmap(lambda one: loop.train(key, one, (), data))(choices)
        return uploads, private, {"loss": info["loss"].min()}

    def merge(sets: Tree, uploads: Tree, weights: Array, uids: Array) -> Tree:
        return jax.vmap(lambda one, own: loop.merge(one, own, weights, uids), in_axes=(0, 1))(sets, uploads)

    return replace(
        loop,
        start=start,
        send=lambda sets, uid: jax.vmap(lambda one: loop.send(one, uid))(sets),
        train=train,
        merge=merge,
        serve=lambda key, choices, private, data: loop.serve(key, tree.at(choices, 0), (), data),
    )


class ScoredStarts(NamedTuple):
    """Sets of clusters and the mean loss of each on valid rows."""

    sets: Tree
    loss: Array


def score_round(loop: Method, num_starts: int) -> Method:
    """One round in which clients say how well each set of clusters serves their valid rows."""
    runners = race_rounds(loop, num_starts)

    def start(key: Key, num_clients: int) -> ScoredStarts:
        return ScoredStarts(runners.start(key, num_clients), jnp.zeros(num_starts))

    def train(key: Key, choices: Tree, private: Tree, data: Data) -> tuple[Array, Tree, Info]:
        def one(choice: Tree) -> Array:
            return mean_loss(loop.model, loop.model.apply, loop.serve(key, choice, (), data), data.valid)

        return jax.vmap(one)(choices), private, {}

    def merge(server: ScoredStarts, uploads: Array, weights: Array, uids: Array) -> ScoredStarts:
        return server._replace(loss=tree.weighted_mean(uploads, weights))

    return replace(
        runners, start=start, send=lambda server, uid: runners.send(server.sets, uid), train=train, merge=merge
    )


def _from_scores(key: Key, fresh: Tree, before: ScoredStarts) -> Tree:
    return tree.at(before.sets, jnp.where(jnp.isnan(before.loss), jnp.inf, before.loss).argmin())


def _check_apart(model: Model) -> None:
    """Refuse a model whose initialization is always the same: its clusters would never part."""
    first, second = (jax.tree.leaves(model.init(jax.random.key(seed))) for seed in (0, 1))
    if all(bool((one == other).all()) for one, other in zip(first, second, strict=True)):
        raise Unsupported(
            "this model always starts alike, so clusters would never part; use init=farthest, kmeans++ or partition"
        )
