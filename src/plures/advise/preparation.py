"""What all advice does to data first: rows that are there once, targets and columns on one scale.

So no answer depends on units, on a constant in the target, or on a table that was written twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from plures.data import Federation
from plures.types import Floats

POOLED = (
    "the rows of all clients are read in one place: this is a look ahead on one machine, not federated training"
)


def distinct_rows(federation: Federation) -> Federation:
    """The federation with one copy of each row, if all rows of all clients are there equally often, splits apart; else as it is."""
    kept, times = [], 0
    for start, count in zip(federation.start, federation.count, strict=True):
        index = np.concatenate(
            [np.arange(first, first + number) for first, number in zip(start, count, strict=True)]
        )
        rows = np.concatenate([flat_table(part[index]) for part in (federation.x, federation.y)], axis=1)
        _, same, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        times = math.gcd(times, *counts.tolist())
        if times == 1:
            return federation
        kept.append((index, same.reshape(-1)))
    if not times:
        return federation
    parts = [_one_copy(same, times) for _, same in kept]
    index = np.concatenate([index[one] for (index, _), one in zip(kept, parts, strict=True)])
    ends = [np.cumsum(count) for count in federation.count]
    count = np.array(
        [
            np.bincount(np.searchsorted(end, np.flatnonzero(one), side="right"), minlength=3)
            for end, one in zip(ends, parts, strict=True)
        ]
    )
    start = (np.cumsum(count.ravel()) - count.ravel()).reshape(count.shape)
    found = replace(federation, x=federation.x[index], y=federation.y[index], start=start, count=count)
    return found.noted(f"every row of every client is there {times} times; it counts once")


def _one_copy(same: np.ndarray, times: int) -> np.ndarray:
    """Which rows stay: of rows with the same number every ``times``-th, one from an early split and the next from a late one."""
    order = np.argsort(same, kind="stable")
    first = np.searchsorted(same[order], same[order])
    stays = np.empty(len(same), bool)
    stays[order] = (np.arange(len(same)) - first) % times == same[order] % times
    return stays


def standard_targets(federation: Federation, like: Federation | None = None) -> Federation:
    """The federation with targets that have mean 0 and deviation 1 over its training rows, or those of another; classes stay."""
    if federation.task != "regression":
        return federation
    known = like or federation
    rows = [known.y[start[0] : start[0] + count[0]] for start, count in zip(known.start, known.count, strict=True)]
    targets = np.concatenate(rows).astype(float)
    scale = fit_scale(targets, constant=1e-12)
    found = replace(federation, y=scale(federation.y.astype(float)).astype(federation.y.dtype))
    return found.noted("losses are of targets with mean 0 and deviation 1 over the training rows")


def flat_table(x: Any) -> Floats:
    """Inputs as a table, a row each."""
    return np.asarray(x, float).reshape(len(x), int(np.prod(np.shape(x)[1:], dtype=int)))


def fit_scale(table: Floats, *, constant: float, floor: float = 0.0) -> Callable[[Floats], Floats]:
    """A function that centers columns and divides them by their spread, as these rows have them.

    A spread below ``constant`` times the largest one counts as none, and one below ``floor`` times their root mean square as that.
    """
    center, size = table.mean(0), table.std(0)
    if floor:
        size = np.maximum(size, floor * np.sqrt(np.square(size).mean()))
    size = np.where(size > constant * max(float(size.max(initial=0.0)), 1e-300), size, 1.0)

    def scale(rows: Floats) -> Floats:
        found = rows - center
        found /= size
        return found

    return scale


def principal_axes(scaled: Floats, number: int) -> tuple[Floats, Floats]:
    """All variances, largest first, and the first axes (columns, number) of rows on one scale."""
    values, vectors = np.linalg.eigh(scaled.T @ scaled / len(scaled))
    return values[::-1], vectors[:, ::-1][:, :number]
