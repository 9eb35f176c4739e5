"""When a run has come to its end: valid rows have stopped improving."""

from __future__ import annotations

import numpy as np

from plures.engine.clients import VALID
from plures.engine.prepared import Prepared
from plures.engine.record import Record

ENOUGH = 0.005
"""By what share of itself the mean valid loss must fall for an evaluation to count as an improvement."""


def has_settled(ready: Prepared, record: Record) -> bool:
    """Whether the mean valid loss has not improved for as many evaluations as the run has patience for.

    It is the mean over honest clients in training that have valid rows; one that is no finite number is no improvement.
    """
    patience = ready.settings.patience
    if patience is None:
        return False
    counted = ~ready.attackers[: ready.num_seen] & (ready.everyone.count[: ready.num_seen, VALID] > 0)
    best, waited = np.inf, 0
    for one in record.scores:
        if (one.kind, one.split) != ("personal", "valid") or not counted.any():
            continue
        loss = float(np.mean(np.asarray(one.metrics["loss"], float)[: ready.num_seen][counted]))
        improved = loss < (best - ENOUGH * abs(best) if np.isfinite(best) else np.inf)
        best, waited = (loss, 0) if improved else (best, waited + 1)
    return waited >= patience
