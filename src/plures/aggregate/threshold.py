"""Threshold-Clustering: a damped step from a center towards the mean of the points in its ball, repeated.

    S_l      =  { j : |z_j - v_(l-1)| <= tau }
    v_l      =  sum_(j in S) a_j z_j  +  (1 - sum_(j in S) a_j) v_(l-1)          a_j = 1/N, or given weights

A point outside the ball has no influence at all: the center takes its place. While S stays the same, v_l comes
nearer to its mean by the factor 1 - |S|/N a round. Every center is a convex combination of the points and of its
start; the coefficients are the *collaboration weights*.

Werner, He, Jordan, Jaggi, Karimireddy: Provably Personalized and Robust Federated Learning, arXiv 2306.08393.
Weights, and the end by ``tol``, are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.points import as_given, combine, counted, distances_to, squared_distances
from plures.aggregate.radius import Quantile, Radius, as_radius
from plures.errors import require, require_choice, require_least
from plures.types import Tree

PATHS = ("auto", "direct", "gram")


class Clustered(NamedTuple):
    """Centers and how they came about; C centers, N points.

    ``weights`` are the collaboration weights: centers = weights @ points + rest * start, every row adds up to 1.
    ``rest`` is what is left of a given start, 0 for centers that started at points of their own. ``kept`` and
    ``radius`` are those of the last round; ``converged`` is false where ``max_iter`` rounds were not enough.
    """

    centers: Tree
    weights: Array  # (C, N)
    rest: Array  # (C,)
    kept: Array  # (C, N)
    radius: Array  # (C,)
    iterations: Array  # (C,)
    converged: Array  # (C,)


class _Sample(NamedTuple):
    """The points, cleaned, and after them the given starts, which are never kept."""

    points: Tree  # (N, ...)
    rows: Tree  # (R, ...), R = N + number of given starts
    counts: Array  # (N,)
    share: Array  # (N,) a_j, zero for points that do not count
    number: Array  # how many points have a weight above 0


class _Limits(NamedTuple):
    """What a center keeps, and when it ends."""

    rule: Radius
    max_iter: int
    tol: float


class _State(NamedTuple):
    """One center on its way."""

    center: Tree  # nothing on the Gram path
    weights: Array  # (R,)
    kept: Array  # (N,)
    radius: Array
    iterations: Array
    change: Array


Measure: TypeAlias = Callable[[_State], Array]


def threshold_clustering(
    points: Tree,
    centers: Tree | None = None,
    *,
    radius: Radius | float | str = Quantile(q=0.2, at_least=2),
    weights: Array | None = None,
    max_iter: int = 100,
    tol: float = 1e-6,
    path: str = "auto",
) -> Clustered:
    """Centers of the balls that the given centers (default: every point) move into.

    ``radius`` is a rule, a number or a text ("quantile:q=0.25"). A point of weight 0 does not count at all. One
    that is not finite counts as outside every ball: it slows centers down, and never moves them. A start that does
    not count or is not finite is replaced by the mean of the points that count.

    A center ends when its collaboration weights move by ``tol`` in sum or less, that is, when it moves by at most
    ``tol`` times the distances it looks at; ``tol=0`` and ``max_iter=M`` are exactly M rounds.

    The *direct* path computes distances in the space of points, O(C N d) a round. The *gram* path computes the
    distances of all pairs once, O(N^2 d), and works on collaboration weights, O(C N^2) a round whatever the
    dimension. Both are the same but for rounding; "auto" is direct for one center, else gram.
    """
    rule = as_radius(radius)
    require_least(1, max_iter=max_iter)
    require(tol >= 0, "tol", tol, "0 or more")
    require_choice("path", path, PATHS)
    sample, begin = _prepare(points, centers, weights)
    direct = path == "direct" or (path == "auto" and len(begin) == 1)
    end = (_directly if direct else _by_gram)(sample, begin, _Limits(rule, max_iter, tol))
    size = len(sample.counts)
    weights, rest = end.weights[:, :size], end.weights[:, size:].sum(1)
    center = as_given(end.center, points)
    return Clustered(center, weights, rest, end.kept, end.radius, end.iterations, end.change <= tol)


def _prepare(points: Tree, centers: Tree | None, weights: Array | None) -> tuple[_Sample, Array]:
    """The cleaned sample, and the (C, R) weights that centers begin with."""
    size = jax.tree.leaves(points)[0].shape[0]
    given = jnp.ones(size) if weights is None else jnp.asarray(weights, jnp.float32)
    counts, clean = counted(points, given)
    share = jnp.where(counts, given / jnp.maximum(given.sum(), 1e-30), 0.0)
    middle = share / jnp.maximum(share.sum(), 1e-30)
    number = (given > 0).sum()
    if centers is None:
        begin = jnp.where(counts[:, None], jnp.eye(size, dtype=share.dtype), middle)
        return _Sample(clean, clean, counts, share, number), begin
    fine, starts = counted(centers, jnp.ones(jax.tree.leaves(centers)[0].shape[0]))
    rows = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), clean, starts)
    # With no point that counts there is no mean: such a center stays where its row of zeros is.
    replace = fine | (share.sum() == 0)
    own = jnp.concatenate(
        [jnp.zeros((len(fine), size), share.dtype), jnp.eye(len(fine), dtype=share.dtype)], axis=1
    )
    begin = jnp.where(replace[:, None], own, jnp.concatenate([middle, jnp.zeros(len(fine))]))
    return _Sample(clean, rows, counts, share, number), begin


def _directly(sample: _Sample, begin: Array, limits: _Limits) -> _State:
    """Center after center, in the space of points."""

    def measure(state: _State) -> Array:
        return distances_to(state.center, sample.points)

    def one(weights: Array) -> _State:
        return _settle(sample, weights, combine(weights, sample.rows), measure, limits)

    return jax.lax.map(one, begin)


def _by_gram(sample: _Sample, begin: Array, limits: _Limits) -> _State:
    """All centers at once, in the space of weights: for weights w of sum 1 and P the squared distances of pairs,

    |z_j - v|^2  =  (P w)_j - w'P w / 2.
    """
    extra = jnp.ones(begin.shape[1] - len(sample.counts), bool)
    pairs = squared_distances(sample.rows, jnp.concatenate([sample.counts, extra]))
    exact = jax.lax.Precision.HIGHEST

    def measure(state: _State) -> Array:
        mixed = jnp.matmul(state.weights, pairs, precision=exact)
        squares = mixed - 0.5 * (mixed * state.weights).sum()
        return jnp.sqrt(jnp.maximum(squares[: len(sample.counts)], 0.0))

    end = jax.vmap(lambda weights: _settle(sample, weights, None, measure, limits))(begin)
    return end._replace(center=combine(end.weights, sample.rows))


def _settle(sample: _Sample, begin: Array, center: Tree, measure: Measure, limits: _Limits) -> _State:
    """One center after its last round."""
    padding = len(begin) - len(sample.counts)

    def goes_on(state: _State) -> Array:
        return (state.iterations < limits.max_iter) & (state.change > limits.tol)

    def step(state: _State) -> _State:
        kept, radius = limits.rule.keep(measure(state), sample.counts, sample.number)
        own = jnp.where(kept, sample.share, 0.0)
        left = jnp.maximum(1.0 - own.sum(), 0.0)
        weights = jnp.pad(own, (0, padding)) + left * state.weights
        moved = None if center is None else tree.step(combine(own, sample.points), left, state.center)
        change = jnp.abs(weights - state.weights).sum()
        return _State(moved, weights, kept, radius.astype(jnp.float32), state.iterations + 1, change)

    nobody = jnp.zeros(len(sample.counts), bool)
    none = jnp.zeros((), jnp.float32)
    first = _State(center, begin, nobody, none, jnp.zeros((), jnp.int32), none + jnp.inf)
    return jax.lax.while_loop(goes_on, step, first)
