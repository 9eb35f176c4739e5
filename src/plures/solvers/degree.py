"""How much to personalize: the strength lam of the penalty from one round of local estimates, or from valid rows.

    min  sum_i p_i ( L_i(w_i) + (lam / 2) |w_g - w_i|^2 )

From one round: s_i is the estimated squared error of client i's own minimizer, S2 the spread of these minimizers
over m - 1, and R2 what noise does not explain of it. With H the Hessian there, S the covariance of rows' gradients,
n rows,

    s_i  =  tr(H^-1 S H^-1) / n        h_i s_i  =  tr(H^-1 S) / n        lam_i  =  h_i s_i / R2        lam  =  mean_i h_i s_i / R2

For squared errors S = sigma^2 H, with sigma^2 pooled over clients; for log-likelihoods S = H.

R2 = S2 - s may be negative by chance. ``rule="cut"`` takes a least share of S2 then (``moreau.plug_in``).
``rule="soft"``, the default, goes by the shrink factor B = s / (s + R2): S2 / (s + R2) is a chi-square over its
freedom f, the prior of R2 / s is 2 / (1 + R2 / s)^3, whose mean is 1, and B becomes the mean of the posterior, a
Gamma distribution cut off at 1:

    B  =  E[ b | b <= 1 ],   b ~ Gamma(f / 2 + 2, rate = f S2 / (2 s)),        R2 = s (1 - B) / B

It is smooth where the cut is not, and knows how little a few clients say. Weak spot of both: where clients differ
by much less than their noise, chance makes lam too small; with 20 clients the error is then 15 to 30 percent above
the best.

Not for ill-conditioned data: s and S2 are traces, in which directions that rows hardly curve outweigh all others,
though losses hardly feel them. Then lam is far too small. ``reml.reml_degree`` weighs directions by what rows
know of them.

The penalty is that of Yu, He, Sun, Xue, Li: arXiv 2410.08934; the rules for lam are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammainc

from plures.errors import BadData, UnknownChoice
from plures.moreau import plug_in, shrink_factor
from plures.solvers.clients import Clients
from plures.solvers.penalized import Penalized
from plures.solvers.prox import own_best
from plures.solvers.quadratic import PenalizedSolution
from plures.types import Floats

LIKELIHOODS = ("logistic", "multinomial", "poisson")
"""Losses that are negative log-likelihoods: the covariance of rows' gradients is the Hessian."""
FLAT = 1e-9
"""Curvatures below this share of a client's largest are none."""
RULES = ("soft", "cut")


@dataclass(frozen=True, eq=False)
class Statistics:
    """What one round tells: own minimizers (m, d), squared errors s_i and noises scaled by curvature h_i s_i (m,).

    ``square`` (m,) is tr(V_i^2) of the covariance V_i whose trace is s_i. ``usable`` (m,) marks clients whose rows
    determine their whole model, at a finite place; of the others only the rows count.
    """

    models: Floats
    noise: Floats
    scaled_noise: Floats
    square: Floats
    usable: np.ndarray


def degree_statistics(clients: Clients) -> Statistics:
    """One round of local estimates.

    A client would send its model; s_i, h_i s_i and tr(V_i^2); for squared errors also its rows and the sum of squared
    residuals, from which the server finds sigma^2.
    """
    if clients.num < 2:
        raise BadData("a spread needs two clients or more, got 1; with one there is nothing to share")
    models = own_best(clients, np.zeros((clients.num, clients.dim))).x
    curvatures = Curvatures.of(clients, models)
    usable = (curvatures.known == full_rank(clients)) & ~_separated(clients, models)
    if clients.loss.name == "least_squares":
        usable &= clients.counts > curvatures.known
    _refuse_unusable(clients, usable)
    size = dispersion(clients)
    error, scaled = _errors(clients, models, curvatures, size)
    noise = np.trace(error, axis1=1, axis2=2)
    typical = (scaled * clients.counts)[usable].mean() / clients.counts
    return Statistics(
        models,
        np.where(usable, noise, np.nan),
        np.where(usable, scaled, typical),
        np.where(usable, np.square(error).sum((1, 2)), np.nan),
        usable,
    )


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


def full_rank(clients: Clients) -> int:
    """How many numbers of a model can be told from rows: a shift of all classes never can."""
    outputs = clients.loss.num_outputs
    return clients.dim if outputs == 1 else clients.dim - clients.dim // outputs


def dispersion(clients: Clients) -> float:
    """sigma^2 for squared errors, pooled over residuals of all clients with some to spare; 1 for other losses."""
    if clients.loss.name != "least_squares":
        return 1.0
    variances, spare = residual_variances(clients)
    return float((variances * spare).sum() / spare.sum())


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


def _errors(clients: Clients, models: Floats, curvatures: Curvatures, size: float) -> tuple[Floats, Floats]:
    """(N, dim, dim) covariances H^-1 S H^-1 / n of own minimizers, and (N,) traces of H^-1 S / n.

    Where S is a multiple of H, the trace is the dispersion times the directions known.
    """
    inverse, counts = curvatures.inverse(), clients.counts[:, None, None]
    if clients.loss.name in (*LIKELIHOODS, "least_squares"):
        return size * inverse / counts, size * curvatures.known / clients.counts
    turned = inverse @ gradient_covariance(clients, models) / counts
    return np.asarray(turned @ inverse), np.trace(turned, axis1=1, axis2=2)


def _separated(clients: Clients, models: Floats) -> np.ndarray:
    """(N,) whether every row's class is told rightly: without a ridge the minimizer would be at infinity."""
    outputs, real = clients.outputs(models), clients.share > 0
    if clients.loss.name == "multinomial":
        right = outputs.argmax(-1) == clients.y
    elif clients.loss.name == "logistic":
        right = (outputs[..., 0] > 0) == (clients.y > 0.5)
    else:
        return np.zeros(clients.num, bool)
    return np.asarray((right | ~real).all(1))


def _refuse_unusable(clients: Clients, usable: np.ndarray) -> None:
    if usable.sum() > 1:
        return
    numbers, most = full_rank(clients), int(clients.counts.max())
    if clients.loss.name == "least_squares" and most <= numbers:
        why = f"none has more rows ({most} at most) than numbers in its model ({numbers})"
    else:
        why = (
            "Hessians are singular, or classes so well apart that minimizers lie as far away as the ridge lets them"
        )
    raise BadData(
        f"the own rows of {int(usable.sum())} of {clients.num} clients determine their whole models, two are needed: {why}; "
        "fewer columns or principal axes would do, and `reml_degree` needs no own minimizers"
    )


@dataclass(frozen=True, eq=False)
class PlugIn:
    """``lam`` for all and ``own_lams`` (m,), from ``noise`` s, ``spread`` S2, ``heterogeneity`` R2 and ``curvature`` h.

    ``freedom`` is that of S2: (m - 1) d where errors are alike in all directions, less where they are not.
    """

    lam: float
    own_lams: Floats
    noise: float
    spread: float
    heterogeneity: float
    curvature: float
    freedom: float

    @property
    def unexplained(self) -> float:
        """S2 - s: R2 before it is kept positive."""
        return self.spread - self.noise


def plug_in_degree(stats: Statistics, *, rule: str = "soft") -> PlugIn:
    """lam from one round of local estimates; ``rule`` says what is done where noise explains nearly all of the spread.

    It is far too small where columns have very different sizes, or clients hardly more rows than columns: flat
    directions outweigh all others in s and S2. Ten columns of sizes 1 to 0.01 may make it 60 times too small, and
    the loss twice the best. Use ``reml_degree`` there.
    """
    if rule not in RULES:
        raise UnknownChoice("rule", rule, RULES)
    some = stats.usable
    models, noise = stats.models[some], float(stats.noise[some].mean())
    spread = float(np.square(models - models.mean(0)).sum() / (len(models) - 1))
    curvature = float(stats.scaled_noise[some].mean() / noise)
    freedom = float((len(models) - 1) * np.square(stats.noise[some]).sum() / stats.square[some].sum())
    if rule == "cut":
        left = float(plug_in(noise, spread, curvature).heterogeneity)
    else:
        shrink = float(shrink_factor(spread / noise, freedom, gammainc))
        left = noise * (1.0 - shrink) / shrink
    # Clients whose rows do not determine a model have a scaled noise too, so that lam is one for everybody.
    lams = stats.scaled_noise / left
    return PlugIn(float(lams.mean()), lams, noise, spread, left, curvature, freedom)


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
