"""Statistics over clients: the per-client table comes first, everything else is derived from it."""

from __future__ import annotations

from dataclasses import dataclass
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
    known = np.isfinite(table)
    if not known.any():
        return Interval(float("nan"), float("nan"), float("nan"))
    num_seeds, num_clients = table.shape
    key_seeds, key_clients = jax.random.split(root(seed))
    seeds = _times_picked(jax.random.randint(key_seeds, (DRAWS, num_seeds), 0, num_seeds), num_seeds)
    clients = _times_picked(jax.random.randint(key_clients, (DRAWS, num_clients), 0, num_clients), num_clients)
    total = np.einsum("ds,sc,dc->d", seeds, np.where(known, table, 0.0), clients)
    size = np.einsum("ds,sc,dc->d", seeds, known.astype(float), clients)
    low, high = np.percentile(total[size > 0] / size[size > 0], [2.5, 97.5])
    mean = over_seeds(table)
    return Interval(float(mean[np.isfinite(mean)].mean()), float(low), float(high))


def _times_picked(picks: Any, number: int) -> NDArray[np.floating]:
    """How often each of ``number`` things was picked, per draw."""
    rows = np.asarray(picks)
    counts = np.zeros((len(rows), number))
    np.add.at(counts, (np.arange(len(rows))[:, None], rows), 1.0)
    return counts


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
