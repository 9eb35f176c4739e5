"""How a client chooses between options by its valid rows, and what is best for a whole population.

A client starts from the global option. The families are tried in the order global, clusters, personal, alone; within one
the option with the least loss on the client's valid rows stands for it. The client moves there only if the gain on these
rows over its choice so far exceeds one standard error of the gain (rows are paired), or as many as asked for. One is a low
bar: where nothing differs, chance alone carries a rival over it one time in six; over two, one time in forty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plures.advise.families import DECISIONS

ROUNDING = 1e-6  # of the loss: a smaller gain is no gain

RowLosses: TypeAlias = NDArray[np.floating]
"""(seeds, rows) losses of one client."""


@dataclass(frozen=True)
class Candidate:
    """What a client may take, and the losses it would have: an entry per client in the order of uids.

    An option that serves only clients it was trained with has fewer entries than there are clients.
    """

    name: str
    family: str
    valid: Sequence[RowLosses]
    test: Sequence[RowLosses]

    def serves(self, uid: int) -> bool:
        """Whether the client has a model of this option, one whose losses are numbers."""
        return uid < len(self.valid) and bool(np.isfinite(self.valid[uid]).all())

    def losses(self, split: str, uid: int) -> RowLosses:
        """(seeds, rows) losses of a client on its valid or test rows; no rows where it has no model."""
        part = self.valid if split == "valid" else self.test
        return part[uid] if uid < len(part) else np.empty((len(part[0]), 0))

    def mean_losses(self, split: str, uid: int) -> RowLosses:
        """(seeds,) their means; NaN where there are no rows."""
        found = self.losses(split, uid)
        return found.mean(axis=1) if found.shape[1] else np.full(len(found), np.nan)


class Gain(NamedTuple):
    """How much a loss falls from one option to another, on average over rows, and its standard error."""

    mean: float
    error: float


def choose(options: Sequence[Candidate], uid: int, *, errors: float = 1.0) -> Candidate:
    """The option a client decides for by its valid rows; the first one is where it starts."""
    now = options[0]
    for family in DECISIONS:
        able = [option for option in options if option.family == family and option.serves(uid)]
        if able:
            rival = min(able, key=lambda option: option.valid[uid].mean())
            now = rival if _clear(now.valid[uid], rival.valid[uid], errors) else now
    return now


def _clear(before: RowLosses, after: RowLosses, errors: float) -> bool:
    gain = paired_gain(before, after)
    return gain.mean > errors * gain.error + ROUNDING * abs(float(before.mean()))


def paired_gain(before: RowLosses, after: RowLosses) -> Gain:
    """The mean fall of the loss over rows (seeds averaged first) and its standard error; NaN where unknown.

    >>> paired_gain(np.array([[3.0, 3.0]]), np.array([[1.0, 2.0]]))
    Gain(mean=1.5, error=0.5)
    """
    number = min(before.shape[1], after.shape[1])
    if not number:
        return Gain(math.nan, math.nan)
    with np.errstate(invalid="ignore"):  # a loss may be infinite
        falls = (before - after).mean(axis=0)
        return Gain(float(falls.mean()), float(falls.std(ddof=1)) / math.sqrt(number) if number > 1 else math.nan)


def population_best(options: Sequence[Candidate], uids: Iterable[int]) -> Candidate:
    """The option of the least mean valid loss over these clients, each counting the same; simplest first on ties."""
    known = [uid for uid in uids if options[0].valid[uid].shape[1]]

    def risk(option: Candidate) -> float:
        able = all(option.serves(uid) for uid in known)
        return float(np.mean([option.valid[uid].mean() for uid in known])) if able and known else math.inf

    return min(options, key=risk)
