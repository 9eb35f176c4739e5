"""The strength lam that makes the clients' rows most probable, and what it is predicted to be worth.

Models of clients are taken to scatter around a shared one with variance tau^2 in every direction. Then the
penalized models with lam_i = phi / (n_i tau^2) are the most probable ones, phi being the dispersion of rows, and
with models and the shared model integrated out (restricted likelihood, by Laplace's approximation) the rows have,
but for a constant, the logarithm

    - sum_i n_i / phi ( L_i(w_i) + (lam_i / 2) |w_i - w_g|^2 )  -  sum_i log det(I + H_i / lam_i) / 2  -  log det(T / tau^2) / 2

    M_i = (H_i + lam_i)^-1 H_i,        T = sum_i M_i

exactly for squared errors. A ridge is a prior of its own: H_i has it too, and the same expression of ridges alone
is taken off, so that only rows are evidence. Solutions along a path of lam give all of it, and no client needs a
minimizer of its own. Where it is highest, sum_i |w_i - w_g|^2 / tau^2 is (for squared errors) f = sum_i tr M_i -
sum_i tr(M_i T^-1 M_i), the numbers of evidence: a direction that the rows of one client alone determine says
nothing about how clients differ.

The shrink factor B = lam / (lam + e), e the mean curvature, becomes its posterior mean under the prior 2 / (1 + e /
lam)^3, as in ``degree``; with many clients this is where the likelihood is highest.

Patterson, Thompson, 1971 (restricted likelihood); Daniels, 1999 (priors of shrink factors).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.interpolate import CubicSpline

from plures.errors import BadData
from plures.solvers.clients import Clients
from plures.solvers.degree import Curvatures, dispersion, gradient_covariance
from plures.solvers.path import consensus
from plures.solvers.penalized import Penalized
from plures.types import Floats

REACH, STEPS, FINE = 1e4, 25, 2001
"""Strengths go from 1 / REACH to REACH times the mean curvature, in so many steps; in between it is interpolated."""


@dataclass(frozen=True, eq=False)
class RemlDegree:
    """``lam`` and ``own_lams`` (m,) lam_i ~ 1 / n_i; with 95 % probability lam lies between ``low`` and ``high``.

    ``spread`` is tau^2, ``dispersion`` phi, ``curvature`` e and ``freedom`` f.
    """

    lam: float
    low: float
    high: float
    own_lams: Floats
    spread: float
    dispersion: float
    curvature: float
    freedom: float


def reml_degree(clients: Clients) -> RemlDegree:
    """lam by the likelihood of how far clients' models scatter."""
    if clients.num < 2:
        raise BadData("how clients differ needs two clients or more, got 1; with one there is nothing to share")
    start = consensus(clients).model
    everyone = np.tile(start, (clients.num, 1))
    curvatures = Curvatures.of(clients, everyone)
    curvature, size = _mean_curvature(curvatures), _dispersion(clients, curvatures, everyone)
    inverse = 1.0 / clients.counts
    relative = inverse / inverse.mean()  # lam_i / lam
    steps = curvature * np.geomspace(1.0 / REACH, REACH, STEPS)
    problem = Penalized(clients, clients.counts / clients.counts.sum())
    path = problem.solve(steps[:, None] * relative, start=(start, everyone))
    along = zip(path.own, path.shared, path.lams, strict=True)
    likely = [likelihood(clients, own, shared, lam, size) for own, shared, lam in along]
    low, lam, high = _posterior(steps, np.array(likely), curvature)
    place = int(np.abs(np.log(steps / lam)).argmin())
    freedom = _evidence(clients, path.own[place], lam * relative)
    return RemlDegree(lam, low, high, lam * relative, float(size * inverse.mean() / lam), size, curvature, freedom)


def likelihood(clients: Clients, own: Floats, shared: Floats, lams: Floats, size: float) -> float:
    """The logarithm of how probable the rows are at strengths lam_i (m,), but for a constant."""
    fit = clients.counts / size * (clients.value(own) + 0.5 * lams * np.square(own - shared).sum(1))
    values, vectors = np.linalg.eigh(clients.curvature(own))
    values, strong, ridge = np.maximum(values, 0.0), lams[:, None], clients.ridge
    # Ridges are priors too: what they say by themselves is taken off, so that only rows are evidence.
    volume = np.log((values + strong) / (ridge + strong)).sum()
    weight = (clients.counts * lams / size)[:, None]
    precise = np.matmul(vectors * (weight * values / (values + strong))[:, None], vectors.swapaxes(1, 2)).sum(0)
    center = np.linalg.slogdet(_lifted(precise))[1] - np.log((weight / (ridge + strong)).sum(0)).sum()
    return -float(fit.sum() + 0.5 * (volume + center))


def _mean_curvature(curvatures: Curvatures) -> float:
    if not curvatures.on.any():
        raise BadData("no row of any client curves its loss: there is nothing to learn a strength from")
    return float(curvatures.values[curvatures.on].mean())


def _dispersion(clients: Clients, curvatures: Curvatures, models: Floats) -> float:
    """phi: sigma^2, 1 for likelihoods, and for other losses what the gradients of rows vary over what curvature says."""
    if clients.loss.name in ("huber", "squared_hinge"):
        covariance = gradient_covariance(clients, models)
        return float(np.einsum("nij,nji->", curvatures.inverse(), covariance) / curvatures.known.sum())
    return dispersion(clients)


def _evidence(clients: Clients, models: Floats, lams: Floats) -> float:
    """f: what all clients know together, less what the shared model takes of it."""
    known = knowledge(clients, models, lams)
    total = known.sum(0)
    taken = np.matmul(known, np.linalg.solve(_lifted(total), known))
    return float(max(np.trace(known.sum(0)) - np.trace(taken, axis1=1, axis2=2).sum(), 1e-9))


def knowledge(clients: Clients, models: Floats, lams: Floats) -> Floats:
    """(N, dim, dim) M_i = (H_i + lam_i)^-1 H_i: 1 where a client's rows decide, 0 where the shared model does."""
    curvatures = clients.curvature(models)
    place = np.arange(clients.dim)
    under = curvatures.copy()
    under[:, place, place] += lams[:, None]
    curvatures[:, place, place] -= clients.ridge
    return np.asarray(np.linalg.solve(under, curvatures), float)


def _lifted(matrix: Floats) -> Floats:
    """The matrix, invertible: directions that nobody knows are lifted by a hair."""
    return matrix + 1e-12 * max(float(np.trace(matrix)), 1e-300) * np.eye(len(matrix))


def _posterior(steps: Floats, likely: Floats, curvature: float) -> tuple[float, float, float]:
    """The 2.5 % point, the estimate and the 97.5 % point of lam."""
    coarse = np.log(steps)
    fine = np.linspace(coarse[0], coarse[-1], FINE)
    t = curvature / np.exp(fine)
    mass = CubicSpline(coarse, likely)(fine) + np.log(t) - 3.0 * np.log1p(t)
    weight = np.exp(mass - mass.max())
    weight /= weight.sum()
    shrink = float(weight @ (1.0 / (1.0 + t)))
    ends = np.exp(np.interp([0.025, 0.975], np.cumsum(weight), fine))
    return float(ends[0]), curvature * shrink / (1.0 - shrink), float(ends[1])


@dataclass(frozen=True, eq=False)
class Outlook:
    """Predicted excess losses (m,) over each client's best model: alone, with one model for all, and penalized."""

    alone: Floats
    shared: Floats
    penalized: Floats


def outlook(
    clients: Clients, degree: RemlDegree, models: Floats, lams: Floats, *, weights: Floats | None = None
) -> Outlook:
    """What clients are predicted to lose with strengths ``lams`` (m,), were tau^2 and phi as found.

    Hessians are those at ``models`` (m, d), and ``weights`` (m,) the p_i, alike unless given. With the ridge r,
    K_i = (H_i + r + lam_i)^-1, B_i = lam_i K_i, u_i = p_i lam_i and T = sum_i u_i (I - B_i),

        alone       phi / (2 n_i) tr( M^2 )                     M of the ridge alone
        penalized   phi / (2 n_i) tr( M_i^2 )  +  tr( H_i B_i (tau^2 + C) B_i ) / 2
                      +  u_i (phi / n_i - lam_i tau^2) tr( H_i K_i H_i K_i T^-1 B_i )
        shared      tr( H_i [ C_0 + tau^2 (I - P_i - P_i^T) ] ) / 2

    for the shared model with covariance C, and the pooled model sum_i P_i w_i with covariance C_0. What comes from
    the noise of a client's own rows grows by n / (n - tr M) on new rows, n counting C - 1 times where rows are of C
    classes. That ridges shrink models to 0 is left out.
    """
    shares = np.full(clients.num, 1 / clients.num) if weights is None else weights / weights.sum()
    curvatures = clients.curvature(models)
    place = np.arange(clients.dim)
    curvatures[:, place, place] -= clients.ridge
    return Outlook(
        _alone(clients, models, degree),
        _shared(clients, curvatures, degree, shares),
        _penalized(clients, curvatures, degree, lams, shares),
    )


def _noise(clients: Clients, known: Floats, degree: RemlDegree) -> Floats:
    """(m,) what the noise of own rows costs on new rows: phi / (2 n) tr(M^2), times n / (n - tr M)."""
    rows = clients.counts * max(clients.loss.num_outputs - 1, 1)
    fresh = rows / np.maximum(rows - np.trace(known, axis1=1, axis2=2), 1.0)
    return np.asarray(0.5 * degree.dispersion / clients.counts * np.einsum("nij,nji->n", known, known) * fresh)


def _alone(clients: Clients, models: Floats, degree: RemlDegree) -> Floats:
    return _noise(clients, knowledge(clients, models, np.full(clients.num, 1e-12 * degree.curvature)), degree)


def _penalized(clients: Clients, curvatures: Floats, degree: RemlDegree, lams: Floats, shares: Floats) -> Floats:
    eye, strong, proximal = np.eye(clients.dim), lams[:, None, None], (shares * lams)[:, None, None]
    noise = (degree.dispersion / clients.counts)[:, None, None]
    narrow = np.linalg.inv(curvatures + np.diag(clients.ridge) + strong * eye)  # (m, d, d) K_i
    known, left = np.matmul(narrow, curvatures), strong * narrow  # M_i, B_i
    inverse = np.linalg.inv(_lifted((proximal * (eye - left)).sum(0)))
    own = np.matmul(known, narrow)  # K_i H_i K_i
    middle = proximal**2 * (degree.spread * np.matmul(known, known.swapaxes(1, 2)) + noise * own)
    around = degree.spread * eye + inverse @ middle.sum(0) @ inverse
    # A client's own noise and difference are in the shared model too; at the most probable lams these two cancel.
    shared = 2.0 * proximal * (noise - strong * degree.spread) * np.matmul(own, inverse)
    off = np.matmul(np.matmul(left, around) + shared, left)
    return 0.5 * np.einsum("nij,nji->n", curvatures, off) + _noise(clients, known, degree)


def _shared(clients: Clients, curvatures: Floats, degree: RemlDegree, shares: Floats) -> Floats:
    weighed = shares[:, None, None] * curvatures
    inverse = np.linalg.inv(_lifted(weighed.sum(0) + np.diag(clients.ridge)))
    parts = np.matmul(inverse, weighed)  # (m, d, d) P_i
    turned = parts.swapaxes(1, 2)
    noise = inverse @ ((shares / clients.counts)[:, None, None] * weighed).sum(0) @ inverse
    common = degree.spread * np.matmul(parts, turned).sum(0) + degree.dispersion * noise
    around = common + degree.spread * (np.eye(clients.dim) - parts - turned)
    return 0.5 * np.einsum("nij,nji->n", curvatures, around)
