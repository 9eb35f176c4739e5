"""How much clients worked: gradient steps of training, warm-ups included."""

from __future__ import annotations

from plures.engine import cohort as cohorts
from plures.engine.cohort import Everyone
from plures.engine.prepared import Prepared
from plures.engine.record import Record
from plures.engine.round import STEPS


def steps_per_client(ready: Prepared, record: Record) -> float:
    """The mean over training clients of the gradient steps they made, all rounds and exchanges together.

    A round's record is the mean over its cohort, so that it counts for the cohort's share of the clients. A step of Newton's
    method counts as one. What clients do when they are served (fine-tuning, say) is done once and not counted.
    """
    total = 0.0
    for span in ready.phases:
        cohort = Everyone() if span.everyone else cohorts.cohort(ready.settings.cohort)
        share = cohort.size(ready.num_seen) / ready.num_seen
        rounds = range(span.start + 1, span.stop + 1)
        total += share * sum(value for at, name, value in record.info if name == STEPS and at in rounds)
    return total
