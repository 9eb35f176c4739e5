"""The strength lam that makes the clients' rows most probable, and what it is predicted to be worth.

Models of clients are taken to scatter around a shared one with variance tau^2, and the rows of client i around its model with
dispersion phi_i. Then the penalized models with lam_i = phi_i / (n_i tau^2) are the most probable ones. With H_i the Hessians,
b_i = H_i w - gradient at some w, q_i = n_i / phi_i, and models and the shared model integrated out (restricted likelihood), the rows
have, but for a constant, the logarithm

    sum_i q_i b_i^T (H_i + lam_i)^-1 b_i / 2  +  v^T T^-1 v / 2  -  sum_i log det(I + H_i / lam_i) / 2  -  log det(T tau^2) / 2

    M_i = (H_i + lam_i)^-1 H_i,        T = sum_i M_i / tau^2,        v = sum_i (H_i + lam_i)^-1 b_i / tau^2

exactly for squared errors. Other losses are expanded at the pooled model, then at the penalized models that this gives. A ridge is a
prior of its own: H_i has it too, and the same expression of ridges alone is taken off, so that only rows are evidence. Where it is
highest, sum_i |w_i - w_g|^2 / tau^2 is f = sum_i tr M_i - sum_i tr(M_i T^-1 M_i) / tau^2, the numbers of evidence: a direction that the
rows of one client alone determine says nothing about how clients differ.

Columns may scatter by variances of their own, in groups (intercepts and slopes, say): the same model of columns times ``scale``. The
scales come from expectation maximization, and are taken if few columns have most of the scatter, and rows are more probable by
log(m) / 2 for every group more.

The shrink factor B = lam / (lam + e), e the mean curvature, becomes its posterior mean under the prior 2 / (1 + e /
lam)^3, as in ``degree``; with many clients this is where the likelihood is highest.

Patterson, Thompson, 1971 (restricted likelihood); Daniels, 1999 (priors of shrink factors); Smyth, 2004 (variances of many groups).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from plures.errors import BadData
from plures.solvers.clients import Clients
from plures.solvers.degree import Curvatures, gradient_covariance, residual_variances
from plures.solvers.path import consensus
from plures.solvers.penalized import Penalized
from plures.solvers.quadratic import Quadratics
from plures.types import Floats

REACH, STEPS, FINE = 1e4, 25, 2001
"""Strengths go from 1 / REACH to REACH times the mean curvature, in so many steps; in between it is interpolated."""
EXPANSIONS, MAXIMIZATIONS = 2, 60
STILL, NEGLIGIBLE = 0.003, 1e-3
"""Variances are found when those that matter change by no more than this."""
SPREAD_OUT = 0.6
"""Where variances are as if all of them lay in a larger share of columns than this, one for all does."""
LEAST_SCALE = 1e-4
"""Columns of which models hardly scatter have this scale at least; that of the others is at most 1."""


@dataclass(frozen=True, eq=False)
class RemlDegree:
    """``lam`` and ``own_lams`` (m,) lam_i ~ phi_i / n_i; with 95 % probability lam lies between ``low`` and ``high``.

    ``spread`` is tau^2, ``dispersion`` (m,) phi, ``curvature`` e and ``freedom`` f. All hold for columns times ``scale``.
    """

    lam: float
    low: float
    high: float
    own_lams: Floats
    spread: float
    dispersion: Floats | float
    curvature: float
    freedom: float
    scale: Floats = field(default_factory=lambda: np.ones(1))
    evidence: float = 0.0

    @property
    def is_alike(self) -> bool:
        """Whether all columns scatter alike."""
        return bool((self.scale == 1.0).all())


def reml_degree(clients: Clients, groupings: Iterable[ArrayLike] = ()) -> RemlDegree:
    """lam by the likelihood of how far clients' models scatter.

    ``groupings`` put columns into groups, a number from 0 on each, that may scatter by variances of their own: they do
    where few columns have most of the scatter, and rows say so.
    """
    if clients.num < 2:
        raise BadData("how clients differ needs two clients or more, got 1; with one there is nothing to share")
    models = np.tile(consensus(clients).model, (clients.num, 1))
    curvatures = Curvatures.of(clients, models)
    if not curvatures.on.any():
        raise BadData("no row of any client curves its loss: there is nothing to learn a strength from")
    curvature, size = float(curvatures.values[curvatures.on].mean()), _dispersion(clients, curvatures, models)
    found = _degree_at(clients, models, size, curvature)
    if clients.loss.name != "least_squares":
        precision = clients.counts / size
        for _ in range(EXPANSIONS - 1):
            near = Penalized(clients, precision / precision.sum()).solve(found.own_lams[None], (models[0], models))
            models = near.own[0]
            found = _degree_at(clients, models, size, curvature)
    best, most = replace(found, scale=np.ones(clients.a.shape[2])), found.evidence
    for grouping in groupings:
        groups = np.asarray(grouping)
        scale = _column_scales(clients, models, size, groups, found.spread)
        if np.square(scale).sum() ** 2 > SPREAD_OUT * len(scale) * (scale**4).sum():
            continue
        other = _degree_at(
            clients.scaled(scale), models / np.repeat(scale, clients.loss.num_outputs), size, curvature
        )
        gain = other.evidence - 0.5 * np.log(clients.num) * groups.max()
        if gain > most:
            best, most = replace(other, scale=scale), gain
    return best


def _degree_at(clients: Clients, models: Floats, size: Floats, curvature: float) -> RemlDegree:
    """lam where losses are expanded at ``models``, with the evidence for columns as they are."""
    losses, relative = Quadratics.expanded(clients, models), size / clients.counts
    mean = float(relative.mean())
    steps = curvature * np.geomspace(1.0 / REACH, REACH, STEPS)
    likely = likelihoods(losses, clients, size, steps[:, None] * relative / mean)
    low, lam, high, evidence = _posterior(steps, likely, curvature)
    own = lam * relative / mean
    return RemlDegree(
        lam, low, high, own, mean / lam, size, curvature, _evidence(clients, models, own), evidence=evidence
    )


def likelihoods(losses: Quadratics, clients: Clients, size: Floats, lams: Floats) -> Floats:
    """(L,) logarithms of how probable the rows are at strengths lam_i (L, m), but for a constant."""
    values, vectors = losses.spectrum
    precision, ridge = (clients.counts / size)[:, None], clients.ridge
    found = []
    for strong in lams[..., None]:
        under, weight = values + strong, precision * strong
        precise = np.matmul(vectors * (weight * values / under)[:, None], vectors.swapaxes(1, 2)).sum(0)
        summed = np.matmul(vectors, (weight * losses.turned / under)[..., None])[..., 0].sum(0)
        fit = (precision * losses.turned**2 / under).sum() + summed @ np.linalg.solve(_lifted(precise), summed)
        # Ridges are priors too: what they say by themselves is taken off, so that only rows are evidence.
        volume = np.log(under / (ridge + strong)).sum()
        center = np.linalg.slogdet(_lifted(precise))[1] - np.log((weight / (ridge + strong)).sum(0)).sum()
        found.append(0.5 * (fit - volume - center))
    return np.array(found)


def _column_scales(clients: Clients, models: Floats, size: Floats, groups: np.ndarray, spread: float) -> Floats:
    """(width,) standard deviations of models over clients, alike within groups of columns, as shares of the largest."""
    losses, outputs = Quadratics.expanded(clients, models), clients.loss.num_outputs
    group = np.repeat(groups, outputs)
    precision = (clients.counts / size)[:, None]
    variances, eye = np.full(losses.dim, spread), np.eye(losses.dim)
    for _ in range(MAXIMIZATIONS):
        cover = np.linalg.inv(precision[..., None] * losses.a + np.diag(1.0 / variances))
        kept = cover / variances  # what a client takes of the shared model
        known = ((eye - kept) / variances[:, None]).sum(0)
        off = np.matmul(cover, (precision * losses.b)[..., None])[..., 0]
        free = np.linalg.inv(_lifted(known))
        center = free @ (off / variances).sum(0)
        away = off - center + kept @ center
        lost = eye - kept
        doubt = np.diagonal(cover, axis1=1, axis2=2) + (np.matmul(lost, free) * lost).sum(2)
        seen = (np.square(away) + doubt).mean(0)
        before, variances = variances, (np.bincount(group, seen) / np.bincount(group))[group]
        matter = variances > NEGLIGIBLE * variances.max()
        if np.abs(np.log(variances / before))[matter].max() < STILL:
            break
    scale = np.sqrt(variances[::outputs])
    return np.maximum(scale / scale.max(), LEAST_SCALE)


def _dispersion(clients: Clients, curvatures: Curvatures, models: Floats) -> Floats:
    """(m,) phi: sigma^2 of every client, 1 for likelihoods, and for other losses what the gradients of rows vary over
    what curvature says."""
    if clients.loss.name in ("huber", "squared_hinge"):
        covariance = gradient_covariance(clients, models)
        found = float(np.einsum("nij,nji->", curvatures.inverse(), covariance) / curvatures.known.sum())
        return np.full(clients.num, found)
    if clients.loss.name != "least_squares":
        return np.ones(clients.num)
    return shrunk_variances(*residual_variances(clients))


def shrunk_variances(variances: Floats, freedom: Floats) -> Floats:
    """(m,) variances of few numbers each, moved towards a common one as far as chance explains how they differ.

    They are taken to be phi_i chi2(f_i) / f_i, and 1 / phi_i a multiple of chi2(f_0) / f_0: then (f_0 phi_0 + f_i s_i) / (f_0 + f_i)
    is what is expected of phi_i (Smyth, 2004, section 6.2).

    >>> shrunk_variances(np.array([1.0, 1.0, 4.0]), np.array([50.0, 50.0, 0.0])).round(2)
    array([1., 1., 1.])
    """
    some = freedom > 0
    pooled = float((freedom * variances)[some].sum() / freedom[some].sum())
    logs = np.log(np.maximum(variances[some], 1e-9 * max(pooled, 1e-300)))
    half = 0.5 * freedom[some]
    centered = logs - digamma(half) + np.log(half)
    chance = float(polygamma(1, half).mean())
    beyond = float(centered.var(ddof=1)) - chance if some.sum() > 1 else 0.0
    if beyond <= 0:
        return np.full(len(variances), max(pooled, 1e-300))
    prior = 2.0 * np.exp(brentq(lambda log: np.log(polygamma(1, np.exp(log)) / beyond), -20.0, 40.0))
    common = np.exp(centered.mean() + digamma(0.5 * prior) - np.log(0.5 * prior))
    own = np.where(some, freedom * np.where(some, variances, 0.0), 0.0)
    return np.asarray((prior * common + own) / (prior + np.where(some, freedom, 0.0)))


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


def _posterior(steps: Floats, likely: Floats, curvature: float) -> tuple[float, float, float, float]:
    """The 2.5 % point, the estimate and the 97.5 % point of lam, and the logarithm of the evidence for all of it."""
    coarse = np.log(steps)
    fine = np.linspace(coarse[0], coarse[-1], FINE)
    t = curvature / np.exp(fine)
    mass = CubicSpline(coarse, likely)(fine) + np.log(t) - 3.0 * np.log1p(t)
    weight = np.exp(mass - mass.max())
    evidence = float(mass.max() + np.log(weight.mean()))
    weight /= weight.sum()
    shrink = float(weight @ (1.0 / (1.0 + t)))
    ends = np.exp(np.interp([0.025, 0.975], np.cumsum(weight), fine))
    return float(ends[0]), curvature * shrink / (1.0 - shrink), float(ends[1]), evidence


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
    noises = (degree.dispersion * shares / clients.counts)[:, None, None]
    common = degree.spread * np.matmul(parts, turned).sum(0) + inverse @ (noises * weighed).sum(0) @ inverse
    around = common + degree.spread * (np.eye(clients.dim) - parts - turned)
    return 0.5 * np.einsum("nij,nji->n", curvatures, around)
