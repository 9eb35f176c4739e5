"""The alphas for which a partition is the solution's, proved at both ends by what happens there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plures.solvers.certificate import certify
from plures.solvers.fused_problem import Problem, models_of
from plures.solvers.partition import Partition
from plures.types import Floats

STRIDE, BISECTIONS = 1.15, 14
"""Steps outward from where the partition is known to hold, and halvings at the end."""


@dataclass(frozen=True)
class AlphaInterval:
    """The partition is the solution's from ``low`` to ``high``, at all alphas looked at; what happens ``below`` and ``above``.

    "split": a cluster falls apart. "merge": two clusters meet. "unproved": neither is shown, and the proof fails. "open":
    nothing happened as far as was looked.
    """

    low: float
    high: float
    below: str
    above: str

    @property
    def ratio(self) -> float:
        """How many times larger the upper end is."""
        return self.high / self.low if self.low > 0 else np.inf


def certified_interval(
    partition: Partition, alpha: float, w: Floats, *, duals: Floats | None = None, reach: float = 1e3
) -> AlphaInterval | None:
    """The interval around ``alpha`` on which the partition stays the solution's; None where it is not at ``alpha``.

    For losses that are not quadratic a partition may come back further out: this is the piece that holds ``alpha``.
    """
    here = _look(partition, alpha, w, duals)
    if here.event:
        return None
    low, below = _end(partition, alpha, here, 1.0 / STRIDE, reach)
    high, above = _end(partition, alpha, here, STRIDE, reach)
    return AlphaInterval(low, high, below, above)


class _Look(NamedTuple):
    event: str
    w: Floats
    duals: Floats | None


def _look(partition: Partition, alpha: float, w: Floats, duals: Floats | None) -> _Look:
    """What the partition does at alpha: nothing (it holds), a "merge" or a "split"."""
    merged, models, _ = models_of(Problem(partition.clients, partition.graph, alpha), partition, w)
    if merged.number < partition.number:
        return _Look("merge", w, duals)
    proof, _ = certify(partition, alpha, models, start=duals, search=500)
    if not proof.held.all():
        return _Look("split" if proof.low.max() > alpha else "unproved", models, duals)
    return _Look("" if proof.solved else "unproved", models, proof.u)


def _end(partition: Partition, alpha: float, here: _Look, stride: float, reach: float) -> tuple[float, str]:
    """The last alpha in one direction at which the partition holds, and what ends it."""
    good, state = alpha, here
    while True:
        bad = good * stride
        if not 1.0 / reach <= bad / alpha <= reach:
            return good, "open"
        ahead = _look(partition, bad, state.w, state.duals)
        if ahead.event:
            break
        good, state = bad, ahead
    event = ahead.event
    for _ in range(BISECTIONS):
        middle = 0.5 * (good + bad)
        ahead = _look(partition, middle, state.w, state.duals)
        if ahead.event:
            # Close to the end neither is shown any more: what was seen further out counts.
            bad, event = middle, event if ahead.event == "unproved" else ahead.event
        else:
            good, state = middle, ahead
    return good, event
