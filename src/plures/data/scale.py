"""Federated standardization: columns get mean 0 and deviation 1 by statistics that clients could send.

Each client sends, per column, how many values it has, their mean and their summed squared deviation (three
numbers); the server merges them (Chan, Golub, LeVeque 1983). Only training rows of seen clients count, and a
missing value (NaN) counts nowhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures.data.tails import tame


class ColumnMoments(NamedTuple):
    """What one client sends per column, or the server's merger of all; stacked on axis 0 for many clients."""

    number: NDArray[Any]
    mean: NDArray[Any]
    square: NDArray[Any]


def client_moments(x: NDArray[Any], owner: NDArray[Any]) -> ColumnMoments:
    """The moments of each client's rows, (clients, columns); ``owner`` numbers clients from 0 on."""
    num_clients, flat = int(owner.max()) + 1, x.reshape(len(x), -1).astype(np.float64)
    known = ~np.isnan(flat)
    count = _sums(known.astype(np.float64), owner, num_clients)
    mean = _sums(np.where(known, flat, 0.0), owner, num_clients) / np.maximum(count, 1)
    square = _sums(np.where(known, flat - mean[owner], 0.0) ** 2, owner, num_clients)
    return ColumnMoments(count, mean, square)


def merge_moments(parts: ColumnMoments) -> ColumnMoments:
    """The moments of all rows together, from those of the clients.

    >>> merge_moments(ColumnMoments(np.array([[2.0], [1.0]]), np.array([[1.0], [4.0]]), np.array([[2.0], [0.0]])))
    ColumnMoments(number=array([3.]), mean=array([2.]), square=array([8.]))
    """
    count = parts.number.sum(0)
    mean = (parts.number * parts.mean).sum(0) / np.maximum(count, 1)
    between = (parts.number * (parts.mean - mean) ** 2).sum(0)
    return ColumnMoments(count, mean, parts.square.sum(0) + between)


class ColumnScale(NamedTuple):
    """The mean and deviation of every column; a constant column has deviation 1. ``knee``: where tails begin to be tamed."""

    mean: NDArray[Any]
    deviation: NDArray[Any]
    knee: float = np.inf

    def standardize(self, x: NDArray[Any]) -> NDArray[Any]:
        """Rows as vectors with mean 0 and deviation 1, tails and missing values as they are."""
        found: NDArray[Any] = (x.reshape(len(x), -1) - self.mean) / self.deviation
        return found

    def apply(self, x: NDArray[Any]) -> NDArray[Any]:
        """Standardized inputs of the same shape (float32); a missing value becomes 0, the mean."""
        flat = tame(self.standardize(x), self.knee)
        return np.nan_to_num(flat, nan=0.0).astype(np.float32).reshape(x.shape)


def federated_scale(x: NDArray[Any], owner: NDArray[Any], use: NDArray[np.bool_]) -> ColumnScale:
    """The scale from the rows in ``use`` (training rows of seen clients)."""
    numbers = np.unique(owner[use], return_inverse=True)[1]
    whole = merge_moments(client_moments(x[use], numbers))
    deviation = np.sqrt(whole.square / np.maximum(whole.number, 1))
    # What is left of a constant column after rounding is no spread.
    flat = deviation <= 1e-7 * np.maximum(np.abs(whole.mean), 1e-30)
    return ColumnScale(whole.mean, np.where(flat, 1.0, deviation))


def _sums(values: NDArray[Any], owner: NDArray[Any], num_clients: int) -> NDArray[Any]:
    """The sum over each client's rows, (clients, columns)."""
    order = np.argsort(owner, kind="stable")
    firsts = np.searchsorted(owner[order], np.arange(num_clients))
    # reduceat gives a row, not zero, where a client has none; those are put right below.
    found = np.add.reduceat(values[order], firsts, axis=0)
    found[np.bincount(owner, minlength=num_clients) == 0] = 0.0
    return found
