"""Personal models held near a shared one, for any loss: the solution by Newton's method on all models together.

    min  sum_i p_i ( L_i(w_i) + (lam_i / 2) |w_g - w_i|^2 )                                                  (P)

With g_i and H_i the gradient and the Hessian of L_i at w_i, and u_i = w_i - w_g, a Newton step moves w_g by d and
makes the offsets u_i' (both from setting the gradient of (P)'s quadratic model to zero):

    sum_i p_i lam_i (H_i + lam_i)^-1 H_i  d  =  sum_i p_i lam_i (H_i + lam_i)^-1 (H_i u_i - g_i)
    u_i'                                     =  (H_i + lam_i)^-1 (H_i u_i - g_i - H_i d)

so it costs one small system per client and one of their mean. With lam = pull / slack both lines hold for lam = 0
and for lam = inf too. Strengths and problems go side by side; each has its own step length, and those done are left
alone.

The problem is that of Yu, He, Sun, Xue, Li: arXiv 2410.08934; with w_g minimized out it is that of L2GD (Hanzely,
Richtarik: arXiv 2002.05516).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from plures.envelope import Bounds
from plures.errors import BadData, BadValue, Unsupported
from plures.solvers.clients import Clients
from plures.solvers.links import Floats
from plures.solvers.prox import own_best
from plures.solvers.quadratic import (
    FLAT,
    Balance,
    Quadratics,
    Solved,
    beside,
    checked_lams,
    checked_weights,
    penalty,
)

MOST_FLOATS = 1 << 24
"""Numbers that a batch of problems may hold at once: more strengths are solved one batch after the other."""


class Optimality(NamedTuple):
    """``slope``: the norm of (P)'s gradient; ``apart``: |w_g - the mean of the w_i|, with weights p_i lam_i."""

    slope: Floats
    apart: Floats


@dataclass(frozen=True, eq=False)
class Penalized:
    """Problem (P) of ``clients`` with ``weights`` (m,) that sum to 1, equal where none are given.

    With ``num_problems`` the clients of as many problems, seeds say, lie one after the other, and models have an axis
    for them: shared (S, d), own (S, m, d).
    """

    clients: Clients
    weights: Floats | None = None
    num_problems: int | None = None

    def __post_init__(self) -> None:
        number = 1 if self.num_problems is None else self.num_problems
        if number < 1 or self.clients.num % number:
            raise BadValue("num_problems", number, f"a divisor of the number of clients, {self.clients.num}")
        object.__setattr__(self, "weights", checked_weights(self.weights, self.clients.num // number))

    @property
    def shares(self) -> Floats:
        """(m,) weights."""
        assert self.weights is not None
        return self.weights

    @property
    def num(self) -> int:
        """How many clients a problem has."""
        return len(self.shares)

    @property
    def dim(self) -> int:
        """Numbers in a model."""
        return self.clients.dim

    def value(self, shared: Floats, own: Floats, lam: ArrayLike) -> Floats:
        """The objective: at a number ``lam``, or at those of a path and its models."""
        losses = self._each(own).value(own.reshape(-1, self.dim)).reshape(own.shape[:-1])
        return (losses + penalty(shared, own, lam)) @ self.shares

    def slopes(self, own: Floats) -> Floats:
        """Gradients of the losses, of the shape of ``own``."""
        return self._each(own).slope(own.reshape(-1, self.dim)).reshape(own.shape)

    def optimality(self, shared: Floats, own: Floats, lam: ArrayLike) -> Optimality:
        """How far models are from the solution; clients of an infinite lam count as one with the shared model."""
        strong = np.broadcast_to(beside(lam, own[..., 0]), own.shape[:-1])[..., None]
        tied, slopes, off = np.isinf(strong), self.slopes(own), own - shared[..., None, :]
        pulls = np.where(tied, 0.0, strong) * off
        each = np.where(tied, 0.0, slopes + pulls) * self.shares[:, None]
        whole = (np.where(tied, slopes, -pulls) * self.shares[:, None]).sum(-2)
        part = self.shares * _parts(strong[..., 0])
        mean = (part[..., None] * own).sum(-2) / part.sum(-1, keepdims=True)
        size = np.sqrt(np.square(each).sum((-1, -2)) + np.square(whole).sum(-1))
        return Optimality(size, np.linalg.norm(shared - mean, axis=-1))

    def solve(
        self,
        lams: ArrayLike,
        start: tuple[Floats, Floats] | None = None,
        *,
        tol: float = 1e-10,
        most: int = 100,
    ) -> Solved:
        """The solutions at ``lams`` (L,), or (L, m) with one for each client; 0 and infinity are taken exactly.

        From ``start``, a shared model and personal ones, or from zero, until slopes are at most ``tol`` of what they
        were (or of 1). Squared errors are solved by ``Quadratics``, without steps.

        >>> from plures.solvers.clients import points_as_clients
        >>> Penalized(points_as_clients([[0.0], [3.0]])).solve([2.0]).own[0, :, 0]
        array([1., 2.])
        """
        given, each = checked_lams(lams, self.num)
        if self.clients.link.name == "least_squares":
            exact = Quadratics.from_clients(self.clients, self.shares, num_problems=self.num_problems)
            return exact.path(given)
        number = self.num_problems or 1
        shared, off = self._started(start, len(each) * number)
        lam = np.repeat(each, number, axis=0)
        index = np.tile(np.arange(self.clients.num).reshape(number, -1), (len(each), 1))
        steps, left = 0, 0.0
        for some in np.array_split(np.arange(len(lam)), self._num_batches(len(lam))):
            batch = _Batch.of(self.clients, self.shares, index[some], lam[some])
            found = _newton(batch, shared[some], off[some], tol, most)
            shared[some], off[some] = found.shared, found.off
            steps, left = max(steps, found.steps), max(left, found.residual)
        lead = (len(each),) if self.num_problems is None else (len(each), number)
        own = (shared[:, None] + off).reshape(*lead, self.num, self.dim)
        return Solved(given, shared.reshape(*lead, self.dim), own, steps, left)

    def _each(self, own: Floats) -> Clients:
        """The clients once for every model in ``own`` (..., m, d)."""
        times = own.size // (self.clients.num * self.dim)
        return self.clients if times == 1 else self.clients.take(np.tile(np.arange(self.clients.num), times))

    def _started(self, start: tuple[Floats, Floats] | None, number: int) -> tuple[Floats, Floats]:
        """(B, d) shared models and (B, m, d) offsets of all strengths and problems."""
        if start is None:
            return np.zeros((number, self.dim)), np.zeros((number, self.num, self.dim))
        shared = np.asarray(start[0], float).reshape(-1, self.dim)
        off = np.asarray(start[1], float).reshape(-1, self.num, self.dim) - shared[:, None]
        times = (number // len(shared), 1)
        return np.tile(shared, times), np.tile(off, (*times, 1))

    def _num_batches(self, number: int) -> int:
        rows, width = self.clients.a.shape[1:]
        size = self.num * (2 * rows * (width + self.clients.link.num_outputs**2) + 4 * self.dim**2)
        return min(number, -(-number * size // MOST_FLOATS))


def curvature_bounds(clients: Clients, at: Floats | None = None) -> Bounds:
    """mu and L over all clients: what steps and rounds of gradient methods go by.

    L holds everywhere: the loss's steepest bend times the largest eigenvalue of a client's rows. mu is the least
    eigenvalue of the Hessians ``at`` (N, dim) models, by default the clients' own minimizers, and so the rate near
    the end.

    >>> from plures.solvers.clients import as_clients
    >>> curvature_bounds(as_clients([[[1.0], [3.0]]], [[0.0, 1.0]], loss="least_squares", intercept=False, ridge=0.0))
    Bounds(least=5.0, most=5.0)
    """
    if not np.isfinite(clients.link.steepest):
        raise Unsupported(
            f"the curvature of {clients.link.name} has no bound, so no step fits all models; the exact solver needs none"
        )
    models = own_best(clients, np.zeros((clients.num, clients.dim))).x if at is None else at
    least = np.linalg.eigvalsh(clients.curve(models))[:, 0]
    flat = least <= FLAT * clients.lipschitz
    if flat.any():
        raise BadData(
            f"the loss of client {int(np.argmax(flat))} is not strongly convex: its least curvature is "
            f"{max(least[flat][0], 0.0):.3g}; a ridge would do"
        )
    return Bounds(float(least.min()), float(clients.lipschitz.max()))


def _parts(lams: Floats) -> Floats:
    """(..., m) weights of the mean that the shared model is: lam over the largest, so that infinite ones count alone."""
    top = lams.max(-1, keepdims=True)
    finite = np.where(np.isfinite(top) & (top > 0), top, 1.0)
    return np.where(np.isinf(top), np.isinf(lams), np.where(top > 0, np.minimum(lams, finite) / finite, 1.0))


@dataclass(frozen=True, eq=False)
class _Batch:
    """Problems side by side: ``index`` (B, m) of their clients among all, those clients, and strengths (B, m)."""

    everyone: Clients
    weights: Floats
    index: np.ndarray
    lams: Floats
    clients: Clients
    side: Balance

    @classmethod
    def of(cls, everyone: Clients, weights: Floats, index: np.ndarray, lams: Floats) -> _Batch:
        flat = index.reshape(-1)
        some = everyone if np.array_equal(flat, np.arange(everyone.num)) else everyone.take(flat)
        return cls(everyone, weights, index, lams, some, Balance.of(lams))

    def take(self, keep: np.ndarray) -> _Batch:
        return _Batch.of(self.everyone, self.weights, self.index[keep], self.lams[keep])

    @property
    def finite(self) -> Floats:
        """(B, m, 1) strengths; 0 for the infinite ones, whose offsets are 0."""
        return np.where(np.isinf(self.lams), 0.0, self.lams)[..., None]

    def value(self, shared: Floats, off: Floats) -> Floats:
        """(B,) objectives."""
        own = shared[:, None] + off
        losses = self.clients.value(own.reshape(-1, own.shape[-1])).reshape(own.shape[:2])
        return (losses + 0.5 * (self.finite * off * off).sum(-1)) @ self.weights

    def slopes(self, shared: Floats, off: Floats) -> Floats:
        """(B, m, d) gradients of the losses."""
        own = shared[:, None] + off
        return self.clients.slope(own.reshape(-1, own.shape[-1])).reshape(own.shape)

    def curves(self, shared: Floats, off: Floats) -> Floats:
        """(B, m, d, d) Hessians of the losses."""
        own, dim = shared[:, None] + off, shared.shape[1]
        found = self.clients.curve(own.reshape(-1, dim))
        place = np.arange(dim)
        # A hair of the curvature's own size keeps it invertible; it changes steps, not where they end.
        found[:, place, place] += 1e-14 * found[:, place, place].max(1, keepdims=True) + 1e-12
        return found.reshape(*own.shape, dim)

    def residuals(self, off: Floats, slopes: Floats) -> Floats:
        """(B,) the largest slope of a client's model, or of the shared one relative to the largest lam below 1."""
        tied = np.isinf(self.lams)[..., None]
        each = np.abs(np.where(tied, 0.0, slopes + self.finite * off)).max((1, 2))
        pulls = self.side.part[..., None] * off / np.where(tied, 1.0, self.side.slack[..., None])
        whole = np.einsum("m,bmi->bi", self.weights, np.where(tied, -slopes, pulls))
        return np.maximum(each, np.abs(whole).max(1))


@dataclass(frozen=True, eq=False)
class _Found:
    shared: Floats
    off: Floats
    steps: int
    residual: float


def _newton(batch: _Batch, shared: Floats, off: Floats, tol: float, most: int) -> _Found:
    """Newton steps from shared models (B, d) and offsets (B, m, d), until every problem is done."""
    shared, off = shared.copy(), np.where(np.isinf(batch.lams)[..., None], 0.0, off)
    slopes = batch.slopes(shared, off)
    size, left = 1.0 + np.abs(slopes).max((1, 2)), batch.residuals(off, slopes)
    busy, some, steps = np.arange(len(shared)), batch, 0
    while steps < most:
        keep = left[busy] > tol * size[busy]
        if not keep.any():
            break
        busy, some = (busy, some) if keep.all() else (busy[keep], some.take(keep))
        moved = _stepped(some, shared[busy], off[busy], slopes[busy])
        shared[busy], off[busy] = moved.shared, moved.off
        slopes[busy] = some.slopes(moved.shared, moved.off)
        before, left[busy] = left[busy], some.residuals(moved.off, slopes[busy])
        # Values drown in rounding before slopes do: such steps count as long as the slope shrinks.
        going = moved.gained | (left[busy] <= 0.5 * before)
        busy, some = (busy, some) if going.all() else (busy[going], some.take(going))
        steps += 1
    return _Found(shared, off, steps, float(left.max()))


@dataclass(frozen=True, eq=False)
class _Moved:
    shared: Floats
    off: Floats
    gained: np.ndarray


def _stepped(batch: _Batch, shared: Floats, off: Floats, slopes: Floats) -> _Moved:
    """One step of every problem, halved until it gains; ``gained`` is false where that is less than rounding."""
    move, turn = _step(batch, batch.curves(shared, off), off, slopes)
    value = batch.value(shared, off)
    along = slopes * (move[:, None] + turn) + batch.finite * off * turn
    drop = np.einsum("m,bmi->b", batch.weights, along)
    slack = 1e-14 * (1.0 + np.abs(value))
    pace = np.ones(len(value))
    for _ in range(50):
        found = batch.value(shared + pace[:, None] * move, off + pace[:, None, None] * turn)
        short = ~(found <= value + 1e-4 * pace * drop + slack)
        if not short.any():
            break
        pace = np.where(short, 0.5 * pace, pace)
    pace = np.where(short, 0.0, pace)
    return _Moved(shared + pace[:, None] * move, off + pace[:, None, None] * turn, found < value - slack)


def _step(batch: _Batch, curves: Floats, off: Floats, slopes: Floats) -> tuple[Floats, Floats]:
    """What Newton's method adds to the shared models (B, d) and to the offsets (B, m, d)."""
    pull, slack = batch.side.pull[..., None], batch.side.slack[..., None]
    systems = slack[..., None] * curves + pull[..., None] * np.eye(off.shape[-1])
    wanted = np.matmul(curves, off[..., None]) - slopes[..., None]
    found = np.linalg.solve(systems, np.concatenate([curves, wanted], axis=-1))
    bent, alone = found[..., :-1], found[..., -1]
    part = batch.weights * batch.side.part
    mean = np.einsum("bm,bmij->bij", part, bent), np.einsum("bm,bmi->bi", part, alone)
    move = np.linalg.solve(mean[0], mean[1][..., None])
    ahead = slack * (alone - np.matmul(bent, move[:, None])[..., 0])
    return move[..., 0], ahead - off
