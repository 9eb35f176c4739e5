"""Uploads as points: which of them count, and how far they lie from each other and from a center.

A point is one entry of axis 0 of every leaf. It counts if its weight is above 0 and all its numbers are finite; one
so long that its square is not a number of float32 is as good as infinite.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.types import Tree

LONGEST = 1e37  # squared: sums of a few such numbers are still finite in float32
COARSE = 8.0  # a pair this much nearer to each other than to the origin (squared) deserves a nearer origin
MAX_PASSES = 6


def numbers(stacked: Tree) -> Tree:
    """The same points in float32 at least."""

    def one(leaf: Array) -> Array:
        kind = leaf.dtype if tree.is_float(leaf) else jnp.float32
        return leaf.astype(jnp.promote_types(kind, jnp.float32))

    return jax.tree.map(one, stacked)


def usable(stacked: Tree, weights: Array) -> Array:
    """(points,) whether each counts: of weight above 0, finite, and not too long to be squared."""
    length = jnp.zeros(weights.shape)
    for leaf in jax.tree.leaves(numbers(stacked)):
        length = length + jnp.square(leaf).sum(tuple(range(1, leaf.ndim)))
    return (weights > 0) & (length <= LONGEST)  # not a number is not below anything


def cleaned(stacked: Tree, counts: Array) -> Tree:
    """The points as float numbers, zeros in place of those that do not count."""
    return jax.tree.map(lambda leaf: jnp.where(tree.along(counts, leaf), leaf, 0), numbers(stacked))


def counted(stacked: Tree, weights: Array) -> tuple[Array, Tree]:
    """(points,) whether each counts, and the points as float numbers, zeros in place of those that do not."""
    counts = usable(stacked, weights)
    return counts, cleaned(stacked, counts)


def rows_by_uid(values: Tree, uids: Array, number: int) -> Tree:
    """A cohort's values in the rows of their uids, of ``number`` rows; zeros for who does not take part."""
    return jax.tree.map(lambda leaf: jnp.zeros((number, *leaf.shape[1:]), leaf.dtype).at[uids].set(leaf), values)


def combine(coefficients: Array, points: Tree) -> Tree:
    """sum_j coefficients[..., j] z_j."""
    exact = jax.lax.Precision.HIGHEST
    return jax.tree.map(
        lambda leaf: jnp.tensordot(coefficients.astype(leaf.dtype), leaf, axes=1, precision=exact), points
    )


def as_given(result: Tree, stacked: Tree) -> Tree:
    """The result in the types of the uploads it was made of; whole numbers become float32."""
    return jax.tree.map(
        lambda new, old: new.astype(old.dtype) if tree.is_float(old) else new.astype(jnp.float32), result, stacked
    )


def distances_to(center: Tree, points: Tree) -> Array:
    """(points,) the distance of each from one center, over all leaves."""
    squares = [
        jnp.square(leaf - middle).sum(tuple(range(1, leaf.ndim)))
        for leaf, middle in zip(jax.tree.leaves(points), jax.tree.leaves(center), strict=True)
    ]
    return jnp.sqrt(sum(squares, jnp.zeros(())))


def squared_distances(points: Tree, counts: Array) -> Array:
    """(points, points) squared distances by matrix products: |a|^2 + |b|^2 - 2 a.b about a near origin.

    A pair that is close compared with its distance from the origin loses its digits. The first origin is the mean.
    As long as there are such pairs, points are then gather_points around some of them, and each gathering has an origin
    of its own: still one product for all, of which only pairs of one gathering are taken.
    """
    rows = [leaf.reshape(len(counts), -1) for leaf in jax.tree.leaves(numbers(points))]
    pairs = counts[:, None] & counts[None] & ~np.eye(len(counts), dtype=bool)

    def coarse(found: _Pairs) -> Array:
        return pairs & (found.scale > COARSE * found.squares)

    def more(found: _Pairs) -> Array:
        return (found.passes < MAX_PASSES) & coarse(found).any()

    def nearer(old: _Pairs) -> _Pairs:
        origin = gather_points(coarse(old))
        squares, scale = _products([leaf - leaf[origin] for leaf in rows])
        better = (origin[:, None] == origin[None]) & (scale < old.scale)
        return _Pairs(jnp.where(better, squares, old.squares), jnp.where(better, scale, old.scale), old.passes + 1)

    share = counts / jnp.maximum(counts.sum(), 1)
    first = _Pairs(*_products([leaf - share.astype(leaf.dtype) @ leaf for leaf in rows]), jnp.asarray(1))
    return jax.lax.while_loop(more, nearer, first).squares


class _Pairs(NamedTuple):
    """Squared distances of all pairs, the size of the numbers they are differences of, and products so far."""

    squares: Array
    scale: Array
    passes: Array


def _products(rows: list[Array]) -> tuple[Array, Array]:
    """Squared distances between rows, and the size of the numbers they are differences of."""
    gram = jnp.zeros(())
    for leaf in rows:
        gram = gram + jnp.matmul(leaf, leaf.T, precision=jax.lax.Precision.HIGHEST)
    norm = jnp.diagonal(gram)
    scale = norm[:, None] + norm[None]
    apart = jnp.maximum(scale - gram - gram.T, 0.0)
    return jnp.where(np.eye(len(norm), dtype=bool), 0.0, apart), scale


def gather_points(linked: Array) -> Array:
    """(points,) the number of the point each is gather_points around: again and again the one with most free links.

    A point that nobody gathers stands for itself.
    """
    own = jnp.arange(len(linked))

    def links(free: Array) -> Array:
        return (linked & free[:, None] & free[None]).sum(1)

    def gather(state: tuple[Array, Array]) -> tuple[Array, Array]:
        origin, free = state
        pick = links(free).argmax()
        taken = free & (linked[pick] | (own == pick))
        return jnp.where(taken, pick, origin), free & ~taken

    everyone = jnp.ones(len(linked), bool)
    return jax.lax.while_loop(lambda state: links(state[1]).any(), gather, (own, everyone))[0]
