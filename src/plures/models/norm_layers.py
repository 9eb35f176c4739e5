"""Normalization layers of a model: whether it has any, which policy is possible, and their statistics made anew."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import UnknownChoice, Unsupported
from plures.keys import permute
from plures.models.parts import parts_of
from plures.types import Key, Model, Rows, Tree, Weights

POLICIES = ("share", "local", "affine", "recalibrate")
BLOCK, FEWEST = 256, 4


def check_policy(model: Model, policy: str, *, who: str = "") -> None:
    """Refuse a policy that there is not, or that is about layers the model does not have."""
    if policy not in POLICIES:
        raise UnknownChoice("norm policy", policy, POLICIES)
    if policy == "share":
        return
    if not has_norm(model):
        said = ", ".join(parts_of(model)) or "no named parts"
        needs = f"{who or f'norm={policy}'} needs a model with normalization layers"
        raise Unsupported(f"{needs}; this one has: {said}")
    if policy != "local" and not has_statistics(model):
        about = f"norm={policy} is about running statistics"
        raise Unsupported(f"{about}; this model's normalization keeps none: use local")


def has_norm(model: Model) -> bool:
    """Whether the model has normalization layers."""
    return "norm" in parts_of(model)


def has_statistics(model: Model) -> bool:
    """Whether the model keeps running statistics."""
    return bool(jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)).stats))


def recalibrated(model: Model, key: Key, weights: Weights, rows: Rows, *, wanted: Array | bool = True) -> Weights:
    """The weights with the statistics of these rows in place of running ones, if that is wanted.

    They stay as they are for fewer than ``FEWEST`` rows, whose variances would tell nothing. A training pass moves statistics s to
    m s + (1 - m) b, b being those of its batch. So a pass from 0 gives (1 - m) b, a second one from there 1 + m times that: together they
    tell m and b, whatever the model. Rows come in random order, block by block; the variance between blocks counts.
    """
    size = max(min(BLOCK, rows.capacity), 1)
    zeros = tree.zeros_like(weights.stats)
    wanted = jnp.asarray(wanted) & (jnp.asarray(rows.count) >= FEWEST)

    def of_block(block: Array) -> tuple[Tree, Array]:
        place = block * size + jnp.arange(size)
        batch = rows.take(permute(key, jnp.minimum(place, jnp.maximum(rows.count - 1, 0)), rows.count))
        mask = place < rows.count

        def passed(stats: Tree) -> Tree:
            return model.forward(key, weights._replace(stats=stats), batch.x, mask)[1]

        low = passed(zeros)
        return jax.tree.map(_of_batch, low, passed(low)), mask.sum() / jnp.maximum(rows.count, 1)

    def add(block: Array, total: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        found, share = of_block(block)
        squares = jax.tree.map(jnp.square, found)
        return tree.step(total[0], share, found), tree.step(total[1], share, squares)

    blocks = jnp.where(wanted, (rows.count + size - 1) // size, 0)
    means, squares = jax.lax.fori_loop(0, blocks, add, (zeros, zeros))
    return tree.choose(wanted, weights._replace(stats=_with_spread(means, squares)), weights)


def _of_batch(low: Array, again: Array) -> Array:
    """The statistics of a batch from those after a pass from 0, and after a second pass from there."""
    size = jnp.abs(low).sum()
    kept = jnp.where(size > 0, jnp.abs(again).sum() / jnp.where(size > 0, size, 1.0) - 1, 0.0)  # m
    return low / (1 - kept)


def _with_spread(means: Tree, squares: Tree) -> Tree:
    """Statistics averaged over blocks, variances with that of the blocks' means."""
    names, structure = tree.paths(means), jax.tree.structure(means)
    mean_of, square_of = (dict(zip(names, jax.tree.leaves(one), strict=True)) for one in (means, squares))

    def one(name: str) -> Array:
        layer, _, leaf = name.rpartition("/")
        center = f"{layer}/mean"
        if leaf != "var" or center not in mean_of:
            return mean_of[name]
        return mean_of[name] + jnp.maximum(square_of[center] - jnp.square(mean_of[center]), 0.0)

    return jax.tree.unflatten(structure, [one(name) for name in names])
