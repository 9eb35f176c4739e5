"""Convex clustering round by round: what each algorithm needs, and what the printed one ends at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from papers.convex_clustering.algorithms import fista, linearized_admm
from papers.convex_clustering.ellipses import Draw, Floats
from papers.convex_clustering.pdmm import Steps, as_printed, pdmm, random_turns
from plures.solvers import Problem, Solution, complete, consensus, douglas_rachford, objective, solve

MARKS = (1e-3, 1e-6, 1e-9)  # relative errors of the objective
DR, FISTA, ADMM, PDMM, SPLIT = "Douglas-Rachford", "FISTA", "linearized ADMM", "PDMM", "fuse and split"
SHARE = 0.2

# Rounds to the marks by another program on a draw of its own; with a fifth of the clients only the middle one is known.
OTHER: Mapping[tuple[str, float, float], tuple[int | None, int | None, int | None]] = {
    (DR, 0.08, 1.0): (6, 11, 28),
    (FISTA, 0.08, 1.0): (4, 16, 36),
    (ADMM, 0.08, 1.0): (11, 70, 198),
    (PDMM, 0.08, 1.0): (28, 103, 266),
    (DR, 0.08, SHARE): (None, 107, None),
    (PDMM, 0.08, SHARE): (None, 815, None),
    (DR, 0.02, 1.0): (5, 15, 26),
    (FISTA, 0.02, 1.0): (12, 37, 58),
    (ADMM, 0.02, 1.0): (6, 29, 426),
    (PDMM, 0.02, 1.0): (10, 65, 1277),
    (DR, 0.02, SHARE): (None, 139, None),
    (PDMM, 0.02, SHARE): (None, 676, None),
}
# What is tried for the one number that each has to be told.
TRIED = {DR: (3.0, 6.0, 10.0), FISTA: (0.0,), ADMM: (0.1, 0.2, 0.4, 0.8), PDMM: (0.1, 0.2, 0.4, 0.8)}
TRIED_FEW = {DR: (3.0, 8.0), PDMM: (0.2, 0.8)}
GOOD = {
    (DR, 0.08): 10.0,
    (DR, 0.02): 3.0,
    (ADMM, 0.08): 0.8,
    (ADMM, 0.02): 0.1,
    (PDMM, 0.08): 0.8,
    (PDMM, 0.02): 0.2,
}


class Reached(NamedTuple):
    """The rounds after which each mark was met (None: not in time), and the error after every round."""

    method: str
    alpha: float
    share: float
    option: float
    rounds: tuple[int | None, ...]
    errors: list[float]


def reached(data: Draw, method: str, alpha: float, share: float, option: float, most: int) -> Reached:
    """One algorithm at one setting, from the global model."""
    clients, graph = data.clients, complete(data.clients.num)
    best = _best(data, alpha)
    errors: list[float] = []

    def watch(count: int, x: Floats, u: Floats) -> bool:
        errors.append(max(objective(clients, graph, alpha, x) / best.value - 1, 1e-16))
        return errors[-1] <= MARKS[-1]

    start = np.broadcast_to(consensus(clients).model, (clients.num, clients.dim)).copy()
    _algorithm(method, share, option, data)(clients, graph, alpha, start=start, rounds=most, watch=watch)
    met = tuple(next((place + 1 for place, one in enumerate(errors) if one <= mark), None) for mark in MARKS)
    return Reached(method, alpha, share, option, met, errors)


def _algorithm(method: str, share: float, option: float, data: Draw) -> Callable[..., Any]:
    num, key = data.clients.num, jax.random.key(data.seed)
    if method == DR:
        cohorts = None if share == 1 else _cohorts(key, num, round(share * num))
        return partial(douglas_rachford, rho=option, cohorts=cohorts)
    if method == PDMM:
        turns = None if share == 1 else random_turns(key, num, num * (num - 1) // 2, share=share)
        return partial(pdmm, steps=Steps(rho=option), turns=turns)
    return fista if method == FISTA else partial(linearized_admm, rho=option)


def _cohorts(key: Any, num: int, size: int) -> Iterator[NDArray[Any]]:
    while True:
        key, own = jax.random.split(key)
        yield np.sort(np.asarray(jax.random.permutation(own, num))[:size])


def _best(data: Draw, alpha: float) -> Solution:
    found = solve(Problem(data.clients, complete(data.clients.num), alpha))
    assert found.certificate.exact, f"draw {data.seed} has no proved solution at alpha {alpha:g}"
    return found


def best_reached(data: Draw, method: str, alpha: float, share: float, *, tuned: bool, most: int = 4_000) -> Reached:
    """The setting that meets the middle mark first, of all that are tried, or of the one known to be good."""
    tried = (TRIED if share == 1 else TRIED_FEW)[method] if tuned else (GOOD.get((method, alpha), 0.0),)
    runs = [reached(data, method, alpha, share, option, most) for option in tried]
    return min(runs, key=lambda run: run.rounds[1] or most + 1)


def fused(data: Draw, alpha: float) -> tuple[int, int]:
    """Rounds of fusing and splitting: from the global model, and from the solution at an alpha 5 % larger."""
    cold, near = _best(data, alpha), _best(data, 1.05 * alpha)
    problem = Problem(data.clients, complete(data.clients.num), alpha)
    warm = solve(problem, guess=near.label, start=near.x, duals=near.certificate.u)
    return cold.rounds, warm.rounds


class Ended(NamedTuple):
    """Where an algorithm ends: the largest error of a model's number, and relative errors by round."""

    variant: str
    lam: float
    case: str
    off: float
    gap: float
    errors: list[tuple[int, float]]


CASES = ("all blocks", "half of the duals", "non-zero dual start", "half of the clients and edges")
VARIANTS = ("printed", "with (j, i) terms", "corrected")


def ended(data: Draw, variant: str, lam: float, case: str, rounds: int) -> Ended:
    """A variant of PDMM in one of the cases, against the solution of the problem that it is for."""
    clients, num = data.clients, data.clients.num
    graph = complete(num)
    alpha = 2 * lam if variant == VARIANTS[1] else lam
    best = solve(Problem(clients, graph, alpha))
    count = len(graph) * (1 if variant == "corrected" else 2)
    errors: list[tuple[int, float]] = []
    looks = set(np.unique(np.geomspace(1, rounds, 60).astype(int)).tolist())

    def watch(at: int, x: Floats, u: Floats) -> bool:
        if at in looks:
            errors.append((at, max(objective(clients, graph, alpha, x) / best.value - 1, 1e-16)))
        return False

    way = pdmm if variant == "corrected" else partial(as_printed, both=variant == VARIANTS[1])
    run = way(clients, graph, lam, rounds=rounds, watch=watch, **_case(case, count, num, lam, clients.dim))
    gap = objective(clients, graph, alpha, run.x) - best.value
    return Ended(variant, lam, case, float(np.abs(run.x - best.x).max()), gap, errors)


def _case(case: str, count: int, num: int, lam: float, dim: int) -> dict[str, Any]:
    """How duals start and who takes turns."""
    key = jax.random.key(0)
    if case == CASES[1]:
        return {"turns": random_turns(key, num, count, duals=0.5)}
    if case == CASES[2]:
        return {"duals": lam * np.asarray(jax.random.normal(key, (count, dim)), float)}
    if case == CASES[3]:
        return {"turns": random_turns(key, num, count, share=0.5)}
    return {}
