"""The two ends of a comparison are trained until valid rows stop improving: a weak end would overstate every gain."""

from __future__ import annotations

from typing import Any

from plures.method import Method
from plures.study.comparison import ALONE, GLOBAL

LONGER = 4
"""By how much more rounds an end may be played than the methods that are held against it."""


def playing(label: str, method: Method, rounds: int, patience: int | None) -> dict[str, Any]:
    """The rounds of a method of a study; the ends have up to four times as many, and stop by their valid loss.

    >>> from plures.contract import worlds
    >>> from plures.methods.fedavg import fedavg
    >>> playing("fedavg", fedavg(worlds.model()), 60, 3), playing("ditto", fedavg(worlds.model()), 60, 3)
    ({'rounds': 240, 'patience': 3}, {'rounds': 60})
    """
    if patience is None or label not in (ALONE, GLOBAL) or len(method.phases) > 1:
        return {"rounds": rounds}
    return {"rounds": LONGER * rounds, "patience": patience}
