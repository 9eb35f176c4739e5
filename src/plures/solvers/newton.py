"""Newton's method for one model per group, exact or with norms rounded off.

    sum_k F_k(w_k)  +  alpha sum_e W_e sqrt(|w_head - w_tail|^2 + eps^2)

With eps = 0 this is the problem itself, smooth as long as no two models meet. With eps > 0 it is smooth everywhere, and
u_e = alpha W_e (w_head - w_tail) / sqrt(...) are duals that are strictly allowed: as eps shrinks, so does the gap
that they certify, and it shows who is fused, for any number of clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse.linalg import splu

from plures.solvers.graph import Graph, Ints
from plures.solvers.partition import Reduced
from plures.types import Floats

DENSE, MOST_DENSE = 600, 6_000
"""Up to so many unknowns the Newton system is solved as a full matrix; where it has few zeros, up to the second."""

MOST_STEPS = 60


@dataclass(frozen=True, eq=False)
class Centered:
    """Models (K, dim), duals between groups (edges, dim), how far the gradient is from zero, and the steps made.

    ``met`` names the edges whose ends met on the way: the exact problem has a kink there.
    """

    w: Floats
    u: Floats
    residual: float
    steps: int
    met: Ints


def centered(
    problem: Reduced,
    start: Floats,
    *,
    eps: float = 0.0,
    tol: float = 1e-13,
    most: int = MOST_STEPS,
    careful: bool = True,
) -> Centered:
    """The models at which the gradient is at most ``tol`` of its parts, or (if ``careful``) where two of them come near."""
    now = _at(problem, start, eps)
    size = max(float(np.abs(start).max()), 1.0)
    count, met = 0, np.empty(0, np.int64)
    while count < most and not (now.residual <= tol * _scale(now) or len(met)):
        ahead = _searched(problem, now, -_solved(problem, now), eps)
        if ahead is None:
            break
        before, now, count = now.norms, ahead, count + 1
        if eps == 0.0 and careful:
            near = (now.norms < 1e-3 * before) & (now.norms < 1e-2 * size) | (now.norms <= 1e-9 * size)
            met = np.flatnonzero(near)
    return Centered(now.w, now.u, now.residual, count, met)


class _Here(NamedTuple):
    """All that is known at some models; ``curvature`` is that of the losses."""

    w: Floats
    gaps: Floats
    norms: Floats
    u: Floats
    value: float
    gradient: Floats
    curvature: Floats

    @property
    def residual(self) -> float:
        """The largest number of the gradient."""
        return float(np.abs(self.gradient).max())


def _at(problem: Reduced, w: Floats, eps: float) -> _Here:
    (value, gradient, curvature), ties = problem.groups.expand(w), problem.ties
    gaps = ties.gaps(w)
    norms = np.sqrt(np.einsum("ed,ed->e", gaps, gaps) + eps * eps)
    u = (problem.alpha * ties.weight / np.maximum(norms, 1e-300))[:, None] * gaps
    value += problem.alpha * float(ties.weight @ norms)
    return _Here(w, gaps, norms, u, value, gradient + ties.outflow(u), curvature)


def _scale(here: _Here) -> float:
    """The size of what cancels in the gradient: curvature times models, and what groups push with."""
    steep = float(here.curvature.diagonal(axis1=1, axis2=2).max())
    return max(steep * float(np.abs(here.w).max()), float(np.abs(here.u).max(initial=0.0)), steep * 1e-3, 1e-300)


def _searched(problem: Reduced, here: _Here, step: Floats, eps: float) -> _Here | None:
    """Where the first of the steps 1, 1/2, 1/4 .. leads that gains a fair part of what the gradient promises.

    Near the end values drown in rounding: the full step is then taken as long as the gradient shrinks.
    """
    drop = float(np.vdot(here.gradient, step))
    pace = 1.0
    for _ in range(40):
        ahead = _at(problem, here.w + pace * step, eps)
        if ahead.value <= here.value + 1e-4 * pace * drop:
            return ahead
        if -drop < 1e-10 * abs(here.value):
            return ahead if ahead.residual < 0.9 * here.residual else None
        pace *= 0.5
    return None


def _solved(problem: Reduced, here: _Here) -> Floats:
    """The Newton step for the gradient, as (K, dim)."""
    ties, gradient, dim = problem.ties, here.gradient, here.gradient.shape[1]
    far = np.maximum(here.norms, 1e-300)
    unit = here.gaps / far[:, None]
    blocks = (problem.alpha * ties.weight / far)[:, None, None] * (
        np.eye(dim) - unit[:, :, None] * unit[:, None, :]
    )
    own = (ties.touching @ blocks.reshape(len(ties), dim * dim)).reshape(here.curvature.shape)
    filled = (len(gradient) + 2 * len(ties)) * dim * dim > 0.1 * gradient.size**2
    solver = _dense if gradient.size <= (MOST_DENSE if filled else DENSE) else _sparse
    return solver(ties, here.curvature + own, blocks, gradient)


def _dense(ties: Graph, diagonal: Floats, blocks: Floats, gradient: Floats) -> Floats:
    number, dim = gradient.shape
    whole = np.zeros((number, dim, number, dim))
    whole[np.arange(number), :, np.arange(number), :] = diagonal
    whole[ties.head, :, ties.tail, :] = -blocks
    whole[ties.tail, :, ties.head, :] = -blocks
    matrix = whole.reshape(number * dim, number * dim)
    try:
        factor = cho_factor(matrix, check_finite=False, overwrite_a=False)
        return cho_solve(factor, gradient.reshape(-1), check_finite=False).reshape(number, dim)
    except LinAlgError:
        matrix = matrix + 1e-10 * np.trace(matrix) / len(matrix) * np.eye(len(matrix))
        return np.linalg.lstsq(matrix, gradient.reshape(-1), rcond=None)[0].reshape(number, dim)


def _sparse(ties: Graph, diagonal: Floats, blocks: Floats, gradient: Floats) -> Floats:
    number, dim = gradient.shape
    rows = np.concatenate([np.arange(number), ties.head, ties.tail])
    columns = np.concatenate([np.arange(number), ties.tail, ties.head])
    order = sparse.coo_array((np.arange(1, len(rows) + 1), (rows, columns)), shape=(number, number)).tocsr()
    values = np.concatenate([diagonal, -blocks, -blocks])[order.data - 1]
    matrix = sparse.bsr_array((values, order.indices, order.indptr), shape=(number * dim, number * dim)).tocsc()
    factor = splu(matrix, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}, diag_pivot_thresh=0.0)
    return factor.solve(gradient.reshape(-1)).reshape(number, dim)
