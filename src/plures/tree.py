"""Arithmetic on trees of arrays. Clients, where stacked, are axis 0 of every leaf."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures.types import Tree

Index: TypeAlias = Array | np.ndarray | slice | int


def add(left: Tree, right: Tree) -> Tree:
    """left + right, leaf by leaf."""
    return jax.tree.map(jnp.add, left, right)


def subtract(left: Tree, right: Tree) -> Tree:
    """left - right, leaf by leaf."""
    return jax.tree.map(jnp.subtract, left, right)


def scale(factor: Array | float, tree: Tree) -> Tree:
    """factor * tree, in each leaf's own dtype."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def step(tree: Tree, factor: Array | float, direction: Tree) -> Tree:
    """tree + factor * direction."""
    return add(tree, scale(factor, direction))


def zeros_like(tree: Tree) -> Tree:
    """A tree of zeros of the same shapes."""
    return jax.tree.map(jnp.zeros_like, tree)


def choose(condition: Array, yes: Tree, no: Tree) -> Tree:
    """``yes`` where the scalar condition holds, else ``no``."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def choose_rows(mask: Array, yes: Tree, no: Tree) -> Tree:
    """Entry by entry of axis 0, ``yes`` where the mask holds, else ``no``."""
    return jax.tree.map(lambda a, b: jnp.where(along(mask, a), a, b), yes, no)


def scale_rows(factors: Array, stacked: Tree) -> Tree:
    """Every entry of axis 0 times its own factor."""
    return jax.tree.map(lambda leaf: along(factors, leaf) * leaf, stacked)


def along(mask: Array, leaf: Array) -> Array:
    """A mask over axis 0 in a shape that goes with the leaf."""
    return mask.reshape(-1, *(1,) * (leaf.ndim - 1))


def dot(left: Tree, right: Tree) -> Array:
    """The inner product over all leaves."""
    parts = jax.tree.map(jnp.vdot, left, right)
    return jax.tree.reduce(jnp.add, parts, jnp.zeros(()))


def squared_norm(tree: Tree) -> Array:
    """The sum of squares of all numbers in the tree."""
    return dot(tree, tree)


def weighted_mean(stacked: Tree, weights: Array) -> Tree:
    """The mean over axis 0 with weights >= 0; zeros where all weights are 0.

    A client of weight 0 does not count even if its numbers are not finite.
    """
    weights = jnp.asarray(weights, jnp.float32)
    share = weights / jnp.maximum(weights.sum(), 1e-30)

    def mean(leaf: Array) -> Array:
        kept = jnp.where(along(share > 0, leaf), leaf, 0)
        kind = leaf.dtype if is_float(leaf) else share.dtype
        return jnp.tensordot(share.astype(kind), kept.astype(kind), axes=1)

    return jax.tree.map(mean, stacked)


def at(stacked: Tree, index: Index) -> Tree:
    """Entry (or entries) ``index`` of axis 0 of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], stacked)


def put(stacked: Tree, index: Index, values: Tree) -> Tree:
    """``stacked`` with entries ``index`` of axis 0 replaced."""
    return jax.tree.map(lambda leaf, new: leaf.at[index].set(new), stacked, values)


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of one structure, stacked on a new axis 0."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def num_bytes(tree: Tree) -> int:
    """Bytes of all leaves on the wire; works on shapes (``jax.eval_shape``) too."""

    def size(leaf: Array) -> int:
        if is_key(leaf):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        return int(math.prod(leaf.shape)) * leaf.dtype.itemsize

    return sum(size(leaf) for leaf in jax.tree.leaves(tree))


def paths(tree: Tree) -> list[str]:
    """The slash-joined path of every leaf, in leaf order.

    >>> paths({"head": {"bias": jnp.zeros(2)}})
    ['head/bias']
    """
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in found]


def named(tree: Tree) -> dict[str, Any]:
    """Every leaf by its path, in leaf order."""
    return dict(zip(paths(tree), jax.tree.leaves(tree), strict=True))


def matches(tree: Tree, patterns: Iterable[str]) -> list[bool]:
    """For every leaf, whether its path fits one of the patterns (``*`` stands for anything).

    >>> matches({"head": {"bias": jnp.zeros(1)}, "body": jnp.zeros(1)}, ["head/*"])
    [False, True]
    """
    wanted = list(patterns)
    return [any(fnmatchcase(path, pattern) for pattern in wanted) for path in paths(tree)]


def all_finite(tree: Tree) -> Array:
    """Whether every number in the tree is finite."""
    checks = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if is_float(leaf)]
    return jnp.stack(checks).all() if checks else jnp.asarray(True)


def is_key(leaf: Array) -> bool:
    """Whether the leaf holds random keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def plain(leaf: Array) -> Array:
    """The leaf as numbers: random keys as those that they are made of."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def from_plain(numbers: Array | np.ndarray, like: Array) -> Array:
    """The leaf that ``plain`` made numbers of; ``like`` is one of its kind."""
    return jax.random.wrap_key_data(jnp.asarray(numbers)) if is_key(like) else jnp.asarray(numbers)


def is_float(leaf: Array) -> bool:
    """Whether the leaf holds floating-point numbers."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def describe(tree: Tree) -> str:
    """Paths, types and shapes in one line, for messages."""
    leaves = {path or ".": jnp.asarray(leaf) for path, leaf in named(tree).items()}
    return ", ".join(f"{path}:{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves.items()) or "nothing"
