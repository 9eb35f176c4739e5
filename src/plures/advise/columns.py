"""Columns of a federation for linear models: as tables, on one scale, and on their principal axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plures.types import Floats


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
