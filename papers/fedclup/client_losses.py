"""The clients' losses as the algorithms see them: gradients, steps, the exact solution, and how curved they are.

For quadratic losses K steps are one formula: along an eigenvector of curvature s they move a model by
(1 - (1 - alpha (s + lam))^K) / (s + lam) times its gradient, so that any K costs the same. Other losses are iterated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from plures.errors import BadData, Unsupported
from plures.moreau import Bounds
from plures.solvers.clients import Clients
from plures.solvers.penalized import Penalized
from plures.solvers.prox import own_best
from plures.solvers.quadratic import FLAT, PenalizedSolution, Quadratics
from plures.types import Floats


class ClientLosses(Protocol):
    """What rounds need of clients."""

    @property
    def weights(self) -> Floats:
        """How much each client counts."""
        ...

    @property
    def dim(self) -> int:
        """The number of coefficients of a model."""
        ...

    @property
    def bounds(self) -> Bounds:
        """The least and the largest curvature over all clients."""
        ...

    def solve(self, lam: float) -> PenalizedSolution:
        """The exact solution of (P)."""
        ...

    def gradients(self, own: Floats) -> Floats:
        """Every client's gradient at its own model."""
        ...

    def descend(self, own: Floats, center: Floats, lam: float, alpha: float, number: float) -> Floats:
        """Models after so many steps down L_i + lam / 2 |. - center|^2; after infinitely many, the prox."""


@dataclass(frozen=True, eq=False)
class _QuadraticLosses:
    """Quadratic losses: any number of steps is one formula."""

    problem: Quadratics

    @property
    def weights(self) -> Floats:
        return self.problem.weights

    @property
    def dim(self) -> int:
        return self.problem.dim

    @cached_property
    def bounds(self) -> Bounds:
        values = self.problem.spectrum[0]
        flat = values[:, 0] <= FLAT * values[:, -1]
        if flat.any():
            raise BadData(
                f"the loss of client {int(np.argmax(flat))} is not strongly convex (its matrix is singular): a ridge would do"
            )
        return Bounds(float(values.min()), float(values.max()))

    def solve(self, lam: float) -> PenalizedSolution:
        return self.problem.path([lam])

    def gradients(self, own: Floats) -> Floats:
        return np.matmul(self.problem.a, own[..., None])[..., 0] - self.problem.b

    def descend(self, own: Floats, center: Floats, lam: float, alpha: float, number: float) -> Floats:
        values, vectors = self.problem.spectrum
        gradients = self.gradients(own) + lam * (own - center)
        along = np.matmul(gradients[:, None], vectors)[:, 0]
        left = 0.0 if np.isinf(number) else (1.0 - alpha * (values + lam)) ** number
        moved = (1.0 - left) / (values + lam) * along
        return own - np.matmul(vectors, moved[..., None])[..., 0]


@dataclass(frozen=True, eq=False)
class _GeneralLosses:
    """Any other losses: steps are iterated."""

    problem: Penalized

    @property
    def weights(self) -> Floats:
        return self.problem.shares

    @property
    def dim(self) -> int:
        return self.problem.dim

    @cached_property
    def bounds(self) -> Bounds:
        return curvature_bounds(self.problem.clients)

    def solve(self, lam: float) -> PenalizedSolution:
        return self.problem.solve([lam])

    def gradients(self, own: Floats) -> Floats:
        return self.problem.clients.gradient(own)

    def descend(self, own: Floats, center: Floats, lam: float, alpha: float, number: float) -> Floats:
        centers = np.broadcast_to(center, own.shape)
        if np.isinf(number):
            return own_best(self.problem.clients, own, omega=lam, center=centers, tol=1e-13).x
        for _ in range(int(number)):
            own = own - alpha * (self.gradients(own) + lam * (own - centers))
        return own


def curvature_bounds(clients: Clients, at: Floats | None = None) -> Bounds:
    """mu and L over all clients: what steps and rounds of gradient methods go by.

    L holds everywhere: the loss's steepest curvature times the largest eigenvalue of a client's rows. mu is the least
    eigenvalue of the Hessians ``at`` (N, dim) models, by default the clients' own minimizers, and so the rate near
    the end.

    >>> from plures.solvers.clients import as_clients
    >>> curvature_bounds(as_clients([[[1.0], [3.0]]], [[0.0, 1.0]], loss="least_squares", intercept=False, ridge=0.0))
    Bounds(least=5.0, most=5.0)
    """
    if not np.isfinite(clients.loss.steepest):
        raise Unsupported(
            f"the curvature of {clients.loss.name} has no bound, so no step fits all models; the exact solver needs none"
        )
    models = own_best(clients, np.zeros((clients.num, clients.dim))).x if at is None else at
    least = np.linalg.eigvalsh(clients.curvature(models))[:, 0]
    flat = least <= FLAT * clients.lipschitz
    if flat.any():
        raise BadData(
            f"the loss of client {int(np.argmax(flat))} is not strongly convex: its least curvature is "
            f"{max(least[flat][0], 0.0):.3g}; a ridge would do"
        )
    return Bounds(float(least.min()), float(clients.lipschitz.max()))


def losses_of(problem: Quadratics | Penalized) -> ClientLosses:
    """What rounds need of the clients of a problem."""
    if isinstance(problem, Quadratics) and problem.b.ndim > 2:
        raise Unsupported("rounds follow one problem; these are several side by side: take one of them")
    return _QuadraticLosses(problem) if isinstance(problem, Quadratics) else _GeneralLosses(problem)
