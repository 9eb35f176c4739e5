"""What stands for the rows of other clients: sums of theirs, rows they gave, or public inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.errors import BadFile, BadValue, Unsupported, require
from plures.keys import permute
from plures.method import Method
from plures.types import Batch, Data, Info, Key, Model, Rows, Tree
from plures.wrap.closing import Survey, cluster_of, surveyed


class PoolAnswer(NamedTuple):
    """What a client gives, and the cluster it is for."""

    given: Tree
    cluster: Array


def with_sums(base: Method) -> Method:
    """``base`` closed by a round that adds up, per cluster, the sums which determine the model's loss."""
    summary, model = base.model.summary, base.model
    if summary is None:
        raise Unsupported(
            "source=statistics needs a model whose loss follows from sums of its rows: least_squares, mean or density"
        )

    def blank(key: Key, num_clients: int) -> Tree:
        one = summary.zeros(jax.eval_shape(model.init, key))
        return jax.tree.map(lambda leaf: jnp.zeros((base.traits.num_clusters or num_clients, *leaf.shape)), one)

    def ask(key: Key, offer: Tree, data: Data) -> tuple[PoolAnswer, Info]:
        batch = data.train.all()
        return PoolAnswer(summary.of(batch.x, batch.y, batch.mask), cluster_of(base, offer, data)), {}

    def gather(found: Tree, answers: PoolAnswer, weights: Array, uids: Array) -> Tree:
        number = jax.tree.leaves(found)[0].shape[0]
        mine = jax.nn.one_hot(answers.cluster, number) * (weights > 0)[:, None]  # (clients, clusters)

        def add(leaf: Array) -> Array:
            return jnp.tensordot(mine, jnp.where(tree.along(weights > 0, leaf), leaf, 0.0), axes=(0, 0))

        return jax.tree.map(add, answers.given)

    return surveyed(base, blank=blank, ask=ask, gather=gather)


class Pools(NamedTuple):
    """For every cluster some rows of its clients in random order, and how many there are."""

    x: Array  # (clusters, rows, ...)
    y: Array
    size: Array  # (clusters,)
    key: Key


class GivenRows(NamedTuple):
    """Some of a client's rows; those with a false mask are repeats."""

    x: Array
    y: Array
    mask: Array


def with_rows(base: Method, example: Any, pool_rows: int, shared_rows: int) -> Method:
    """``base`` closed by a round in which every client gives some of its rows to the pool of its cluster."""
    if example is None:
        raise BadValue("example", example, "the shapes of a row, federation.example, for source=raw")

    def blank(key: Key, num_clients: int) -> Pools:
        shape = (base.traits.num_clusters or num_clients, min(pool_rows, num_clients * shared_rows))
        x, y = (jnp.zeros((*shape, *one.shape), one.dtype) for one in example)
        return Pools(x, y, jnp.zeros(shape[0], jnp.int32), key)

    def ask(key: Key, offer: Tree, data: Data) -> tuple[PoolAnswer, Info]:
        indices = jnp.arange(shared_rows)
        batch = data.train.take(permute(key, indices, data.train.count))
        given = GivenRows(batch.x, batch.y, indices < data.train.count)
        return PoolAnswer(given, cluster_of(base, offer, data)), {}

    def gather(found: Pools, answers: PoolAnswer, weights: Array, uids: Array) -> Pools:
        # The draw of a row hangs on who gave it, not on where its client is stored.
        draws = jax.vmap(lambda uid: jax.random.uniform(jax.random.fold_in(found.key, uid), (shared_rows,)))(uids)
        fine = answers.given.mask & (weights > 0)[:, None]

        def one(cluster: Array) -> tuple[Array, Array, Array]:
            mine = (fine & (answers.cluster == cluster)[:, None]).ravel()
            order = jnp.argsort(jnp.where(mine, draws.ravel(), 2.0))[: found.x.shape[1]]
            x, y = (
                jnp.where(tree.along(mine[order], kept), kept, 0)
                for kept in (leaf.reshape(mine.size, *leaf.shape[2:])[order] for leaf in answers.given[:2])
            )
            return x, y, jnp.minimum(mine.sum(), found.x.shape[1]).astype(jnp.int32)

        return Pools(*jax.vmap(one)(jnp.arange(len(found.size))), found.key)

    return surveyed(base, blank=blank, ask=ask, gather=gather)


def pool_of(base: Method, offer: Survey, data: Data) -> Rows:
    """The rows of the pool of the client's cluster."""
    found = tree.at(offer.found._replace(key=()), cluster_of(base, offer.base, data))
    return Rows(found.x, found.y, 0, found.size, found.x.shape[0])


def public_rows(model: Model, given: Any, pool_rows: int) -> Rows:
    """The first public inputs, from an array or a .npy file; they have no labels."""
    if given is None:
        raise BadValue("proxy", given, "an array of public inputs or a .npy file with one, for source=proxy")
    found = np.asarray(_read(given) if isinstance(given, str | Path) else given)
    if found.dtype.kind not in "fiub" or found.ndim < 1 or not len(found):
        raise BadValue("proxy", given, "numbers, with a row per public example")
    require(np.isfinite(found).all(), "proxy", "NaN or infinite numbers", "finite numbers")
    x = jnp.asarray(found[:pool_rows], jnp.float32 if found.dtype.kind == "f" else jnp.int32)
    try:
        jax.eval_shape(lambda: model.apply(model.init(jax.random.key(0)), x))
    except (TypeError, ValueError) as error:
        raise BadValue("proxy", f"inputs of shape {x.shape[1:]}", "inputs of this model") from error
    return Rows(x, jnp.zeros(len(x)), 0, len(x), len(x))


def _read(path: str | Path) -> np.ndarray:
    try:
        found: np.ndarray = np.load(path, allow_pickle=False)
        return found
    except (OSError, ValueError, EOFError) as error:
        raise BadFile(f"public inputs could not be read from {path}: {error}") from error


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OwnAndPool:
    """Own rows and a pool's as one set, with weights lam / own count and (1 - lam) / pool count, 1 on average."""

    own: Rows
    pool: Rows
    lam: Array

    @property
    def count(self) -> Array | int:
        """How many rows there are; none where there is no own row."""
        return jnp.where(jnp.asarray(self.own.count) > 0, self.own.count + self.pool.count, 0)

    @property
    def capacity(self) -> int:
        """A static bound on the count of any client."""
        return self.own.capacity + self.pool.capacity

    def take(self, index: Array) -> Batch:
        """The rows at ``index``: own ones first, then the pool's."""
        mine = index < self.own.count
        parts = self.own.take(index), self.pool.take(jnp.maximum(index - self.own.count, 0))
        x, y = (
            jnp.where(tree.along(mine, one), one, other)
            for one, other in zip(parts[0][:2], parts[1][:2], strict=True)
        )
        shares = self.lam / jnp.maximum(self.own.count, 1), (1 - self.lam) / jnp.maximum(self.pool.count, 1)
        return Batch(x, y, index < self.count, self.count * jnp.where(mine, *shares))

    def all(self) -> Batch:
        """Every row, padded to ``capacity``."""
        return self.take(jnp.arange(max(self.capacity, 1)))
