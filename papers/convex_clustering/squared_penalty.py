"""Personal models held together by squares of distances, exactly: what a sum of norms is compared with.

    min  sum_i f_i(x_i)  +  gamma sum_{i<j} |x_i - x_j|^2

Armacki, Bajovic, Jakovetic, Kar: arXiv 2202.00718, (4); read literally its gamma is 1 / (2 N) of this one. Since the
second sum is N sum_i |x_i - mean|^2, this is also the problem of L2GD with the strength 2 N gamma. Models come near each
other and are never equal, so nothing is clustered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plures.errors import BadValue
from plures.solvers.clients import Clients
from plures.solvers.penalized import Penalized
from plures.types import Floats


@dataclass(frozen=True, eq=False)
class Held:
    """Models (N, dim), the objective's value, what is left of its gradient, and the Newton steps made."""

    x: Floats
    value: float
    residual: float
    steps: int


def l2gd_strength(gamma: float, num: int) -> float:
    """The strength of L2GD's penalty for ``gamma sum_{i<j} |x_i - x_j|^2``: 2 N gamma, of half the squares to the mean."""
    return 2.0 * num * gamma


def held_together(
    clients: Clients, gamma: float, *, start: Floats | None = None, tol: float = 1e-10, most: int = 100
) -> Held:
    """The solution: (P) of ``plures.solvers.penalized`` with equal weights and the strength 2 N gamma.

    >>> from plures.solvers.clients import points_as_clients
    >>> held_together(points_as_clients([[0.0], [1.0]]), 0.5).x.T  # pulled in by 1 / (1 + 2 N gamma)
    array([[0.33333333, 0.66666667]])
    """
    if not 0 <= gamma < np.inf:
        raise BadValue("gamma", gamma, "0 or more")
    strong = l2gd_strength(gamma, clients.num)
    problem = Penalized(clients)
    found = problem.solve([strong], None if start is None else (start.mean(0), start), tol=tol, most=most)
    x, shared = found.own[0], found.shared[0]
    left = clients.gradient(x) + strong * (x - shared)
    value = float((clients.value(x) + 0.5 * strong * np.square(x - shared).sum(1)).sum())
    return Held(x, value, float(np.abs(left).max()), found.steps)
