"""Statistics over clients: the per-client table comes first, everything else is derived from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from plures.keys import root

DRAWS = 2000


@dataclass(frozen=True)
class Interval:
    """A mean with the 95 % interval a bootstrap over clients gives it."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside."""
        return self.low > 0 or self.high < 0


def bootstrap(values: NDArray[np.floating], *, seed: int = 0) -> Interval:
    """The mean over clients of (clients,) or (seeds, clients) values; seeds and clients are both resampled."""
    table = np.atleast_2d(np.asarray(values, float))
    if not np.isfinite(table).any():
        return Interval(float("nan"), float("nan"), float("nan"))
    drawn = means_drawn(table, seed=seed)
    low, high = np.percentile(drawn[np.isfinite(drawn)], [2.5, 97.5])
    return Interval(mean_of(table), float(low), float(high))


def mean_of(table: NDArray[np.floating]) -> float:
    """The mean over clients of (seeds, clients) values, after seeds; NaN where there is none."""
    mean = over_seeds(table)
    known = mean[np.isfinite(mean)]
    return float(known.mean()) if len(known) else float("nan")


def means_drawn(table: NDArray[np.floating], *, seed: int = 0) -> NDArray[np.floating]:
    """(draws,) means of (seeds, clients) values over resampled seeds and clients; NaN where a draw has no value.

    Tables of one shape are resampled alike, so differences of their draws are draws of their difference.
    """
    known = np.isfinite(table)
    seeds, clients = _draws(*table.shape, seed)
    total = ((seeds @ np.where(known, table, 0.0)) * clients).sum(1)
    size = ((seeds @ known.astype(float)) * clients).sum(1)
    return np.where(size > 0, total / np.maximum(size, 1.0), np.nan)


@lru_cache(maxsize=2)
def _draws(num_seeds: int, num_clients: int, seed: int) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """How often every draw picks each seed, and each client."""
    key_seeds, key_clients = jax.random.split(root(seed))
    seeds = _times_picked(jax.random.randint(key_seeds, (DRAWS, num_seeds), 0, num_seeds), num_seeds)
    return seeds, _times_picked(jax.random.randint(key_clients, (DRAWS, num_clients), 0, num_clients), num_clients)


def _times_picked(picks: Any, number: int) -> NDArray[np.floating]:
    """How often each of ``number`` things was picked, per draw."""
    rows = np.asarray(picks)
    cell = rows + number * np.arange(len(rows))[:, None]
    return np.bincount(cell.ravel(), minlength=len(rows) * number).reshape(len(rows), number).astype(float)


def over_seeds(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """(seeds, clients) averaged over seeds; NaN for a client without a score in any."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def worst_decile(values: NDArray[np.floating], *, higher_is_better: bool) -> float:
    """The score that nine tenths of the clients reach or beat."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan")
    return float(np.percentile(finite, 10 if higher_is_better else 90))


def share_worse(values: NDArray[np.floating], reference: NDArray[np.floating], *, higher_is_better: bool) -> float:
    """The share of clients that score strictly worse than in the reference."""
    both = np.isfinite(values) & np.isfinite(reference)
    if not both.any():
        return float("nan")
    sign = 1 if higher_is_better else -1
    return float((sign * values[both] < sign * reference[both] - 1e-9).mean())


def weighted_mean(values: NDArray[np.floating], weights: NDArray[np.floating]) -> float:
    """The mean of the known values with these weights (say, test rows: the score of all rows together).

    >>> weighted_mean(np.array([1.0, 0.0, np.nan]), np.array([3.0, 1.0, 5.0]))
    0.75
    """
    known = np.isfinite(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else float("nan")


def gini(values: NDArray[np.floating]) -> float:
    """How unequal scores are: half the mean difference of two clients over the mean; 0 when all are alike.

    NaN where a score is negative or all are 0.

    >>> gini(np.array([0.5, 0.5])), gini(np.array([0.0, 1.0]))
    (0.0, 0.5)
    """
    ordered = np.sort(values[np.isfinite(values)])
    number = len(ordered)
    if not number or ordered[0] < 0 or not ordered[-1] > 0:
        return float("nan")
    places = 2 * np.arange(1, number + 1) - number - 1
    return float((places * ordered).sum() / (number * ordered.sum()))
