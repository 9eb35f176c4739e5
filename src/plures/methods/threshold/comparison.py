"""What clients find around their gradients at one model, and the steps that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import Aggregator
from plures.aggregate.points import combine, counted, usable
from plures.errors import require_choice
from plures.methods.threshold.gradients import (
    KeptPoints,
    ThresholdOptions,
    center_aggregator,
    robust_centers,
    surroundings,
)
from plures.types import Key, Tree, Weights

LOOKS = ("euclidean", "cosine", "layers")


@dataclass(frozen=True, eq=False)
class CenterRule:
    """How a client's step is made of the gradients at its model."""

    clustering: ThresholdOptions
    average: Aggregator | None  # of the kept gradients; None for their center
    look: str  # how gradients are compared
    sparing: bool  # centers that nobody asks for are left out: a model mostly has one client


def center_rule(clustering: ThresholdOptions, aggregate: str, look: str, *, sparing: bool) -> CenterRule:
    """The rule of these options; what cannot be is refused."""
    require_choice("look", look, LOOKS)
    # One round on the side, so that what cannot be is refused now.
    jax.eval_shape(partial(clustering.cluster, weights=jnp.ones(2)), jnp.zeros((2, 1)))
    return CenterRule(clustering, center_aggregator(aggregate), look, sparing)


class Neighborhoods(NamedTuple):
    """What the centers of a group find around them: collaboration weights, kept points, gap and spread."""

    mix: Array  # (S, S)
    kept: Array  # (S, S)
    gap: Array  # (S,)
    spread: Array  # (S,)


class ModelComparison(NamedTuple):
    """What the members of a group find at one model; S members, of whom only ``who`` shares that model."""

    who: Array  # (S,) uids; N for the others
    members: Array  # (S,) those of the group
    mix: Array  # (S, S)
    kept: Array  # (S, S)
    gap: Array  # (S,)
    spread: Array  # (S,)


def compare_at(
    rule: CenterRule, alike: Array, gradients: Weights, weights: Array, members: Array, whose: Array
) -> ModelComparison:
    """What the members of one group find at the model of one of them; ``alike`` says who shares a model with whom."""
    number = len(weights)
    inside, index = members < number, jnp.minimum(members, number - 1)
    own = jnp.where(inside, weights[index], 0.0)
    fine = usable(tree.at(gradients, index), own)  # statistics count here too
    params = jax.tree.map(
        lambda leaf: jnp.where(tree.along(fine, leaf[index]), leaf[index], jnp.nan), gradients.params
    )
    points = rescale(rule.look, params)
    mine = fine & (alike[index] == whose)
    every = partial(_every_center, rule, points, own)
    single = partial(_single_center, rule, points, own, mine)
    near = jax.lax.cond(mine.sum() <= 1, single, every) if rule.sparing else every()
    mix = jnp.where(mine[:, None], near.mix, 0.0)
    return ModelComparison(jnp.where(mine, members, number), index, mix, near.kept & inside, near.gap, near.spread)


def _every_center(rule: CenterRule, points: Tree, weights: Array) -> Neighborhoods:
    """Neighborhoods of all points."""
    found = rule.clustering.cluster(points, weights=weights)
    around = surroundings(points, weights, found.weights, found.kept)
    return Neighborhoods(found.weights, found.kept, around.gap, around.spread(jnp.arange(len(weights))))


def _single_center(rule: CenterRule, points: Tree, weights: Array, mine: Array) -> Neighborhoods:
    """The neighborhood of the one point that is asked for; zeros for the others."""
    row = mine.argmax()
    found = rule.clustering.cluster(points, jax.tree.map(lambda leaf: leaf[row][None], points), weights=weights)
    mix = found.weights.at[0, row].add(found.rest[0])
    around = surroundings(points, weights, mix, found.kept)
    near = Neighborhoods(mix, found.kept, around.gap, around.spread(row[None]))
    return jax.tree.map(
        lambda leaf: jnp.zeros((len(weights), *leaf.shape[1:]), leaf.dtype).at[row].set(leaf[0]), near
    )


def steps_of_groups(
    rule: CenterRule, key: Key, gradients: Weights, weights: Array, found: ModelComparison
) -> tuple[ModelComparison, Weights]:
    """Who was compared, groups one after the other, with (members, N) mixes and kept points; and their steps."""
    steps_of = partial(cluster_steps, rule, key, gradients, weights)
    if len(found.who) == 1:  # not mapped, so that what is not asked for is not computed
        flat = tree.at(found, 0)
        steps = steps_of(flat)
    else:
        flat, steps = jax.tree.map(
            lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (found, jax.vmap(steps_of)(found))
        )
    here = jnp.arange(len(flat.who))[:, None]
    columns = jnp.broadcast_to(found.members[:, None], found.mix.shape).reshape(len(here), -1)
    row = jnp.zeros((len(here), len(weights)))
    kept = row.at[here, columns].max(flat.kept.astype(jnp.float32)) > 0
    return flat._replace(mix=row.at[here, columns].add(flat.mix), kept=kept), steps


def cluster_steps(
    rule: CenterRule, key: Key, gradients: Weights, weights: Array, found: ModelComparison
) -> Weights:
    """(members, ...) the steps of those of one group that share the model."""
    number = len(weights)
    points, own = tree.at(gradients, found.members), weights[found.members]
    _, clean = counted(points, own)
    if rule.look == "cosine":  # directions say nothing of lengths, so an attacker could send a huge gradient
        clean = limit_lengths(clean, own)
    key = jax.random.fold_in(key, found.who.min())
    group = KeptPoints(clean, own, found.kept, found.who < number)
    return robust_centers(rule.average, group, mix_points(found.mix, clean), found.members, key)


def mix_points(mix: Array, points: Tree) -> Tree:
    """The rows of ``mix`` applied to the points; mostly there is only one that is not zero."""
    used = mix.sum(1) > 0

    def single(mix: Array) -> Tree:
        row = used.argmax()
        made = combine(mix[row], points)
        return jax.tree.map(lambda leaf, new: jnp.zeros_like(leaf).at[row].set(new), points, made)

    return jax.lax.cond(used.sum() <= 1, single, lambda mix: combine(mix, points), mix)


def rescale(look: str, points: Tree) -> Tree:
    """The points as they are compared: as they are, all of length 1, or with all leaves of the same mean length."""
    if look == "euclidean":
        return points
    lengths = jax.tree.map(lambda leaf: jnp.square(leaf).sum(tuple(range(1, leaf.ndim))), points)
    if look == "cosine":
        total = jnp.sqrt(sum(jax.tree.leaves(lengths)))
        return jax.tree.map(lambda leaf: leaf / jnp.maximum(tree.along(total, leaf), 1e-30), points)
    return jax.tree.map(
        lambda leaf, long: leaf / jnp.maximum(jnp.sqrt(_finite_median(long)), 1e-30), points, lengths
    )


def limit_lengths(points: Tree, weights: Array) -> Tree:
    """The points, cut to the median length of those that count."""
    length = jnp.sqrt(jax.vmap(tree.squared_norm)(points))
    limit = _finite_median(jnp.where(weights > 0, length, jnp.nan))
    factor = jnp.minimum(1.0, limit / jnp.maximum(length, 1e-30))
    return tree.scale_rows(factor, points)


def _finite_median(values: Array) -> Array:
    """The median of the finite values: an attacker's length must not set the scale."""
    found = jnp.nanmedian(jnp.where(jnp.isfinite(values), values, jnp.nan))
    return jnp.where(jnp.isnan(found), 0.0, found)
