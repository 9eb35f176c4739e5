"""HypCluster: q models; every client takes the one with the least loss on its training rows.

    min over h_1 .. h_q   sum_k m_k  min_i  L_k(h_i)

A round: the server sends all q models, a client scores them (in evaluation mode), trains the best one and returns
its update with the number it chose. Each cluster has a server optimizer of its own; a cluster that nobody chose
keeps its model and its optimizer. A newcomer is assigned in the same way; without rows it gets the cluster that
most rows chose last.

Models that start alike never part, and those that start at random often collapse into one. So ``init`` is

    farthest    FedAvg for ``warm`` rounds; clients train candidates from it for ``scout_epochs``; clients score
                them all; centers are chosen one after the other, each for the client with the largest excess loss
    kmeans++    the same, but that client is drawn in proportion to its excess
    partition   clients are divided at random into q groups for ``warm`` rounds
    random      q draws of the model's own initialization

With ``num_starts`` above 1 that many sets of centers race for ``race`` rounds; the best on valid rows goes on.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization, arXiv 2002.10619, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.local import mean_loss
from plures.methods._centers import (
    Divided,
    Judged,
    dividing,
    judges_of,
    judging,
    losses_of,
    merged_by_cluster,
    scouting,
    scouts_of,
)
from plures.methods.fedavg import Server, fedavg
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Method, Model, Plan, Tree, Weights, then

PATIENCE = 10  # rounds without a client after which a cluster counts as left
INITS = ("farthest", "kmeans++", "partition", "random")


class Clusters(NamedTuple):
    """The models and optimizers of all clusters, the rows each had last, and for how many rounds it had none.

    ``last`` is the cluster every client chose last, -1 before its first round.
    """

    base: Server  # every leaf (clusters, ...)
    size: Array  # (clusters,)
    idle: Array  # (clusters,)
    last: Array  # (clients,)


class Choice(NamedTuple):
    """What a client downloads: all models, how many rows chose each last, and what it chose itself."""

    models: Weights
    size: Array
    last: Array


class Chosen(NamedTuple):
    """An update, the cluster it is for, and what training alone would gain on valid rows."""

    update: Weights
    cluster: Array
    gain: Tree  # nothing, unless clusters are seeded anew


@method(
    title="HypCluster",
    paper="arXiv:2002.10619",
    degree="num_clusters",
    limits=[Limit("one cluster: plain FedAvg", {"num_clusters": 1}, same_served_as="fedavg")],
)
def hypcluster(
    model: Model,
    *,
    num_clusters: int = 2,
    plan: Plan = Plan(),
    server_lr: float = 1.0,
    momentum: float = 0.0,
    weighting: str = "examples",
    init: str = "farthest",
    warm: int = 5,
    num_candidates: int | None = None,
    scout_epochs: int = 5,
    num_starts: int = 1,
    race: int = 5,
    reseed_after: int | None = None,
    aggregate: str = "mean",
) -> Method:
    """One of ``num_clusters`` models for every client, chosen by its training loss.

    ``num_candidates`` is 16 or twice the clusters, whichever is more, unless it is given. ``reseed_after``: a cluster
    that nobody chose for so many rounds takes over the model of the client that gains most on valid rows by leaving
    its own. ``aggregate`` works inside each cluster; which candidates become centers it does not guard.
    """
    counts = {"num_clusters": num_clusters, "warm": warm, "scout_epochs": scout_epochs, "num_starts": num_starts}
    candidates = max(16, 2 * num_clusters) if num_candidates is None else num_candidates
    _check(init, candidates, {**counts, "race": race, "reseed_after": reseed_after})
    base = fedavg(
        model, plan=plan, server_lr=server_lr, momentum=momentum, weighting=weighting, aggregate=aggregate
    )
    loop = clustering(base, num_clusters, reseed_after)
    if num_clusters == 1:
        return loop
    if init == "random":
        _check_apart(model)
        return loop
    if init == "partition":
        return then(dividing(base, num_clusters), warm, loop, hand_over=_from_groups)
    judge = judging(base, num_clusters=num_clusters, num_starts=num_starts, num_candidates=candidates, rule=init)
    if num_starts == 1:
        judged = then(judge, 1, loop, hand_over=_from_centers)
    else:
        scored = then(scoring(loop, num_starts), 1, loop, hand_over=_from_scores)
        raced = then(racing(loop, num_starts), race, scored, hand_over=_to_scores)
        judged = then(judge, 1, raced, hand_over=_to_race)
    scouts = fedavg(model, plan=replace(plan, epochs=scout_epochs, steps=None), weighting=weighting)
    scouted = then(scouting(scouts, candidates), 1, judged, hand_over=judges_of)
    return then(base, warm, scouted, hand_over=scouts_of)


def clustering(base: Method, num_clusters: int, reseed_after: int | None = None) -> Method:
    """Rounds of choosing, training and averaging, from ``num_clusters`` draws of the model's initialization."""
    model = base.model

    def start(key: Key, num_clients: int) -> Clusters:
        if num_clusters > num_clients:
            raise BadValue("num_clusters", num_clusters, f"at most the {num_clients} clients there are")
        # The first cluster starts where FedAvg would.
        keys = [key, *jax.random.split(key, num_clusters)[1:]]
        servers = [base.start(one, num_clients) for one in keys]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *servers)
        last = jnp.full(num_clients, -1, jnp.int32)
        return Clusters(stacked, jnp.zeros(num_clusters), jnp.zeros(num_clusters, jnp.int32), last)

    def send(server: Clusters, uid: Array) -> Choice:
        known = server.last[jnp.minimum(uid, len(server.last) - 1)]
        return Choice(server.base.weights, server.size, jnp.where(uid < len(server.last), known, -1))

    def train(key: Key, choice: Choice, private: Tree, data: Data) -> tuple[Chosen, Tree, Info]:
        losses = losses_of(model, choice.models, data)
        cluster = assigned(losses, choice, data)
        first = tree.at(choice.models, cluster)
        update, private, info = base.train(key, first, private, data)
        shares = {f"share_{i}": (cluster == i).astype(jnp.float32) for i in range(num_clusters)}
        switched = ((choice.last >= 0) & (cluster != choice.last)).astype(jnp.float32)
        told = {**info, "margin": margin(losses), "switched": switched, **shares}
        gain = () if reseed_after is None else _gain(model, first, update, data)
        return Chosen(update, cluster, gain), private, told

    def merge(server: Clusters, uploads: Chosen, weights: Array, uids: Array) -> Clusters:
        after, size = merged_by_cluster(base, server.base, uploads.update, uploads.cluster, weights, uids)
        idle = jnp.where(size > 0, 0, server.idle + 1)
        # What a lost upload says of its cluster is not heard.
        last = server.last.at[uids].set(jnp.where(weights > 0, uploads.cluster, server.last[uids]))
        now = Clusters(after, size, idle, last)
        return now if reseed_after is None else _reseeded(now, server, uploads, weights, reseed_after)

    def serve(key: Key, choice: Choice, private: Tree, data: Data) -> Weights:
        return tree.at(choice.models, assigned(losses_of(model, choice.models, data), choice, data))

    def assign(choice: Choice, private: Tree, data: Data) -> Info:
        losses = losses_of(model, choice.models, data)
        sure = posterior(losses, data.train.count).max()
        return {"cluster": assigned(losses, choice, data), "margin": margin(losses), "confidence": sure}

    def trained(choice: Choice, private: Tree, upload: Chosen) -> Weights:
        return tree.add(tree.at(choice.models, upload.cluster), upload.update)

    return replace(
        base,
        start=start,
        send=send,
        train=train,
        merge=merge,
        serve=serve,
        trained=trained,
        common=None,
        assign=assign,
        notes=notes_of,
        num_clusters=num_clusters,
        tolerates=None,  # a cluster may be small
    )


def notes_of(server: Clusters) -> list[str]:
    """A warning where clusters were left by everybody."""
    left = [str(number) for number, idle in enumerate(server.idle) if idle >= PATIENCE]
    if not left:
        return []
    which = f"cluster {left[0]} was" if len(left) == 1 else f"clusters {', '.join(left)} were"
    longest = int(max(server.idle))
    return [
        f"{which} chosen by nobody for up to {longest} rounds: {len(server.idle) - len(left)} of "
        f"{len(server.idle)} clusters are in use; try fewer, more num_starts, or reseed_after={PATIENCE}"
    ]


def assigned(losses: Array, choice: Choice, data: Data) -> Array:
    """The cluster with the least training loss; without training rows the one that most rows chose."""
    return jnp.where(jnp.asarray(data.train.count) > 0, losses.argmin(), choice.size.argmax())


def margin(losses: Array) -> Array:
    """How much worse the second-best model is: near 0 the choice is a toss-up."""
    ordered = jnp.sort(losses)
    return ordered[min(1, len(losses) - 1)] - ordered[0]


def posterior(losses: Array, num_rows: Array | int) -> Array:
    """The probability of each cluster if log-losses are log-likelihoods: softmax(-m L_i)."""
    return jax.nn.softmax(-num_rows * losses)


def _gain(model: Model, first: Weights, update: Weights, data: Data) -> Array:
    """How much lower the loss on valid rows is after training alone."""
    return mean_loss(model, model.apply, first, data.valid) - mean_loss(
        model, model.apply, tree.add(first, update), data.valid
    )


def _reseeded(now: Clusters, before: Clusters, uploads: Chosen, weights: Array, patience: int) -> Clusters:
    """The first cluster that was idle for too long starts anew from the client that gains most by leaving."""
    who = jnp.where(weights > 0, uploads.gain, -jnp.inf).argmax()
    seed = tree.add(tree.at(before.base.weights, uploads.cluster[who]), tree.at(uploads.update, who))
    late = now.idle >= patience
    here = (jnp.arange(len(late)) == late.argmax()) & late & (weights > 0).any()
    planted = jax.tree.map(
        lambda old, new: jnp.where(tree.along(here, old), new[None], old), now.base.weights, seed
    )
    return now._replace(base=now.base._replace(weights=planted), idle=jnp.where(here, 0, now.idle))


def _with_models(fresh: Clusters, models: Weights) -> Clusters:
    return fresh._replace(base=fresh.base._replace(weights=models))


def _from_centers(key: Key, fresh: Clusters, before: Judged) -> Clusters:
    return _with_models(fresh, tree.at(before.centers, 0))


def _from_groups(key: Key, fresh: Clusters, before: Divided) -> Clusters:
    return _with_models(fresh, before.base.weights)


def racing(loop: Method, num_starts: int) -> Method:
    """Several sets of clusters trained side by side, each client taking part in all of them."""

    def start(key: Key, num_clients: int) -> Clusters:
        one = loop.start(key, num_clients)
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * num_starts), one)

    def send(sets: Clusters, uid: Array) -> Choice:
        return jax.vmap(lambda one: loop.send(one, uid))(sets)

    def train(key: Key, choices: Choice, private: Tree, data: Data) -> tuple[Chosen, Tree, Info]:
        uploads, _, info = jax.vmap(lambda one: loop.train(key, one, (), data))(choices)
        return uploads, private, {"loss": info["loss"].min()}

    def merge(sets: Clusters, uploads: Chosen, weights: Array, uids: Array) -> Clusters:
        return jax.vmap(lambda one, own: loop.merge(one, own, weights, uids), in_axes=(0, 1))(sets, uploads)

    def serve(key: Key, choices: Choice, private: Tree, data: Data) -> Weights:
        return loop.serve(key, tree.at(choices, 0), (), data)

    return replace(loop, start=start, send=send, train=train, merge=merge, serve=serve)


class Scored(NamedTuple):
    """Sets of clusters and the mean loss of each on valid rows."""

    sets: Clusters
    loss: Array


def scoring(loop: Method, num_starts: int) -> Method:
    """One round in which clients say how well each set of clusters serves their valid rows."""
    runners = racing(loop, num_starts)

    def start(key: Key, num_clients: int) -> Scored:
        return Scored(runners.start(key, num_clients), jnp.zeros(num_starts))

    def train(key: Key, choices: Choice, private: Tree, data: Data) -> tuple[Array, Tree, Info]:
        def one(choice: Choice) -> Array:
            return mean_loss(loop.model, loop.model.apply, loop.serve(key, choice, (), data), data.valid)

        return jax.vmap(one)(choices), private, {}

    def merge(server: Scored, uploads: Array, weights: Array, uids: Array) -> Scored:
        return server._replace(loss=tree.weighted_mean(uploads, weights))

    return replace(
        runners, start=start, send=lambda server, uid: runners.send(server.sets, uid), train=train, merge=merge
    )


def _to_race(key: Key, fresh: Clusters, before: Judged) -> Clusters:
    return _with_models(fresh, before.centers)


def _to_scores(key: Key, fresh: Scored, before: Clusters) -> Scored:
    return fresh._replace(sets=before)


def _from_scores(key: Key, fresh: Clusters, before: Scored) -> Clusters:
    return tree.at(before.sets, jnp.where(jnp.isnan(before.loss), jnp.inf, before.loss).argmin())


def _check_apart(model: Model) -> None:
    """Refuse a model whose initialization is always the same: its clusters would never part."""
    first, second = (jax.tree.leaves(model.init(jax.random.key(seed))) for seed in (0, 1))
    if all(bool((one == other).all()) for one, other in zip(first, second, strict=True)):
        raise Unsupported(
            "this model always starts alike, so clusters would never part; use init=farthest, kmeans++ or partition"
        )


def _check(init: str, num_candidates: int, counts: Mapping[str, int | None]) -> None:
    """Refuse counts below 1 and starts that cannot work."""
    if init not in INITS:
        raise UnknownChoice("init", init, INITS)
    for name, number in counts.items():
        if number is not None and number < 1:
            raise BadValue(name, number, "1 or more")
    if num_candidates < (counts["num_clusters"] or 0):
        raise BadValue("num_candidates", num_candidates, f"at least num_clusters ({counts['num_clusters']})")
    if (counts["num_starts"] or 0) > 1 and init not in ("farthest", "kmeans++"):
        wanted = f"1 with init={init}: only farthest and kmeans++ have restarts"
        raise BadValue("num_starts", counts["num_starts"], wanted)
