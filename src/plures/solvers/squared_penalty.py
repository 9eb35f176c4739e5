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
from plures.solvers.links import Floats


@dataclass(frozen=True, eq=False)
class Held:
    """Models (N, dim), the objective's value, what is left of its slope, and the Newton steps made."""

    x: Floats
    value: float
    residual: float
    steps: int


def held_together(
    clients: Clients, gamma: float, *, start: Floats | None = None, tol: float = 1e-10, most: int = 100
) -> Held:
    """The solution by Newton's method: every step is N small systems and one of the sum.

    >>> from plures.solvers.clients import points_as_clients
    >>> held_together(points_as_clients([[0.0], [1.0]]), 0.5).x.T  # pulled in by 1 / (1 + 2 N gamma)
    array([[0.33333333, 0.66666667]])
    """
    if not 0 <= gamma < np.inf:
        raise BadValue("gamma", gamma, "0 or more")
    x = np.zeros((clients.num, clients.dim)) if start is None else start
    strong = 2.0 * clients.num * gamma
    value, slope = _value(clients, x, strong), _slope(clients, x, strong)
    size, steps = 1.0 + float(np.abs(slope).max()), 0
    while steps < most and np.abs(slope).max() > tol * size:
        step = _step(clients.curve(x), slope, strong)
        drop, pace = float(np.vdot(slope, step)), 1.0
        while _value(clients, x + pace * step, strong) > value + 1e-4 * pace * drop and pace > 1e-8:
            pace *= 0.5
        ahead = x + pace * step
        if pace <= 1e-8:  # values drown in rounding: the step counts if the slope shrinks
            ahead = x + step
            if np.abs(_slope(clients, ahead, strong)).max() >= np.abs(slope).max():
                break
        x, steps = ahead, steps + 1
        value, slope = _value(clients, x, strong), _slope(clients, x, strong)
    return Held(x, value, float(np.abs(slope).max()), steps)


def _value(clients: Clients, x: Floats, strong: float) -> float:
    off = x - x.mean(0)
    return float(clients.value(x).sum()) + 0.5 * strong * float(np.vdot(off, off))


def _slope(clients: Clients, x: Floats, strong: float) -> Floats:
    return clients.slope(x) + strong * (x - x.mean(0))


def _step(curve: Floats, slope: Floats, strong: float) -> Floats:
    """The Newton step: (H_i + strong) d_i = -slope_i + strong mean(d), the mean by averaging over clients."""
    place = np.arange(curve.shape[1])
    own = curve.copy()
    own[:, place, place] += strong + 1e-12
    alone = np.linalg.solve(own, -slope[..., None])[..., 0]
    # The share of the mean that is left: I - strong (H + strong)^-1 = (H + strong)^-1 H, which rounds well.
    left = np.linalg.solve(own, curve).mean(0)
    left[place, place] += 1e-15
    middle = np.linalg.solve(left, alone.mean(0))
    return (
        alone + strong * np.linalg.solve(own, np.broadcast_to(middle[:, None], (len(own), len(place), 1)))[..., 0]
    )
