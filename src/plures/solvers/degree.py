"""How much to personalize: the strength lam of the penalty from valid rows, and what rows know of models.

    min  sum_i p_i ( L_i(w_i) + (lam / 2) |w_g - w_i|^2 )

The penalty is that of Yu, He, Sun, Xue, Li: arXiv 2410.08934; the rule for lam is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from plures.errors import BadData
from plures.solvers.clients import Clients
from plures.solvers.penalized import Penalized
from plures.solvers.quadratic import PenalizedSolution
from plures.types import Floats

FLAT = 1e-9
"""Curvatures below this share of a client's largest are none."""


@dataclass(frozen=True, eq=False)
class Curvatures:
    """Curvatures ``values`` (N, dim) of losses without their ridges along ``vectors`` (N, dim, dim), and with them.

    ``on`` marks directions that rows curve more than the ridge does: an intercept of a client with one class is not
    among them, nor is a shift of all classes of a multinomial model.
    """

    values: Floats
    ridged: Floats
    vectors: Floats
    on: np.ndarray

    @classmethod
    def of(cls, clients: Clients, models: Floats) -> Curvatures:
        """Of the clients' Hessians at ``models``."""
        ridged, vectors = np.linalg.eigh(clients.curvature(models))
        ridge = np.einsum("nij,i->nj", np.square(vectors), clients.ridge)
        values = np.maximum(ridged - ridge, 0.0)
        return cls(values, np.maximum(ridged, 0.0), vectors, values > np.maximum(ridge, FLAT * ridged[:, -1:]))

    @property
    def known(self) -> np.ndarray:
        """(N,) how many directions rows determine."""
        return np.asarray(self.on.sum(1))

    def inverse(self) -> Floats:
        """(N, dim, dim) inverses of the Hessians, 0 in directions that rows leave open."""
        weights = np.where(self.on, 1.0 / np.where(self.on, self.ridged, 1.0), 0.0)
        return np.asarray(np.matmul(self.vectors * weights[:, None], self.vectors.swapaxes(1, 2)))


def residual_variances(clients: Clients) -> tuple[Floats, Floats]:
    """(m,) variances that clients' rows have around their own least squares, 0 where no row is to spare, and rows to spare."""
    nothing = np.zeros((clients.num, clients.dim))
    rows_only = replace(clients, ridge=np.zeros(clients.dim))
    plain = Curvatures.of(rows_only, nothing)
    best = np.einsum("nij,nj->ni", plain.inverse(), -rows_only.gradient(nothing))
    spare = np.maximum(clients.counts - plain.known, 0.0)
    if not spare.any():
        raise BadData(
            f"no client has more rows ({int(clients.counts.max())} at most) than numbers in its model "
            f"({int(plain.known.max())}), so the noise cannot be told from the signal: more rows, or fewer columns, would do"
        )
    left = np.maximum(2.0 * rows_only.value(best) * clients.counts, 0.0)
    return np.where(spare > 0, left / np.maximum(spare, 1.0), 0.0), spare


def gradient_covariance(clients: Clients, models: Floats) -> Floats:
    """(N, dim, dim) means over rows of gradients times themselves."""
    gradients = clients.loss.gradient(clients.outputs(models), clients.y)
    each = np.einsum("nmi,nmc->nmic", clients.a, gradients).reshape(*clients.a.shape[:2], -1)
    return np.asarray(np.matmul((each * clients.share[..., None]).swapaxes(1, 2), each))


@dataclass(frozen=True, eq=False)
class ValidatedDegree:
    """Losses (L, m) on valid rows of models at ``lams`` (L,), the ``lam`` they are best at, and one for each client."""

    lams: Floats
    losses: Floats
    place: int
    own_places: np.ndarray
    path: PenalizedSolution

    @property
    def lam(self) -> float:
        """The population's choice."""
        return float(self.lams[self.place])

    @property
    def own_lams(self) -> Floats:
        """(m,) the population's choice, but for clients with clear evidence for another."""
        return self.lams[self.own_places]

    @property
    def own_models(self) -> Floats:
        """(m, d) the models of the path at these."""
        return self.path.own[self.own_places, np.arange(len(self.own_places))]


def valid_degree(
    train: Clients,
    valid: Clients,
    lams: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> ValidatedDegree:
    """The lam with the least mean loss on valid rows, of models trained on ``train`` along the exact path.

    A client leaves the population's lam only where the gain on its own valid rows exceeds one standard error.
    Losses that are not quadratic take one lam after the other, from the middle to both sides, until ``enough`` says so.
    """
    if train.num != valid.num or train.dim != valid.dim:
        raise BadData(
            f"valid rows are those of the same clients: {train.num} of {train.dim} numbers trained, "
            f"{valid.num} of {valid.dim} are there"
        )
    shares = None if weights is None else np.asarray(weights, float)
    path = _solve_path(Penalized(train, shares), np.asarray(lams, float), enough)
    rows = row_losses(valid, path.own)  # (L, m, rows)
    losses = np.einsum("lnm,nm->ln", rows, valid.share)
    place = int(np.argmin(losses.mean(1) if shares is None else losses @ shares))
    return ValidatedDegree(path.lams, losses, place, _own_places(rows, valid, losses, place), path)


def _solve_path(problem: Penalized, lams: Floats, enough: Callable[[], bool]) -> PenalizedSolution:
    if problem.clients.loss.name == "least_squares":
        return problem.solve(lams)
    found: dict[int, PenalizedSolution] = {}
    # Places that halve the steps in between: the middle, the quarters, the eighths and so on.
    for place in sorted(range(len(lams)), key=lambda place: -((place + 1) & -(place + 1))):
        near = min(found, key=lambda other: abs(other - place), default=None)
        start = None if near is None else (found[near].shared[0], found[near].own[0])
        found[place] = problem.solve(lams[[place]], start)
        if enough():
            break
    places = sorted(found)
    shared, own = (np.concatenate([getattr(found[one], name) for one in places]) for name in ("shared", "own"))
    return PenalizedSolution(lams[places], shared, own)


def row_losses(clients: Clients, models: Floats) -> Floats:
    """(L, N, rows) losses of rows at models (L, N, dim), without ridges."""
    return np.stack([clients.loss.value(clients.outputs(one), clients.y) for one in models])


def _own_places(rows: Floats, valid: Clients, losses: Floats, place: int) -> np.ndarray:
    """(m,) the best lam of each client where it clearly beats the population's, else that."""
    rival = losses.argmin(0)
    client, counts = np.arange(valid.num), valid.counts
    gains = rows[place] - rows[rival, client]  # (m, rows)
    mean = (gains * valid.share).sum(1)
    off = np.where(valid.share > 0, gains - mean[:, None], 0.0)
    error = np.sqrt(np.square(off).sum(1) / np.maximum(counts - 1, 1) / counts)
    return np.where((mean > error) & (counts > 1), rival, place)
