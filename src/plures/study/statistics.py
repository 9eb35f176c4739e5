"""Statistics over clients: the per-client table comes first, everything else is derived from it."""

from __future__ import annotations

from dataclasses import dataclass

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
    """The mean over clients of (clients,) or (seeds, clients) values, seeds averaged first."""
    per_client = over_seeds(np.atleast_2d(values))
    per_client = per_client[np.isfinite(per_client)]
    if not len(per_client):
        return Interval(float("nan"), float("nan"), float("nan"))
    picks = jax.random.randint(root(seed), (DRAWS, len(per_client)), 0, len(per_client))
    low, high = np.percentile(per_client[np.asarray(picks)].mean(1), [2.5, 97.5])
    return Interval(float(per_client.mean()), float(low), float(high))


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
