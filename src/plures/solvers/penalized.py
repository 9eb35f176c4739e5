"""Personal models held near a shared one, for any loss: the solution by Newton's method on all models together.

    min  sum_i p_i ( L_i(w_i) + (lam_i / 2) |w_g - w_i|^2 )                                                  (P)

With g_i and H_i the gradient and the Hessian of L_i at w_i, and u_i = w_i - w_g, a Newton step moves w_g by d and
makes the offsets u_i' (both from setting the gradient of (P)'s quadratic model to zero):

    sum_i p_i lam_i (H_i + lam_i)^-1 H_i  d  =  sum_i p_i lam_i (H_i + lam_i)^-1 (H_i u_i - g_i)
    u_i'                                     =  (H_i + lam_i)^-1 (H_i u_i - g_i - H_i d)

so it costs one small system per client and one of their mean. With lam = weight / slack both lines hold for lam = 0
and for lam = inf too. Strengths go side by side; each has its own step length, and those done are left
alone.

The problem is that of Yu, He, Sun, Xue, Li: arXiv 2410.08934; with w_g minimized out it is that of L2GD (Hanzely,
Richtarik: arXiv 2002.05516).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plures.solvers.clients import Clients
from plures.solvers.prox import line_search, rounding
from plures.solvers.quadratic import Balance, PenalizedSolution, Quadratics, checked_lams, checked_weights
from plures.types import Floats

MOST_FLOATS = 1 << 24
"""Numbers that a batch of problems may hold at once: more strengths are solved one batch after the other."""


@dataclass(frozen=True, eq=False)
class Penalized:
    """Problem (P) of ``clients`` with ``weights`` (m,) that sum to 1, equal where none are given."""

    clients: Clients
    weights: Floats | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", checked_weights(self.weights, self.clients.num))

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

    def solve(
        self,
        lams: ArrayLike,
        start: tuple[Floats, Floats] | None = None,
        *,
        tol: float = 1e-10,
        most: int = 100,
    ) -> PenalizedSolution:
        """The solutions at ``lams`` (L,), or (L, m) with one for each client; 0 and infinity are taken exactly.

        From ``start``, a shared model and personal ones, or from zero, until gradients are at most ``tol`` of what they
        were (or of 1). Squared errors are solved by ``Quadratics``, without steps.

        >>> from plures.solvers.clients import points_as_clients
        >>> Penalized(points_as_clients([[0.0], [3.0]])).solve([2.0]).own[0, :, 0]
        array([1., 2.])
        """
        given, each = checked_lams(lams, self.num)
        if self.clients.loss.name == "least_squares":
            return Quadratics.from_clients(self.clients, self.shares).path(given)
        shared, off = self._started(start, len(each))
        steps, left = 0, 0.0
        for some in np.array_split(np.arange(len(each)), self._num_batches(len(each))):
            batch = _Batch.of(self.clients, self.shares, each[some])
            shared[some], off[some], made, most_left = _newton(batch, shared[some], off[some], tol, most)
            steps, left = max(steps, made), max(left, most_left)
        return PenalizedSolution(given, shared, shared[:, None] + off, steps, left)

    def _started(self, start: tuple[Floats, Floats] | None, number: int) -> tuple[Floats, Floats]:
        """(B, d) shared models and (B, m, d) offsets of all strengths."""
        if start is None:
            return np.zeros((number, self.dim)), np.zeros((number, self.num, self.dim))
        shared = np.asarray(start[0], float).reshape(-1, self.dim)
        off = np.asarray(start[1], float).reshape(-1, self.num, self.dim) - shared[:, None]
        times = (number // len(shared), 1)
        return np.tile(shared, times), np.tile(off, (*times, 1))

    def _num_batches(self, number: int) -> int:
        rows, width = self.clients.a.shape[1:]
        size = self.num * (2 * rows * (width + self.clients.loss.num_outputs**2) + 4 * self.dim**2)
        return min(number, -(-number * size // MOST_FLOATS))


@dataclass(frozen=True, eq=False)
class _Batch:
    """Problems side by side, of strengths (B, m): all clients, and the clients of all problems one after the other."""

    everyone: Clients
    weights: Floats
    lams: Floats
    clients: Clients
    side: Balance

    @classmethod
    def of(cls, everyone: Clients, weights: Floats, lams: Floats) -> _Batch:
        index = np.tile(np.arange(everyone.num), len(lams))
        some = everyone if len(lams) == 1 else everyone.take(index)
        return cls(everyone, weights, lams, some, Balance.of(lams))

    def take(self, keep: np.ndarray) -> _Batch:
        return _Batch.of(self.everyone, self.weights, self.lams[keep])

    @property
    def finite(self) -> Floats:
        """(B, m, 1) strengths; 0 for the infinite ones, whose offsets are 0."""
        return np.where(np.isinf(self.lams), 0.0, self.lams)[..., None]

    def value(self, shared: Floats, off: Floats) -> Floats:
        """(B,) objectives."""
        own = shared[:, None] + off
        losses = self.clients.value(own.reshape(-1, own.shape[-1])).reshape(own.shape[:2])
        return (losses + 0.5 * (self.finite * off * off).sum(-1)) @ self.weights

    def gradients(self, shared: Floats, off: Floats) -> Floats:
        """(B, m, d) gradients of the losses."""
        own = shared[:, None] + off
        return self.clients.gradient(own.reshape(-1, own.shape[-1])).reshape(own.shape)

    def curvatures(self, shared: Floats, off: Floats) -> Floats:
        """(B, m, d, d) Hessians of the losses."""
        own, dim = shared[:, None] + off, shared.shape[1]
        found = self.clients.curvature(own.reshape(-1, dim))
        place = np.arange(dim)
        # A hair of the curvature's own size keeps it invertible; it changes steps, not where they end.
        found[:, place, place] += 1e-14 * found[:, place, place].max(1, keepdims=True) + 1e-12
        return found.reshape(*own.shape, dim)

    def residuals(self, off: Floats, gradients: Floats) -> Floats:
        """(B,) the largest gradient of a client's model, or of the shared one relative to the largest lam below 1."""
        tied = np.isinf(self.lams)[..., None]
        each = np.abs(np.where(tied, 0.0, gradients + self.finite * off)).max((1, 2))
        proximal = self.side.part[..., None] * off / np.where(tied, 1.0, self.side.slack[..., None])
        whole = np.einsum("m,bmi->bi", self.weights, np.where(tied, -gradients, proximal))
        return np.maximum(each, np.abs(whole).max(1))


def _newton(batch: _Batch, shared: Floats, off: Floats, tol: float, most: int) -> tuple[Floats, Floats, int, float]:
    """Models, offsets, steps and the largest gradient left by Newton steps from shared models (B, d) and offsets (B, m, d), until every problem is done."""
    shared, off = shared.copy(), np.where(np.isinf(batch.lams)[..., None], 0.0, off)
    gradients = batch.gradients(shared, off)
    size, left = 1.0 + np.abs(gradients).max((1, 2)), batch.residuals(off, gradients)
    busy, some, steps = np.arange(len(shared)), batch, 0
    while steps < most:
        keep = left[busy] > tol * size[busy]
        if not keep.any():
            break
        busy, some = (busy, some) if keep.all() else (busy[keep], some.take(keep))
        shared[busy], off[busy], gained = _stepped(some, shared[busy], off[busy], gradients[busy])
        gradients[busy] = some.gradients(shared[busy], off[busy])
        before, left[busy] = left[busy], some.residuals(off[busy], gradients[busy])
        # Values drown in rounding before gradients do: such steps count as long as the gradient shrinks.
        going = gained | (left[busy] <= 0.5 * before)
        busy, some = (busy, some) if going.all() else (busy[going], some.take(going))
        steps += 1
    return shared, off, steps, float(left.max())


def _stepped(batch: _Batch, shared: Floats, off: Floats, gradients: Floats) -> tuple[Floats, Floats, np.ndarray]:
    """Models and offsets after one step of every problem, halved until it gains, and where that is more than rounding."""
    move, turn = _step(batch, batch.curvatures(shared, off), off, gradients)
    value = batch.value(shared, off)
    along = gradients * (move[:, None] + turn) + batch.finite * off * turn

    def ahead(pace: Floats) -> tuple[Floats, Floats]:
        return shared + pace[:, None] * move, off + pace[:, None, None] * turn

    drop = np.einsum("m,bmi->b", batch.weights, along)
    pace, found = line_search(lambda pace: batch.value(*ahead(pace)), value, drop)
    return *ahead(pace), found < value - rounding(value)


def _step(batch: _Batch, curvatures: Floats, off: Floats, gradients: Floats) -> tuple[Floats, Floats]:
    """What Newton's method adds to the shared models (B, d) and to the offsets (B, m, d)."""
    weight, slack = batch.side.weight[..., None], batch.side.slack[..., None]
    systems = slack[..., None] * curvatures + weight[..., None] * np.eye(off.shape[-1])
    wanted = np.matmul(curvatures, off[..., None]) - gradients[..., None]
    found = np.linalg.solve(systems, np.concatenate([curvatures, wanted], axis=-1))
    bent, alone = found[..., :-1], found[..., -1]
    part = batch.weights * batch.side.part
    mean = np.einsum("bm,bmij->bij", part, bent), np.einsum("bm,bmi->bi", part, alone)
    move = np.linalg.solve(mean[0], mean[1][..., None])
    ahead = slack * (alone - np.matmul(bent, move[:, None])[..., 0])
    return move[..., 0], ahead - off
