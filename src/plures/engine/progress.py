"""How far a run is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plures.engine.record import Scores


@dataclass(frozen=True)
class Progress:
    """How far a run is, for whoever shows it."""

    round: int
    rounds: int
    num_bytes: int
    metric: str
    score: float | None
    seconds: float
    rounds_per_second: float
    loss: float | None = None  # on valid rows, as the score


def mean_known(found: Scores | None, metric: str, rows: np.ndarray) -> float | None:
    """The mean of a metric over some clients that have one; None if no client has."""
    if found is None or metric not in found.metrics:
        return None
    values = found.metrics[metric][rows]
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
