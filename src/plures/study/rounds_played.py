"""For how many rounds the methods of a study are played: until valid rows stop improving, all by the same rule.

With a fixed number of rounds a slow method is held against the end of a fast one; and a weak end (training alone, one model
for all) would overstate every gain.
"""

from __future__ import annotations

from typing import Any

LONGER = 4
"""By how much more rounds a method may be played than a study asks for, as long as its valid rows improve."""


def rounds_played(rounds: int, patience: int | None, eval_every: int | None) -> dict[str, Any]:
    """The settings of a run that say how long it is: up to four times the rounds, ended by the valid loss.

    A study that is too short for as many evaluations as the patience is of its rounds is played as it was asked for.

    >>> rounds_played(60, 3, 10), rounds_played(60, None, 10), rounds_played(5, 3, 10)
    ({'rounds': 240, 'patience': 3}, {'rounds': 60}, {'rounds': 5})
    """
    if patience is None or eval_every is None or rounds < patience * eval_every:
        return {"rounds": rounds}
    return {"rounds": LONGER * rounds, "patience": patience}
