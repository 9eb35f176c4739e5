"""The two ends of a comparison are trained until valid rows stop improving: a weak end would overstate every gain."""

from __future__ import annotations

from typing import Any

from plures.method import Method
from plures.study.comparison import ALONE, GLOBAL

LONGER = 4
"""By how much more rounds an end may be played than the methods that are held against it."""


def playing(
    label: str, method: Method, rounds: int, patience: int | None, eval_every: int | None
) -> dict[str, Any]:
    """The rounds of a method of a study; the ends have up to four times as many, and stop by their valid loss.

    A study that is too short for as many evaluations as the patience is of its rounds is played as it was asked for.

    >>> from plures.contract import worlds
    >>> from plures.methods.fedavg import fedavg
    >>> method = fedavg(worlds.model())
    >>> playing("fedavg", method, 60, 3, 10), playing("ditto", method, 60, 3, 10), playing("fedavg", method, 5, 3, 10)
    ({'rounds': 240, 'patience': 3}, {'rounds': 60}, {'rounds': 5})
    """
    short = patience is None or eval_every is None or rounds < patience * eval_every
    if short or label not in (ALONE, GLOBAL) or len(method.phases) > 1:
        return {"rounds": rounds}
    return {"rounds": LONGER * rounds, "patience": patience}
