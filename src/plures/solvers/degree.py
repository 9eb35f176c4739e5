"""How much to personalize: the strength lam of the penalty from one round of local estimates, or from valid rows.

    min  sum_i p_i ( L_i(w_i) + (lam / 2) |w_g - w_i|^2 )

From one round: s_i is the estimated squared error of client i's own minimizer, S2 the spread of these minimizers
over m - 1, and R2 what noise does not explain of it. With H the Hessian there, S the covariance of rows' gradients,
n rows,

    s_i  =  tr(H^-1 S H^-1) / n        h_i s_i  =  tr(H^-1 S) / n        lam_i  =  h_i s_i / R2        lam  =  mean_i h_i s_i / R2

For squared errors S = sigma^2 H, with sigma^2 pooled over clients; for log-likelihoods S = H.

R2 = S2 - s may be negative by chance. ``rule="cut"`` takes a least share of S2 then (``envelope.plug_in``).
``rule="soft"``, the default, goes by the shrink factor B = s / (s + R2): S2 / (s + R2) is a chi-square over its
freedom f, the prior of R2 / s is 2 / (1 + R2 / s)^3, whose mean is 1, and B becomes the mean of the posterior, a
Gamma distribution cut off at 1:

    B  =  E[ b | b <= 1 ],   b ~ Gamma(f / 2 + 2, rate = f S2 / (2 s)),        R2 = s (1 - B) / B

It is smooth where the cut is not, and knows how little a few clients say. Weak spot of both: where clients differ
by much less than their noise, chance makes lam too small; with 20 clients the error is then 15 to 30 percent above
the best.

Not for ill-conditioned data: s and S2 are traces, in which directions that rows hardly bend outweigh all others,
though losses hardly feel them. Then lam is far too small. ``settled.settled_degree`` weighs directions by what rows
know of them.

The penalty is that of Yu, He, Sun, Xue, Li: arXiv 2410.08934; the rules for lam are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammainc

from plures.envelope import plug_in, shrink_factor
from plures.errors import BadData, UnknownChoice
from plures.solvers.clients import Clients
from plures.solvers.links import Floats
from plures.solvers.penalized import Penalized
from plures.solvers.prox import own_best
from plures.solvers.quadratic import Solved

LIKELIHOODS = ("logistic", "multinomial", "poisson")
"""Losses that are negative log-likelihoods: the covariance of rows' gradients is the Hessian."""
FLAT = 1e-9
"""Curvatures below this share of a client's largest are none."""
RULES = ("soft", "cut")


@dataclass(frozen=True, eq=False)
class Statistics:
    """What one round tells: own minimizers (m, d), squared errors s_i and pulls h_i s_i (m,), and rows (m,).

    ``square`` (m,) is tr(V_i^2) of the covariance V_i whose trace is s_i. ``usable`` (m,) marks clients whose rows
    determine their whole model, at a finite place; of the others only the rows count. ``dispersion`` is sigma^2 for
    squared errors, else 1.
    """

    models: Floats
    noise: Floats
    pull: Floats
    square: Floats
    rows: Floats
    usable: np.ndarray
    dispersion: float
    num_floats: int

    @property
    def curvature(self) -> Floats:
        """(m,) h_i: harmonic means of the eigenvalues of Hessians; NaN where they are not known."""
        return self.pull / self.noise


def statistics(clients: Clients) -> Statistics:
    """One round of local estimates.

    ``num_floats`` is what a client would send: its model; s_i, h_i s_i and tr(V_i^2); for squared errors also its
    rows and the sum of squared residuals, from which the server finds sigma^2.
    """
    if clients.num < 2:
        raise BadData("a spread needs two clients or more, got 1; with one there is nothing to share")
    models = own_best(clients, np.zeros((clients.num, clients.dim))).x
    bends = Bends.of(clients, models)
    usable = (bends.known == full_rank(clients)) & ~_separated(clients, models)
    if clients.link.name == "least_squares":
        usable &= clients.counts > bends.known
    _refuse_unusable(clients, usable)
    size = dispersion(clients)
    error = _error(clients, models, bends, size)
    noise = np.trace(error, axis1=1, axis2=2)
    pull = bends.pull(clients, models, size)
    typical = (pull * clients.counts)[usable].mean() / clients.counts
    return Statistics(
        models,
        np.where(usable, noise, np.nan),
        np.where(usable, pull, typical),
        np.where(usable, np.square(error).sum((1, 2)), np.nan),
        clients.counts,
        usable,
        size,
        clients.dim + (5 if clients.link.name == "least_squares" else 3),
    )


@dataclass(frozen=True, eq=False)
class Bends:
    """Curvatures ``values`` (N, dim) of losses without their ridges along ``vectors`` (N, dim, dim), and with them.

    ``on`` marks directions that rows bend more than the ridge does: an intercept of a client with one class is not
    among them, nor is a shift of all classes of a multinomial model.
    """

    values: Floats
    ridged: Floats
    vectors: Floats
    on: np.ndarray

    @classmethod
    def of(cls, clients: Clients, models: Floats) -> Bends:
        """Of the clients' Hessians at ``models``."""
        ridged, vectors = np.linalg.eigh(clients.curve(models))
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

    def pull(self, clients: Clients, models: Floats, size: float) -> Floats:
        """(N,) tr(H^-1 S) / n: the dispersion times the directions known over rows, where S is a multiple of H."""
        if clients.link.name in (*LIKELIHOODS, "least_squares"):
            return size * self.known / clients.counts
        return np.einsum("nij,nji->n", self.inverse(), gradient_covariance(clients, models)) / clients.counts


def full_rank(clients: Clients) -> int:
    """How many numbers of a model can be told from rows: a shift of all classes never can."""
    outputs = clients.link.num_outputs
    return clients.dim if outputs == 1 else clients.dim - clients.dim // outputs


def dispersion(clients: Clients) -> float:
    """sigma^2 for squared errors, pooled over residuals of all clients with some to spare; 1 for other losses."""
    if clients.link.name != "least_squares":
        return 1.0
    nothing = np.zeros((clients.num, clients.dim))
    rows_only = Clients(clients.a, clients.y, clients.share, np.zeros(clients.dim), clients.link)
    plain = Bends.of(rows_only, nothing)
    best = np.einsum("nij,nj->ni", plain.inverse(), -rows_only.slope(nothing))
    spare = clients.counts - plain.known
    some = spare > 0
    if not some.any():
        raise BadData(
            f"no client has more rows ({int(clients.counts.max())} at most) than numbers in its model "
            f"({int(plain.known.max())}), so the noise cannot be told from the signal: more rows, or fewer columns, would do"
        )
    return float((2.0 * rows_only.value(best) * clients.counts)[some].sum() / spare[some].sum())


def gradient_covariance(clients: Clients, models: Floats) -> Floats:
    """(N, dim, dim) means over rows of gradients times themselves."""
    slopes = clients.link.slope(clients.outputs(models), clients.y)
    each = np.einsum("nmi,nmc->nmic", clients.a, slopes).reshape(*clients.a.shape[:2], -1)
    return np.asarray(np.matmul((each * clients.share[..., None]).swapaxes(1, 2), each))


def _error(clients: Clients, models: Floats, bends: Bends, size: float) -> Floats:
    """(N, dim, dim) covariances H^-1 S H^-1 / n of own minimizers."""
    inverse, counts = bends.inverse(), clients.counts[:, None, None]
    if clients.link.name in (*LIKELIHOODS, "least_squares"):
        return size * inverse / counts
    return np.asarray(inverse @ gradient_covariance(clients, models) @ inverse / counts)


def _separated(clients: Clients, models: Floats) -> np.ndarray:
    """(N,) whether every row's class is told rightly: without a ridge the minimizer would be at infinity."""
    outputs, real = clients.outputs(models), clients.share > 0
    if clients.link.name == "multinomial":
        right = outputs.argmax(-1) == clients.y
    elif clients.link.name == "logistic":
        right = (outputs[..., 0] > 0) == (clients.y > 0.5)
    else:
        return np.zeros(clients.num, bool)
    return np.asarray((right | ~real).all(1))


def _refuse_unusable(clients: Clients, usable: np.ndarray) -> None:
    if usable.sum() > 1:
        return
    numbers, most = full_rank(clients), int(clients.counts.max())
    if clients.link.name == "least_squares" and most <= numbers:
        why = f"none has more rows ({most} at most) than numbers in its model ({numbers})"
    else:
        why = (
            "Hessians are singular, or classes so well apart that minimizers lie as far away as the ridge lets them"
        )
    raise BadData(
        f"the own rows of {int(usable.sum())} of {clients.num} clients determine their whole models, two are needed: {why}; "
        "fewer columns or principal axes would do, and `settled_degree` needs no own minimizers"
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
    the loss twice the best. Use ``settled_degree`` there.
    """
    if rule not in RULES:
        raise UnknownChoice("rule", rule, RULES)
    some = stats.usable
    models, noise = stats.models[some], float(stats.noise[some].mean())
    spread = float(np.square(models - models.mean(0)).sum() / (len(models) - 1))
    curvature = float(stats.pull[some].mean() / noise)
    freedom = float((len(models) - 1) * np.square(stats.noise[some]).sum() / stats.square[some].sum())
    if rule == "cut":
        left = float(plug_in(noise, spread, curvature).heterogeneity)
    else:
        shrink = float(shrink_factor(spread / noise, freedom, gammainc))
        left = noise * (1.0 - shrink) / shrink
    # Clients whose rows do not determine a model have a pull too, so that lam is one for everybody.
    lams = stats.pull / left
    return PlugIn(float(lams.mean()), lams, noise, spread, left, curvature, freedom)


@dataclass(frozen=True, eq=False)
class Validated:
    """Losses (L, m) on valid rows of models at ``lams`` (L,), the ``lam`` they are best at, and one for each client."""

    lams: Floats
    losses: Floats
    place: int
    own_places: np.ndarray
    path: Solved

    @property
    def lam(self) -> float:
        """The population's choice."""
        return float(self.lams[self.place])

    @property
    def own_lams(self) -> Floats:
        """(m,) the population's choice, but for clients with clear evidence for another."""
        return self.lams[self.own_places]


def valid_degree(
    train: Clients,
    valid: Clients,
    lams: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    errors: float = 0.0,
) -> Validated:
    """The lam with the least mean loss on valid rows, of models trained on ``train`` along the exact path.

    With ``errors`` > 0 it is the largest lam whose loss is within so many standard errors, paired over clients, of the
    least. A client leaves the population's lam only where the gain on its own valid rows exceeds one standard error.
    """
    if train.num != valid.num or train.dim != valid.dim:
        raise BadData(
            f"valid rows are those of the same clients: {train.num} of {train.dim} numbers trained, "
            f"{valid.num} of {valid.dim} are there"
        )
    shares = None if weights is None else np.asarray(weights, float)
    path = Penalized(train, shares).solve(lams)
    rows = row_losses(valid, path.own)  # (L, m, rows)
    losses = np.einsum("lnm,nm->ln", rows, valid.share)
    place = _best(losses, path.lams, shares, errors)
    return Validated(path.lams, losses, place, _own_places(rows, valid, losses, place), path)


def row_losses(clients: Clients, models: Floats) -> Floats:
    """(L, N, rows) losses of rows at models (L, N, dim), without ridges."""
    return np.stack([clients.link.value(clients.outputs(one), clients.y) for one in models])


def _best(losses: Floats, lams: Floats, shares: Floats | None, errors: float) -> int:
    means = losses.mean(1) if shares is None else losses @ shares
    best = int(np.argmin(means))
    worse = losses - losses[best]
    error = worse.std(1, ddof=1) / np.sqrt(losses.shape[1]) if losses.shape[1] > 1 else np.zeros(len(losses))
    fine = means - means[best] <= errors * error
    return int(max(np.flatnonzero(fine), key=lambda place: lams[place])) if errors else best


def _own_places(rows: Floats, valid: Clients, losses: Floats, place: int) -> np.ndarray:
    """(m,) the best lam of each client where it clearly beats the population's, else that."""
    rival = losses.argmin(0)
    client, counts = np.arange(valid.num), valid.counts
    gains = rows[place] - rows[rival, client]  # (m, rows)
    mean = (gains * valid.share).sum(1)
    off = np.where(valid.share > 0, gains - mean[:, None], 0.0)
    error = np.sqrt(np.square(off).sum(1) / np.maximum(counts - 1, 1) / counts)
    return np.where((mean > error) & (counts > 1), rival, place)
