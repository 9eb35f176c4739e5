"""The engine: loops, vectorization, randomness, cohorts, evaluation and records. It names no method."""

from plures.engine.cohort import Everyone, Uniform, Weighted
from plures.engine.executors import Executor, chunked, one_by_one, vectorized
from plures.engine.follow import follow
from plures.engine.liars import Threat
from plures.engine.newcomers import newcomers
from plures.engine.result import Progress, Run, Served
from plures.engine.round import Family
from plures.engine.run import Runner, prepare, run
from plures.engine.settings import Settings
from plures.engine.state import State
from plures.engine.together import can_join, run_together

__all__ = [
    "Everyone",
    "Executor",
    "Family",
    "Progress",
    "Run",
    "Runner",
    "Served",
    "Settings",
    "State",
    "Threat",
    "Uniform",
    "Weighted",
    "can_join",
    "chunked",
    "follow",
    "newcomers",
    "one_by_one",
    "prepare",
    "run",
    "run_together",
    "vectorized",
]
