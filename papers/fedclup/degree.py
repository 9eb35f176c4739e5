"""How much to personalize: the strength lam of the penalty from one round of local estimates.

    min  sum_i p_i ( L_i(w_i) + (lam / 2) |w_g - w_i|^2 )

From one round: s_i is the estimated squared error of client i's own minimizer, S2 the spread of these minimizers
over m - 1, and R2 what noise does not explain of it. With H the Hessian there, S the covariance of rows' gradients,
n rows,

    s_i  =  tr(H^-1 S H^-1) / n        h_i s_i  =  tr(H^-1 S) / n        lam_i  =  h_i s_i / R2        lam  =  mean_i h_i s_i / R2

For squared errors S = sigma^2 H, with sigma^2 pooled over clients; for log-likelihoods S = H.

R2 = S2 - s may be negative by chance. ``rule="cut"`` takes a least share of S2 then (``plug_in``).
``rule="soft"``, the default, goes by the shrink factor B = s / (s + R2): S2 / (s + R2) is a chi-square over its
freedom f, the prior of R2 / s is 2 / (1 + R2 / s)^3, whose mean is 1, and B becomes the mean of the posterior, a
Gamma distribution cut off at 1:

    B  =  E[ b | b <= 1 ],   b ~ Gamma(f / 2 + 2, rate = f S2 / (2 s)),        R2 = s (1 - B) / B

It is smooth where the cut is not, and knows how little a few clients say. Weak spot of both: where clients differ
by much less than their noise, chance makes lam too small; with 20 clients the error is then 15 to 30 percent above
the best.

Not for ill-conditioned data: s and S2 are traces, in which directions that rows hardly curve outweigh all others,
though losses hardly feel them. Then lam is far too small. ``plures.solvers.reml_degree`` weighs directions by what rows
know of them.

The penalty is that of Yu, He, Sun, Xue, Li: arXiv 2410.08934; the rules for lam are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammainc

from plures.errors import BadData, UnknownChoice
from plures.moreau import shrink_factor
from plures.solvers.clients import Clients
from plures.solvers.degree import Curvatures, gradient_covariance, residual_variances
from plures.solvers.prox import own_best
from plures.types import Floats

LIKELIHOODS = ("logistic", "multinomial", "poisson")
"""Losses that are negative log-likelihoods: the covariance of rows' gradients is the Hessian."""
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


class Degree(NamedTuple):
    """How much to collaborate: ``lam``, and the estimated squared ``heterogeneity`` it comes from."""

    lam: Any
    heterogeneity: Any


def plug_in(noise: Any, spread: Any, curvature: Any, *, least: float = 0.01, xp: Any = np) -> Degree:
    """The plug-in lam = h s / R2, with R2 = spread - s, at least a share ``least`` of the spread.

    ``noise`` s is the mean squared error of local estimates, ``spread`` the sum of their squared distances from
    their mean over m - 1, ``curvature`` h the harmonic mean of the eigenvalues of Hessians. ``least`` bounds lam by
    about h / least. Of 20 clients the spread is so uncertain that 0.001 to 0.05 do alike; with hundreds of clients
    that hardly differ, a larger one shares too little.

    >>> plug_in(1.0, 3.0, 4.0)
    Degree(lam=np.float64(2.0), heterogeneity=np.float64(2.0))
    """
    left = xp.maximum(spread - noise, least * spread)
    return Degree(curvature * noise / left, left)


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
