"""What is worth its cost: Pareto fronts, the rounds a curve needs, and the best point that a budget allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plures.errors import BadValue
from plures.wording import counted, said_mb

TOLERANCE = 0.01
"""Of the range of the losses of a sweep: what is that near a curve's best point is as good."""

GAIN = 1e-4
"""Of that range: a dearer point that gains no more is not on the front."""

WILD = 1e3
"""Times the largest loss of the first evaluation: what ends above that diverged, though it is a number."""


def pareto(costs: NDArray[np.floating], errors: NDArray[np.floating], slack: float = 0.0) -> NDArray[np.bool_]:
    """Which points no other one beats: none costs at most as much, errs at most as much, and less in one of them.

    Errors that differ by at most ``slack`` are equal: a dearer point has to gain more. A point whose cost or error is no
    finite number is never on the front.

    >>> pareto(np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.6, 0.4])).tolist()
    [True, False, True]
    """
    found, best, last = np.zeros(len(costs), bool), math.inf, (math.nan, math.nan)
    known = np.isfinite(costs) & np.isfinite(errors)
    for at in np.lexsort((errors, costs)):
        here = (float(costs[at]), float(errors[at]))
        if known[at] and here[1] < best - slack:
            found[at], best, last = True, here[1], here
        elif known[at] and here[0] == last[0]:
            found[at] = here[1] <= last[1] + slack
    return found


def needed_index(errors: NDArray[np.floating], slack: float) -> int | None:
    """The first point of a curve above its best one by at most ``slack``; None where no error is a finite number.

    >>> needed_index(np.array([2.0, 1.5, 1.009, 1.0, 1.2]), 0.01)
    2
    """
    able = np.where(np.isfinite(errors), errors, math.inf)
    best = able.min(initial=math.inf)
    return int(np.flatnonzero(able <= best + slack)[0]) if math.isfinite(best) else None


def wild_loss(first: NDArray[np.floating]) -> float:
    """The loss above which a curve diverged, from the losses of the first evaluation of some.

    What lies that far above their median diverged before it, and does not count.

    >>> wild_loss(np.array([0.5, 2.0, 1e20, np.inf]))
    2000.0
    """
    sizes = np.abs(first[np.isfinite(first)])
    usual = sizes[sizes <= WILD * np.median(sizes)] if len(sizes) else sizes
    return WILD * float(usual.max(initial=0.0)) or math.inf


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
    def text(self) -> str:
        """The bounds in words; empty if there are none."""
        mb = "" if self.mb is None else f"{said_mb(self.mb)} per client"
        rounds = "" if self.rounds is None else counted(self.rounds, "round")
        return " and ".join(one for one in (mb, rounds) if one)

    def allows(self, mb: NDArray[np.floating], rounds: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which points cost no more than this."""
        most_mb = math.inf if self.mb is None else self.mb
        most_rounds = math.inf if self.rounds is None else self.rounds
        return (mb <= most_mb) & (rounds <= most_rounds)


def last_index(errors: NDArray[np.floating], allowed: NDArray[np.bool_]) -> int | None:
    """The last of the allowed points; None if there is none, or if its error is no finite number."""
    able = np.flatnonzero(allowed)
    return int(able[-1]) if len(able) and np.isfinite(errors[able[-1]]) else None
