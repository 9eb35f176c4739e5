"""The unit of a regression's targets, from what clients could send: count, mean and summed squared deviation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plures.data.scale import federated_scale
from plures.types import TargetUnit


def target_unit(y: NDArray[Any], start: NDArray[np.int64], count: NDArray[np.int64]) -> TargetUnit:
    """The mean and the deviation of the targets of some clients' training rows, one of each per output.

    ``start`` and ``count`` say where each client's training rows lie. A target that is the same for all has deviation 1.

    >>> target_unit(np.array([1.0, 3.0, 9.0, 5.0, 7.0]), np.array([0, 3]), np.array([2, 2]))
    TargetUnit(shift=4.0, scale=2.23606797749979)
    """
    owner = np.repeat(np.arange(len(count)), count)
    rows = np.arange(len(owner)) + np.repeat(start - (np.cumsum(count) - count), count)
    found = federated_scale(y[rows].reshape(len(rows), -1), owner, np.ones(len(rows), bool))
    if y.ndim == 1:
        return TargetUnit(float(found.mean[0]), float(found.deviation[0]))
    return TargetUnit(tuple(found.mean.tolist()), tuple(found.deviation.tolist()))
