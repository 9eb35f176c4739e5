"""What theory says before anything is trained: whether a client should join at all.

It is a relative guide, never a promise of accuracy. It needs a loss in [0, 1]: the log-loss does not qualify unless it
is clipped. The bounds of the paper are in papers/three_approaches/bounds.py of the repository.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization, arXiv 2002.10619.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plures.errors import BadValue


@dataclass(frozen=True)
class Discrepancy:
    """max over h of |L_D1(h) - L_D2(h)|; where it is not ``exact`` it is an estimate from below."""

    value: float
    exact: bool

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.3f}" if self.exact else f"at least {self.value:.3f}"


@dataclass(frozen=True)
class Joining:
    """What a client risks alone and together with all others: comparable with each other, and with nothing else."""

    alone: float
    together: float

    @property
    def worth(self) -> bool:
        """Whether the smaller risk is the common one."""
        return self.together < self.alone

    def __str__(self) -> str:
        word, sign = ("join", "<") if self.worth else ("stay alone", ">=")
        return f"{word}: together {self.together:.3f} {sign} alone {self.alone:.3f} (a relative guide)"


def worth_joining(*, dim: int, own_rows: float, all_rows: float, discrepancy: Discrepancy | float) -> Joining:
    """Whether a client gains from all clients' rows: sqrt(d / m_k) alone, sqrt(d / m) + disc(D_k, U) together.

    The orders of the bounds of arXiv 2002.10619 without their constants. A discrepancy estimated from below favors
    joining.
    """
    check_counts(dim=dim, own_rows=own_rows)
    if not own_rows <= all_rows < math.inf:
        raise BadValue("all_rows", all_rows, f"at least own_rows ({own_rows})")
    if not float(discrepancy) >= 0:
        raise BadValue("discrepancy", discrepancy, "0 or more")
    return Joining(math.sqrt(dim / own_rows), math.sqrt(dim / all_rows) + float(discrepancy))


def discrepancy_categorical(one: Any, other: Any) -> Discrepancy:
    """max_y |D1(y) - D2(y)|: all distributions h over the symbols, with the loss 1 - h(y). Exact."""
    first, second = as_law("one", one), as_law("other", other)
    if first.shape != second.shape:
        raise BadValue("other", f"{second.size} symbols", f"over the {first.size} symbols of one")
    return Discrepancy(float(np.abs(first - second).max()), exact=True)


def check_counts(**numbers: float) -> None:
    """Refuse sizes below 1."""
    for name, number in numbers.items():
        if not 1 <= number < math.inf:
            raise BadValue(name, number, "1 or more")


def as_law(name: str, values: Any) -> NDArray[Any]:
    """Numbers of 0 or more that sum to 1."""
    law = np.asarray(values, float)
    if law.ndim != 1 or not (law >= 0).all() or abs(law.sum() - 1) > 1e-6:
        raise BadValue(name, f"shape {law.shape} and sum {law.sum():g}", "a row of numbers >= 0 that sum to 1")
    return law
