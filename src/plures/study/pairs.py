"""Methods compared in pairs over the same clients and seeds, corrected for how many pairs are looked at.

Differences of all pairs are resampled together. With s_j the standard deviation of the resampled mean difference of pair j,
c is the 95 % quantile, over draws b, of

    max_j |d_jb - d_j| / s_j

The intervals d_j +- c s_j hold for all pairs at once, and p_j is the share of draws whose maximum reaches |d_j| / s_j: an
interval leaves zero out where p_j is below 0.05. (Single-step resampling; Westfall and Young 1993.) Resampling few clients
is too sure of itself, so s_j is that of the draws times sqrt(n / (n - 1)) t / z, with n clients and the 97.5 % quantiles t of
Student's law with n - 1 degrees of freedom and z of the normal one. One client tells nothing of others. Few seeds are not
made up for: with one of them, what its luck does is not in the intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

from plures.study.statistics import mean_of, means_drawn, over_seeds

LEVEL = 0.05
ROUNDING = 1e-12


@dataclass(frozen=True)
class Pair:
    """How much ``method`` scores above ``other``: the mean difference, its interval, and its p-value, both corrected."""

    method: str
    other: str
    mean: float
    low: float
    high: float
    p: float

    @property
    def clear(self) -> bool:
        """Whether the difference is beyond noise."""
        return self.low > 0 or self.high < 0


def in_pairs(scores: Mapping[str, NDArray[np.floating]], pairs: Sequence[tuple[str, str]]) -> list[Pair]:
    """The comparisons of these pairs of methods; ``scores`` are (seeds, clients) each, NaN where there is none.

    A pair of which fewer than two clients have both scores is unknown: its ends are NaN, and p = 1.
    """
    if not pairs:
        return []
    tables = [np.atleast_2d(scores[one]) - np.atleast_2d(scores[other]) for one, other in pairs]
    means = np.array([mean_of(table) for table in tables])
    # What rounding leaves of equal scores is no spread.
    drawn = np.array([means_drawn(table) for table in tables]).reshape(len(pairs), -1)
    spread = np.where(np.isfinite(drawn), drawn - means[:, None], 0.0)
    errors = np.sqrt((spread**2).mean(1))
    known = np.isfinite(means) & (errors > ROUNDING)
    most = np.abs(spread[known] / errors[known, None]).max(0, initial=0.0)
    reach = float(np.quantile(most, 1 - LEVEL)) if known.any() else 0.0
    widths = np.array([_widened(int(np.isfinite(over_seeds(table)).sum())) for table in tables])
    found = []
    for (one, other), mean, error in zip(pairs, means, np.where(known, errors, 0.0) * widths, strict=True):
        low, high = float(mean - reach * error), float(mean + reach * error)
        found.append(Pair(one, other, float(mean), low, high, _p(mean, error, most)))
    return found


def _widened(clients: int) -> float:
    """By how much the spread of the draws is widened; NaN for fewer than two clients.

    >>> round(_widened(3), 2), round(_widened(40), 2)
    (2.69, 1.05)
    """
    if clients < 2:
        return float("nan")
    return float(np.sqrt(clients / (clients - 1)) * t.ppf(1 - LEVEL / 2, clients - 1) / norm.ppf(1 - LEVEL / 2))


def _p(mean: float, error: float, most: NDArray[np.floating]) -> float:
    """The share of draws whose largest deviation is at least that of the mean from 0."""
    if not np.isfinite(mean) or not np.isfinite(error) or abs(mean) <= ROUNDING:
        return 1.0
    at_least = (most >= abs(mean) / error).sum() if error > 0 else 0
    return float((at_least + 1) / (len(most) + 1))
