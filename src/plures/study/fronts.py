"""What is worth its cost: Pareto fronts, the rounds a curve needs, and the best point that a budget allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plures.errors import BadValue

TOLERANCE = 0.01
"""Of the way from the first evaluation of a curve to its best one: what is that near the best is as good."""


def pareto(costs: NDArray[np.floating], errors: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Which points no other one beats: none costs at most as much, errs at most as much, and less in one of them.

    A point whose cost or error is no finite number is never on the front.

    >>> pareto(np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.6, 0.4])).tolist()
    [True, False, True]
    """
    found, best, last = np.zeros(len(costs), bool), math.inf, (math.nan, math.nan)
    known = np.isfinite(costs) & np.isfinite(errors)
    for place in np.lexsort((errors, costs)):
        here = (float(costs[place]), float(errors[place]))
        if known[place] and (here[1] < best or here == last):
            found[place], best, last = True, here[1], here
    return found


def place_needed(errors: NDArray[np.floating], tolerance: float = TOLERANCE) -> int | None:
    """The first place of a curve as good as its best one; None where no error is a finite number.

    As good: above the best by at most ``tolerance`` of how far the best lies below the first finite error.

    >>> place_needed(np.array([2.0, 1.5, 1.009, 1.0, 1.2]))
    2
    """
    finite = np.flatnonzero(np.isfinite(errors))
    if not len(finite):
        return None
    best = errors[finite].min()
    enough = errors[finite] <= best + tolerance * (errors[finite[0]] - best)
    return int(finite[enough][0])


def unit_of(most_mb: float) -> tuple[str, float]:
    """(name, how many make a megabyte) of the unit in which such traffic is read best."""
    return ("MB", 1.0) if most_mb >= 0.1 else ("kB", 1e3)


def said_mb(mb: float) -> str:
    """Traffic with its unit.

    >>> said_mb(2.5), said_mb(0.0125)
    ('2.5 MB', '12.5 kB')
    """
    unit, per_mb = unit_of(mb)
    return f"{mb * per_mb:.3g} {unit}"


@dataclass(frozen=True)
class Budget:
    """The most megabytes per client, and the most rounds; None is no bound.

    >>> Budget(mb=0.0)
    Traceback (most recent call last):
    plures.errors.BadValue: budget_mb must be a positive number, got 0.0
    """

    mb: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.mb is not None and not 0 < self.mb < math.inf:
            raise BadValue("budget_mb", self.mb, "a positive number")
        if self.rounds is not None and self.rounds < 1:
            raise BadValue("budget_rounds", self.rounds, "1 or more")

    @property
    def said(self) -> str:
        """The bounds in words; empty if there are none."""
        mb = "" if self.mb is None else f"{said_mb(self.mb)} per client"
        rounds = "" if self.rounds is None else f"{self.rounds} rounds"
        return " and ".join(one for one in (mb, rounds) if one)

    def allows(self, mb: NDArray[np.floating], rounds: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which points cost no more than this."""
        most_mb = math.inf if self.mb is None else self.mb
        most_rounds = math.inf if self.rounds is None else self.rounds
        return (mb <= most_mb) & (rounds <= most_rounds)


def best_place(errors: NDArray[np.floating], allowed: NDArray[np.bool_]) -> int | None:
    """Where the least error of the allowed points is, the first one on ties; None if there is none."""
    able = np.where(allowed & np.isfinite(errors), errors, math.inf)
    return int(able.argmin()) if len(able) and np.isfinite(able.min()) else None
