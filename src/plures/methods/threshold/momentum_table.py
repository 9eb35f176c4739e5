"""The server's table of models and the centers of momenta: how these are drawn, whom they keep, who is nearest."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import Quantile, Radius
from plures.aggregate.points import counted, squared_distances
from plures.aggregate.radius import ranks, share_of
from plures.types import Key, Weights


class MomentumTable(NamedTuple):
    """The models, their last centers, and who is where; K models (N where everybody is its own center)."""

    models: Weights  # (K, ...)
    centers: Weights  # (K, ...)
    label: Array  # (N,) the model of each client
    heard: Array  # (N,) whether it ever sent anything
    met: Array  # (N,) whether it ever took part
    moved: Array  # (N,) whether it was given another model since its last momentum
    noise: Array  # (N,) sigma^2
    gap: Array  # (N,) Delta^2
    spread: Array  # (N,) A^2
    kept: Array  # (K, N)
    distances: Array  # (N, K) squared, from the centers of an audit; -1 where not known
    exchange: Array
    round: Array
    key: Key


def new_momentum_table(key: Key, models: Weights, num_clients: int, *, own: bool) -> MomentumTable:
    """Nobody heard; everybody with the first model, or each with its own."""
    number = jax.tree.leaves(models)[0].shape[0]
    nothing, nobody = jnp.zeros(num_clients), jnp.zeros(num_clients, bool)
    return MomentumTable(
        models=models,
        centers=tree.zeros_like(models),
        label=jnp.arange(num_clients, dtype=jnp.int32) * own,
        heard=nobody,
        met=nobody,
        moved=nobody,
        noise=nothing,
        gap=nothing,
        spread=nothing,
        kept=jnp.zeros((number, num_clients), bool),
        distances=jnp.zeros((num_clients, number)) - 1.0,
        exchange=jnp.zeros((), jnp.int32),
        round=jnp.zeros((), jnp.int32),
        key=key,
    )


def end_round(before: MomentumTable, after: MomentumTable, weights: Array) -> MomentumTable:
    """The table after the last exchange of a round: who was heard, and who was given another model."""
    # In the first round all momenta were taken at one model, so they hold for any. Who is away is told later.
    moved = ((after.label != before.label) | (before.moved & (weights <= 0))) & before.heard.any()
    return after._replace(
        heard=before.heard | (weights > 0),
        moved=moved,
        exchange=jnp.zeros_like(before.exchange),
        round=before.round + 1,
    )


class ShareOfPresent(NamedTuple):
    """The radius of a share of ``number`` points, of which only some may be there to be kept."""

    rule: Quantile
    number: Array

    def keep(self, distances: Array, counts: Array, number: Array) -> tuple[Array, Array]:
        """Which points are among the nearest share."""
        most = jnp.asarray(share_of(self.rule.q, len(distances)))[self.number]
        kept = counts & (ranks(distances, counts) < jnp.maximum(most, self.rule.at_least))
        return kept, jnp.where(kept, distances, 0.0).max()


def radius_of_present(rule: Radius, number: Array) -> Radius | ShareOfPresent:
    """The rule for some of ``number`` clients: a share is one of all of them."""
    return ShareOfPresent(rule, number) if isinstance(rule, Quantile) and not rule.compat else rule


def nearest_center(points: Weights, weights: Array, centers: Weights, before: Array) -> Array:
    """(clients,) the nearest center of each; who does not count stays where it was."""
    counts, clean = counted(points.params, weights)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), clean, centers.params)
    number = jax.tree.leaves(centers)[0].shape[0]
    far = squared_distances(both, jnp.append(counts, jnp.ones(number, bool)))[: len(counts), len(counts) :]
    return jnp.where(counts, far.argmin(1), before).astype(jnp.int32)


def draw_centers(key: Key, points: Weights, weights: Array, number: int, num_starts: int) -> Weights:
    """``number`` of the points as first centers: the best of some draws of k-means++ with capped distances."""
    counts, clean = counted(points.params, weights)
    pairs = squared_distances(clean, counts)
    both = counts[:, None] & counts[None] & ~jnp.eye(len(counts), dtype=bool)
    cap = jnp.nanmedian(jnp.where(both, pairs, jnp.nan))
    capped = jnp.minimum(pairs, jnp.where(jnp.isnan(cap), 0.0, cap))

    def draw(key: Key) -> tuple[Array, Array]:
        keys = jax.random.split(key, number)

        def add(index: Array, picks: Array) -> Array:
            reached = jnp.where(jnp.arange(number) < index, capped[picks].T, jnp.inf).min(1)
            chance = jnp.where(index == 0, 1.0, jnp.maximum(reached, 1e-12 * jnp.maximum(capped.max(), 1e-30)))
            return picks.at[index].set(
                jax.random.categorical(keys[index], jnp.where(counts, jnp.log(chance), -jnp.inf))
            )

        picks = jax.lax.fori_loop(0, number, add, jnp.zeros(number, jnp.int32))
        return picks, jnp.where(counts, capped[picks].min(0), 0.0).sum()

    picks, cost = jax.vmap(draw)(jax.random.split(key, num_starts))
    return tree.at(points, picks[cost.argmin()])


def spread_around(squares: Array, centers: Weights, label: Array) -> Array:
    """(clients,) A^2: the squared distance from the own center over its squared length."""
    length = jax.vmap(tree.squared_norm)(centers.params)
    return squares[label, jnp.arange(len(label))] / jnp.maximum(length[label], 1e-30)
