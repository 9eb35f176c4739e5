"""How HypCluster's models come to start apart: short preludes whose server state holds the first centers."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.local import mean_loss
from plures.methods.fedavg import Server
from plures.types import Data, Info, Key, Method, Model, Tree, Weights

SMALL = 1e-9


class Scouts(NamedTuple):
    """A common start, models that some clients made of it, and which of the places are filled."""

    start: Weights
    models: Weights  # (candidates, ...)
    filled: Array  # (candidates,)


def scouting(base: Method, num_candidates: int) -> Method:
    """One round in which clients train candidates from a common start; the first places are kept."""
    model = base.model

    def start(key: Key, num_clients: int) -> Scouts:
        first = model.init(key)
        blank = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_candidates), first)
        return Scouts(first, blank, jnp.zeros(num_candidates, bool))

    def merge(server: Scouts, uploads: Weights, weights: Array, uids: Array) -> Scouts:
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
        return Scouts(server.start, models, server.filled.at[:number].set(fine))

    return replace(
        base, start=start, send=lambda server, uid: server.start, merge=merge, common=lambda shared: shared
    )


class Judged(NamedTuple):
    """Candidates, and the centers chosen among them: one set for every restart."""

    scouts: Scouts
    key: Key
    centers: Weights  # (restarts, clusters, ...)


def judging(base: Method, *, num_clusters: int, num_starts: int, num_candidates: int, rule: str) -> Method:
    """One round in which clients score all candidates; the server chooses centers by the scores."""
    model = base.model
    before = scouting(base, num_candidates)

    def start(key: Key, num_clients: int) -> Judged:
        scouts = before.start(key, num_clients)
        shape = (num_starts, num_clusters)
        centers = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*shape, *leaf.shape)), scouts.start)
        return Judged(scouts, jax.random.fold_in(key, 1), centers)

    def train(key: Key, models: Weights, private: Tree, data: Data) -> tuple[Array, Tree, Info]:
        return losses_of(model, models, data), private, {}

    def merge(server: Judged, uploads: Array, weights: Array, uids: Array) -> Judged:
        # Sorted by uid: where clients are stored makes no difference to what is drawn.
        order = jnp.argsort(uids)
        table, mass = uploads[order], weights[order]

        def one(key: Key) -> Weights:
            return tree.at(server.scouts.models, chosen(key, table, mass, server.scouts.filled, num_clusters, rule))

        return server._replace(centers=jax.vmap(one)(jax.random.split(server.key, num_starts)))

    def serve(key: Key, models: Weights, private: Tree, data: Data) -> Weights:
        return tree.at(models, losses_of(model, models, data).argmin())

    def send(server: Judged, uid: Array) -> Weights:
        return server.scouts.models

    return replace(base, start=start, send=send, train=train, merge=merge, serve=serve, common=None)


def judges_of(key: Key, fresh: Judged, scouts: Scouts) -> Judged:
    """The judging phase takes over the candidates."""
    return fresh._replace(scouts=scouts)


def scouts_of(key: Key, fresh: Scouts, warm: Server) -> Scouts:
    """The scouting phase starts from the warm model."""
    return fresh._replace(start=warm.weights)


def losses_of(model: Model, models: Weights, data: Data) -> Array:
    """The client's mean training loss under each of several models, in evaluation mode.

    A model that broke down has an infinite loss: NaN would be the least of all.
    """
    losses = jax.vmap(lambda one: mean_loss(model, model.apply, one, data.train))(models)
    return jnp.where(jnp.isnan(losses), jnp.inf, losses)


def chosen(key: Key, losses: Array, weights: Array, filled: Array, number: int, rule: str) -> Array:
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

    def add(place: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        picks, taken = now
        reached = jnp.where(taken[None], table, jnp.inf).min(1)
        excess = jnp.where(counts, reached - own, -1.0)
        far = excess.argmax()
        if rule == "kmeans++":
            far = jax.random.categorical(
                keys[place], jnp.log(jnp.maximum(excess, SMALL)) + jnp.where(counts, 0.0, -jnp.inf)
            )
        best = jnp.where(taken | ~filled, jnp.inf, table[far]).argmin()
        return picks.at[place].set(best), taken.at[best].set(True)

    taken = jnp.zeros(len(filled), bool).at[first].set(True)
    picks = jnp.zeros(number, jnp.int32).at[0].set(first)
    return jax.lax.fori_loop(1, number, add, (picks, taken))[0]


class Divided(NamedTuple):
    """One model per group, with its optimizer, and the group of every client."""

    base: Server  # (groups, ...)
    group: Array  # (clients,)


def dividing(base: Method, num_groups: int) -> Method:
    """FedAvg inside groups that clients were divided into at random."""

    def start(key: Key, num_clients: int) -> Divided:
        one = base.start(key, num_clients)
        order = jax.random.permutation(jax.random.fold_in(key, 1), num_clients)
        return Divided(jax.tree.map(lambda leaf: jnp.stack([leaf] * num_groups), one), order % num_groups)

    def group_of(server: Divided, uid: Array) -> Array:
        return jnp.where(uid < len(server.group), server.group[jnp.minimum(uid, len(server.group) - 1)], 0)

    def send(server: Divided, uid: Array) -> Weights:
        return tree.at(server.base.weights, group_of(server, uid))

    def merge(server: Divided, uploads: Weights, weights: Array, uids: Array) -> Divided:
        after, _ = merged_by_cluster(base, server.base, uploads, server.group[uids], weights, uids)
        return server._replace(base=after)

    return replace(base, start=start, send=send, merge=merge, common=None)


def merged_by_cluster(
    base: Method, servers: Server, updates: Weights, cluster: Array, weights: Array, uids: Array
) -> tuple[Server, Array]:
    """Every cluster's server after its own clients' updates, and its rows; one that nobody chose is untouched."""

    def one(number: Array, own: Server) -> tuple[Server, Array]:
        mine = jnp.where(cluster == number, weights, 0.0)
        return tree.choose(mine.sum() > 0, base.merge(own, updates, mine, uids), own), mine.sum()

    number = jax.tree.leaves(servers)[0].shape[0]
    return jax.vmap(one)(jnp.arange(number), servers)
