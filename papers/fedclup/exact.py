"""FedCLUP's exact solutions against formulas: mean estimation, the plug-in strength, and errors along the whole path."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from papers.fedclup.degree import degree_statistics, plug_in_degree
from papers.fedclup.theory import Draw, expected_error
from plures.data.worlds.offsets import offset_truth
from plures.solvers.clients import Clients, as_clients
from plures.solvers.quadratic import Quadratics

Floats = NDArray[np.float64]

MEANS = (20, 25, 4)  # clients, rows, numbers of a mean
RADII = (0.05, 0.2, 0.5)
LISTED = {
    0.5: (0.608, 0.1025, 0.160, 0.258),
    0.2: (3.8, 0.0397, 0.160, 0.048),
    0.05: (60.8, 0.01046, 0.160, 0.0105),
}
"""By radius, from the formula: the best lam, its risk, and those of the two ends."""


class Mean(NamedTuple):
    """A strength of mean estimation: the risk by the formula, and over draws with its standard error."""

    radius: float
    lam: float
    formula: float
    drawn: float
    error: float


def means(radius: float, lams: Floats, repeats: int, seed: int = 0) -> list[Mean]:
    """Draw rows of unit noise, solve the penalized problem, and measure the squared distance from the true means."""
    clients, rows, dim = MEANS
    key_truth, key_rows = jax.random.split(jax.random.key(seed))
    truth = offset_truth(key_truth, clients, dim, radius=radius, center=1.0)
    noise = np.asarray(jax.random.normal(key_rows, (repeats, clients, rows, dim)), float)
    local = truth + noise.mean(2)
    found = Quadratics.of(np.broadcast_to(np.eye(dim), (*local.shape, dim)), local).path(lams)
    risks = np.square(found.own - truth).sum(-1).mean(-1)  # (strengths, repeats)
    return [
        Mean(radius, float(lam), _formula(lam, radius), float(one.mean()), float(one.std() / np.sqrt(repeats)))
        for lam, one in zip(lams, risks, strict=True)
    ]


def best_mean(radius: float) -> float:
    """s (1 - 1/m) / radius^2, with s = dim / rows."""
    clients, rows, dim = MEANS
    return dim / rows * (1 - 1 / clients) / radius**2


def mean_estimation_risk(lam: float, *, num_clients: int, noise: float, radius: float) -> float:
    """The average risk of ``mean_estimation`` at penalty ``lam``; ``noise`` = dim sigma^2 / rows."""
    shrink = lam / (1 + lam)
    return noise / num_clients + shrink**2 * radius**2 + (1 - shrink) ** 2 * noise * (1 - 1 / num_clients)


def _formula(lam: float, radius: float) -> float:
    clients, rows, dim = MEANS
    if lam == np.inf:
        return dim / rows / clients + radius**2
    return mean_estimation_risk(lam, num_clients=clients, noise=dim / rows, radius=radius)


class Point(NamedTuple):
    """A strength of a regression: the squared distance from the truth, mean of draws with its error, and the theory's."""

    model: str
    radius: float
    lam: float
    drawn: float
    error: float
    theory: float


class Ends(NamedTuple):
    """A radius: both ends, the best strength of the grid, and the plug-in and the oracle rule."""

    model: str
    radius: float
    local: float
    all_alike: float
    best_lam: float
    best: float
    plug_in_lam: float  # median over draws
    plug_in: float
    oracle_lam: float
    oracle: float


def quadratics(draw: Draw) -> Quadratics:
    """The linear regressions of all repeats, side by side."""
    return Quadratics.of(draw.hessians, draw.products)


def linear_path(draw: Draw, radius: float, lams: Floats) -> tuple[list[Point], Ends]:
    """Errors at all ``lams``, at both ends, and at the strengths of the two rules."""
    problem = quadratics(draw)
    wanted = np.concatenate([lams, [0.0, np.inf]])
    errors = draw.error(problem.path(wanted).own)  # (strengths, repeats)
    rows = draw.x.shape[-2]
    theory = [float(expected_error(draw.hessians, draw.truth, 1 / rows, lam).mean()) for lam in lams]
    points = curve("linear", radius, lams, errors[:-2], theory)
    rule, oracle = plugged(draw, "least_squares"), oracle_lams(draw)
    by_rule, by_oracle = (draw.error(at_own(problem, one)).mean() for one in (rule, oracle))
    best = int(errors[:-2].mean(1).argmin())
    chosen = (float(lams[best]), float(errors[best].mean()))
    rules = (float(np.median(rule)), float(by_rule), float(np.median(oracle)), float(by_oracle))
    return points, Ends("linear", radius, float(errors[-2].mean()), float(errors[-1].mean()), *chosen, *rules)


def curve(model: str, radius: float, lams: Floats, errors: Floats, theory: list[float]) -> list[Point]:
    """The points of (strengths, repeats) errors."""
    spread = errors.std(1) / np.sqrt(errors.shape[1])
    return [
        Point(model, radius, *map(float, one)) for one in zip(lams, errors.mean(1), spread, theory, strict=True)
    ]


def at_own(problem: Quadratics, lams: Floats) -> Floats:
    """(repeats, clients, dim) models with a strength of its own for each repeat."""
    return np.stack(
        [Quadratics.of(a, b).path([lam]).own[0] for a, b, lam in zip(problem.a, problem.b, lams, strict=True)]
    )


def plugged(draw: Draw, loss: str) -> Floats:
    """(repeats,) plug-in strengths, from one round of local estimates."""
    return np.array(
        [plug_in_degree(degree_statistics(clients_of(x, y, loss))).lam for x, y in zip(draw.x, draw.y, strict=True)]
    )


def clients_of(x: Floats, y: Floats, loss: str) -> Clients:
    """Losses without intercept and ridge, from (..., clients, rows, dim) inputs; repeats one after another."""
    tables: Any = x.reshape(-1, *x.shape[-2:])
    wanted: Any = y.reshape(len(tables), -1).astype(int if loss == "logistic" else float)
    return as_clients(tables, wanted, loss=loss, intercept=False, ridge=0.0)


def oracle_lams(draw: Draw) -> Floats:
    """(repeats,) the same rule with the true noise and heterogeneity."""
    values = quadratics(draw).spectrum[0]
    noise = (1 / values).sum(-1).mean(-1) / draw.x.shape[-2]
    return harmonic(values) * noise / spread_of(draw.truth)


def spread_of(models: Floats) -> Floats:
    """sum_i |w_i - mean|^2 / (m - 1) of (..., clients, dim) models."""
    return np.square(models - models.mean(-2, keepdims=True)).sum((-1, -2)) / (models.shape[-2] - 1)


def harmonic(values: Floats) -> Floats:
    """The harmonic mean of (..., clients, dim) eigenvalues."""
    return 1 / (1 / values).mean((-1, -2))
