"""FedCLUP's rounds and gradients at every strength, and its total error round by round beside other algorithms.

GlobalTrain is gradient descent on the pooled loss, one step a round: FedAvg with more than one local step comes to rest
elsewhere than at the pooled minimizer, so that it must not stand in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from papers.fedclup.algorithms import Trace, ditto, fedclup, l2gd, pfedme
from papers.fedclup.exact import clients_of
from papers.fedclup.theory import Draw, World, linear_draw
from plures.moreau import Bounds, envelope
from plures.solvers.penalized import Penalized
from plures.solvers.quadratic import Quadratics

Floats = NDArray[np.float64]
Problem = Quadratics | Penalized
Way = Callable[[Problem, int], tuple[int, Floats]]
"""A problem and a number of rounds to those that communicated, and the models then."""

CURVATURE = Bounds(0.608, 11.86)
SIZES = World(clients=10, rows=60, dim=5, least=1.0, most=8.0)
NOISE = SIZES.dim**-0.5  # coefficients have length 1: as unit noise on coefficients of variance 1
TOL = 1e-8
LISTED = {0.01: (9, 126), 0.1: (8, 128), 1.0: (12, 168), 10.0: (43, 258), 100.0: (77, 231), 1000.0: (84, 168)}
"""By lam: rounds with the automatic K, and K times rounds, of another program and instance of these curvatures."""
LISTED_EXACT = {0.01: 2, 0.1: 4, 1.0: 10, 10.0: 41, 100.0: 76, 1000.0: 83}
LISTED_KAPPA = {0.01: 1.02, 0.1: 1.15, 1.0: 2.44, 10.0: 9.47, 100.0: 17.55, 1000.0: 19.29}
LISTED_INNER = {0.01: 14, 0.1: 16, 1.0: 14, 10.0: 6, 100.0: 3, 1000.0: 2}


class Counted(NamedTuple):
    """A strength: kappa_g, K, rounds to ``TOL``, gradients, and rounds with the automatic K over all draws."""

    lam: float
    kappa: float
    inner: int
    exact: float
    averaging: float
    auto: float
    gradients: float
    predicted: float  # rounds at which the rate 1 - 1 / kappa_g alone has done it
    least_auto: float
    most_auto: float
    listed: int
    listed_gradients: int


def instance(seed: int) -> Quadratics:
    """A linear regression of ten clients whose eigenvalues span ``CURVATURE`` exactly."""
    draw = linear_draw(jax.random.key(seed), SIZES, 0.2, 1, NOISE)
    x, noise = draw.x[0], (draw.y - np.einsum("...ri,...i->...r", draw.x, draw.truth))[0]
    values, vectors = np.linalg.eigh(draw.hessians[0])
    log = np.log(values)
    share = (log - log.min()) / (log.max() - log.min())
    wanted = CURVATURE.least * (CURVATURE.most / CURVATURE.least) ** share
    x = np.einsum("cri,cij,cj,ckj->crk", x, vectors, np.sqrt(wanted / values), vectors)
    return Quadratics.from_rows(x, np.einsum("cri,ci->cr", x, draw.truth[0]) + noise)


def nearest(problems: Sequence[Quadratics]) -> Quadratics:
    """The instance whose rounds, with exact inner solutions and with K steps, are nearest to those listed.

    Rounds differ from draw to draw by a factor of two, whatever K is: this one differs from the listed instance least.
    """

    def off(problem: Quadratics) -> float:
        mine = [_exact(problem, lam) for lam in LISTED] + [_automatic(problem, lam) for lam in LISTED]
        listed = [*(LISTED_EXACT[lam] for lam in LISTED), *(rounds for rounds, _ in LISTED.values())]
        return float(np.abs(np.log(np.array(mine) / np.array(listed))).sum())

    return min(problems, key=off)


def _exact(problem: Quadratics, lam: float) -> float:
    return _needed(fedclup(problem, lam, inner=np.inf, rounds=400, tol=TOL).rounds_to(TOL))


def _automatic(problem: Quadratics, lam: float) -> float:
    return _needed(fedclup(problem, lam, rounds=400, tol=TOL).rounds_to(TOL))


def counted(problems: Sequence[Quadratics], one: Quadratics, lam: float) -> Counted:
    """Rounds of ``one`` instance at one strength, and the range with the automatic K of all ``problems``."""
    most = 40 + int(14 * (1 + lam / CURVATURE.least))  # what plain averaging may take
    plain = fedclup(one, lam, gamma=1 / lam, inner=np.inf, rounds=most, tol=TOL).rounds_to(TOL)
    trace = fedclup(one, lam, rounds=400, tol=TOL)
    auto = _needed(trace.rounds_to(TOL))
    every = [_automatic(problem, lam) for problem in problems]
    kappa = float(envelope(CURVATURE, lam).condition)
    predicted = 1 + float(np.log(TOL) / (2 * np.log(1 - 1 / kappa)))
    mine = (_exact(one, lam), _needed(plain), auto, auto * trace.inner, predicted)
    return Counted(lam, kappa, int(trace.inner), *mine, min(every), max(every), *LISTED[lam])


def _needed(rounds: int | None) -> float:
    return float("inf") if rounds is None else float(rounds)


class Step(NamedTuple):
    """The mean squared distance from the truth of a method after so many communication rounds."""

    model: str
    method: str
    lam: float
    round: int
    error: float


class Cost(NamedTuple):
    """A strength: error of the solution, its theory, and rounds and gradients to a relative error of ``NEAR``."""

    model: str
    lam: float
    error: float
    theory: float
    rounds: float
    gradients: float


NEAR = 1e-4


def problems_of(model: str, draw: Draw) -> list[Problem]:
    """One problem for each repeat."""
    if model == "linear":
        return [Quadratics.from_rows(x, y) for x, y in zip(draw.x, draw.y, strict=True)]
    return [Penalized(clients_of(x, y, "logistic")) for x, y in zip(draw.x, draw.y, strict=True)]


def solved(problem: Problem, lams: Sequence[float] | Floats) -> Floats:
    """(strengths, clients, dim) personal models."""
    return (problem.path(lams) if isinstance(problem, Quadratics) else problem.solve(lams)).own


MIDDLE = "FedCLUP, lambda"


def followed(model: str, draw: Draw, lam: float, looks: Sequence[int]) -> list[Step]:
    """Total errors at the rounds of ``looks``: FedCLUP also with a tenth of the strength and ten times it."""

    def ours(strong: float) -> Way:
        return lambda problem, count: _last(fedclup(problem, strong, rounds=count, tol=0.0))

    ways: dict[str, Way] = {
        "LocalTrain": lambda problem, count: (count, solved(problem, [0.0])[0]),
        "FedCLUP, lambda / 10": ours(lam / 10),
        MIDDLE: ours(lam),
        "FedCLUP, 10 lambda": ours(10 * lam),
        "GlobalTrain": _global,
        "pFedMe, 5 local steps": lambda problem, count: _last(pfedme(problem, lam, local=5, rounds=count, tol=0.0)),
        "L2GD": lambda problem, count: _tossed(problem, lam, count),
        "Ditto": lambda problem, count: _last(ditto(problem, lam, local=1, rounds=count, tol=0.0)),
    }
    problems = problems_of(model, draw)
    found: dict[tuple[str, int], Step] = {}  # of looks between two communication rounds, the last
    for name, way in ways.items():
        for look in looks:
            ends = [way(one, look) for one in problems]
            mean = float(np.mean([_error(draw, at, own) for at, (_, own) in enumerate(ends)]))
            found[name, ends[0][0]] = Step(model, name, lam, ends[0][0], mean)
    return [step for step in found.values() if step.round > 0]


def _last(trace: Trace) -> tuple[int, Floats]:
    return trace.talks, trace.own


def _global(problem: Problem, rounds: int) -> tuple[int, Floats]:
    """One step 1 / L down the pooled loss in each round: the shared model of Ditto with a single local step."""
    trace = ditto(problem, 1.0, local=1, rounds=rounds, tol=0.0)
    return rounds, np.broadcast_to(trace.shared, trace.own.shape)


def _tossed(problem: Problem, lam: float, rounds: int) -> tuple[int, Floats]:
    """L2GD for so many tosses that about as many of them are communication rounds; the same coins in every repeat."""
    return _last(l2gd(problem, lam, jax.random.key(0), rounds=4 * rounds, tol=0.0))


def _error(draw: Draw, at: int, own: Floats) -> float:
    return float(np.square(own - draw.truth[at]).sum(-1).mean())


def costs(model: str, draw: Draw, lams: Floats, theory: Sequence[float]) -> list[Cost]:
    """What every strength buys and costs: means over repeats."""
    problems, found = problems_of(model, draw), []
    for lam, expected in zip(lams, theory, strict=True):
        errors, rounds, gradients = [], [], []
        for at, problem in enumerate(problems):
            errors.append(_error(draw, at, solved(problem, [lam])[0]))
            trace = fedclup(problem, float(lam), rounds=2_000, tol=NEAR)
            rounds.append(_needed(trace.rounds_to(NEAR)))
            gradients.append(rounds[-1] * trace.inner)
        found.append(
            Cost(model, float(lam), *(float(np.mean(one)) for one in (errors, [expected], rounds, gradients)))
        )
    return found


def resting_place(problem: Quadratics, local: int) -> float:
    """How far from the pooled minimizer FedAvg with so many local steps comes to rest, over the minimizer's length."""
    pooled = problem.path([np.inf]).shared[0]
    rest = ditto(problem, 1.0, local=local, rounds=3_000, tol=0.0).shared
    return float(np.linalg.norm(rest - pooled) / np.linalg.norm(pooled))
