"""Convex clustering of points on a graph: the proximal map of a sum of norms, which fuses points exactly.

    min_y  1/2 sum_i |y_i - a_i|^2  +  gamma sum_e w_e |y_i - y_j|               e = (i, j)
    max_u  1/2 |a|^2 - 1/2 |a - A'u|^2,   |u_e| <= gamma w_e,   y = a - A'u      (A y)_e = y_i - y_j

by FISTA on the dual with restarts. An edge whose dual lies strictly inside its ball has y_i = y_j; what such edges
connect is a cluster.

Dual ascent for convex clustering: Chi, Lange, arXiv 1304.0499. Restarts: O'Donoghue, Candes:
Adaptive Restart for Accelerated Gradient Schemes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.aggregate.graph import Edges, cluster_means, components, degrees

BLOCK = 10  # steps between two looks at the gap
INSIDE = 1 - 1e-4  # a dual this much shorter than its bound is strictly inside
ROUNDING = 1e-6  # of the largest distance from the mean: points this near are equal as far as float32 can tell
TINY = 1e-30


class Fused(NamedTuple):
    """The clustered points, the duals that prove it, and how well they do.

    ``gap`` bounds how far the objective at ``points`` is above its minimum. ``labels`` is the least number in each
    point's cluster. Points of one cluster are equal to the last bit.
    """

    points: Array  # (N, d)
    duals: Array  # (m, d)
    gap: Array
    labels: Array  # (N,)
    iterations: Array


class _Search(NamedTuple):
    """Where FISTA stands: duals, the point it looks ahead to, its momentum."""

    duals: Array
    ahead: Array
    pace: Array
    gap: Array
    size: Array
    iterations: Array


def fuse(
    points: Array,
    edges: Edges,
    gamma: Array | float,
    *,
    duals: Array | None = None,
    tol: float = 1e-7,
    max_iter: int = 1000,
) -> Fused:
    """Convex clustering of the rows of ``points``, from given ``duals`` or from zero.

    Ends when the gap is at most ``tol`` times the objective, or after ``max_iter`` steps; O(m d) each.
    """
    middle = points.mean(0)
    search = _Problem(points - middle, edges, jnp.asarray(gamma) * edges.weights)
    first = jnp.zeros((len(edges.heads), points.shape[1])) if duals is None else duals
    end = search.solve(first, tol, max_iter)
    found, labels, gap = search.fuse_clusters(end.duals, end.gap)
    return Fused(found + middle, end.duals, gap, labels, end.iterations)


def total_variation(points: Array, edges: Edges) -> Array:
    """sum_e w_e |y_i - y_j|."""
    return (edges.weights * _length(points[edges.heads] - points[edges.tails])).sum()


def consensus_threshold(gradients: Array, edges: Edges, *, tol: float = 1e-4, max_iter: int = 30) -> Array:
    """alpha_hat: the least penalty at which one common model is the answer, from everyone's gradients g_i at it.

    alpha_hat  =  max_v  sum_i <g_i, v_i>  /  sum_e w_e |v_i - v_j|

    Every v gives a lower bound. The first is that of single clients, max |g_i| / degree_i; then v is what convex
    clustering at the last bound makes of the gradients, for which the quotient is that bound + |v|^2 / sum_e w_e
    |v_i - v_j|. Such steps rise quickly to the maximum, where v = 0. What is returned is a lower bound; on graphs
    of neighbors it was seen to be a thousandth too low.
    """
    centered = gradients - gradients.mean(0)
    degree = degrees(edges, len(gradients))
    lower = jnp.where(degree > 0, _length(centered) / jnp.maximum(degree, TINY), 0.0).max()

    def higher(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        bound, duals, _, count = state
        found = fuse(centered, edges, bound, duals=duals, tol=1e-6, max_iter=500)
        rough = total_variation(found.points, edges)
        new = jnp.where(rough > 0, (centered * found.points).sum() / jnp.maximum(rough, TINY), bound)
        return jnp.maximum(new, bound), found.duals, new > bound * (1 + 0.1 * tol), count + 1

    first = (lower, jnp.zeros((len(edges.heads), gradients.shape[1])), lower > 0, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda state: state[2] & (state[3] < max_iter), higher, first)[0]


def _length(rows: Array) -> Array:
    return jnp.sqrt(jnp.square(rows).sum(-1))


def shorten(rows: Array, bounds: Array) -> Array:
    """Rows no longer than their bounds."""
    return rows * jnp.minimum(1.0, bounds / jnp.maximum(_length(rows), TINY))[:, None]


class _Problem(NamedTuple):
    """Centered points, edges and the bound of every dual."""

    points: Array
    edges: Edges
    radius: Array

    def differences(self, points: Array) -> Array:
        """A y: (m, d) the difference of the ends of every edge."""
        return points[self.edges.heads] - points[self.edges.tails]

    def primal(self, duals: Array) -> Array:
        """a - A'u."""
        return self.points.at[self.edges.heads].add(-duals).at[self.edges.tails].add(duals)

    def solve(self, duals: Array, tol: float, max_iter: int) -> _Search:
        """FISTA, until the gap is small enough."""

        def more(state: _Search) -> Array:
            return (state.gap > tol * state.size) & (state.iterations < max_iter)

        def block(state: _Search) -> _Search:
            duals, ahead, pace = jax.lax.fori_loop(0, BLOCK, advance, state[:3])
            return _Search(duals, ahead, pace, *self._gap(duals), state.iterations + BLOCK)

        step = self._step()[:, None]

        def advance(_: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            duals, ahead, pace = state
            new = shorten(ahead + step * self.differences(self.primal(ahead)), self.radius)
            move = new - duals
            # The last step went uphill: forget the momentum.
            restart = ((ahead - new) * move / step).sum() > 0
            faster = jnp.where(restart, 1.0, 0.5 * (1 + jnp.sqrt(1 + 4 * jnp.square(pace))))
            return new, new + jnp.where(restart, 0.0, (pace - 1) / faster) * move, faster

        start = shorten(duals, self.radius)
        one = jnp.ones(())
        return jax.lax.while_loop(
            more, block, _Search(start, start, one, *self._gap(start), jnp.zeros((), jnp.int32))
        )

    def fuse_clusters(self, duals: Array, gap: Array) -> tuple[Array, Array, Array]:
        """The points that the duals stand for with the clusters made exact, their labels, and the gap there.

        Near the end of a path to consensus many duals that will lie inside still touch their balls. So all that is
        near is fused as well, and taken where that is the better solution: the gap tells.
        """
        found = self.primal(duals)
        length = _length(self.differences(found))
        # Points at most this far apart may be one, by what the gap says of their distance from the solution.
        near = (length <= 2 * jnp.sqrt(gap) + self._rounding()) & (self.radius > 0)
        inside = _length(duals) < INSIDE * self.radius
        sure, bold = (self._merge(found, duals, linked) for linked in (near & inside, near))
        better = bold[2] <= sure[2]
        points, labels, left = (jnp.where(better, new, old) for new, old in zip(bold, sure, strict=True))
        return points, labels, left

    def _merge(self, found: Array, duals: Array, linked: Array) -> tuple[Array, Array, Array]:
        """The points with the mean in the place of all that are connected, their labels, and the gap there."""
        labels = components(self.edges, linked, len(found))
        points = cluster_means(found, labels)[0][labels]
        apart = self.differences(points)
        loose = (self.radius * _length(apart) - (duals * apart).sum(-1)).sum()
        return points, labels, 0.5 * jnp.square(points - found).sum() + jnp.maximum(loose, 0.0)

    def _step(self) -> Array:
        """(m,) 1 / L: A A' is at most the diagonal of deg_i + deg_j, and its eigenvalues are at most N."""
        degree = degrees(self.edges, len(self.points), weighted=False)
        both = jnp.maximum(degree[self.edges.heads] + degree[self.edges.tails], 1.0)
        number = float(len(self.points))
        return 1 / jnp.where(both.mean() > number, jnp.full_like(both, number), both)

    def _rounding(self) -> Array:
        return ROUNDING * jnp.sqrt(jnp.square(self.points).sum(-1).max())

    def _gap(self, duals: Array) -> tuple[Array, Array]:
        """P - D and P at y = a - A'u; ends that float32 cannot tell apart are taken as equal."""
        found = self.primal(duals)
        apart = self.differences(found)
        length = _length(apart)
        loose = self.radius * length - (duals * apart).sum(-1)
        gap = jnp.where(length > self._rounding(), jnp.maximum(loose, 0.0), 0.0).sum()
        return gap, 0.5 * jnp.square(found - self.points).sum() + (self.radius * length).sum()
