"""The engine: loops, vectorization, randomness, cohorts, evaluation and records. It names no method."""

from plures.engine.cohort import Everyone, Uniform, Weighted
from plures.engine.executors import Executor, chunked, one_by_one, vectorized
from plures.engine.follow import follow
from plures.engine.liars import Threat
from plures.engine.result import Progress, Run, Served
from plures.engine.run import Runner, prepare, run
from plures.engine.settings import Settings
from plures.engine.state import State

__all__ = [
    "Everyone",
    "Executor",
    "Progress",
    "Run",
    "Runner",
    "Served",
    "Settings",
    "State",
    "Threat",
    "Uniform",
    "Weighted",
    "chunked",
    "follow",
    "one_by_one",
    "prepare",
    "run",
    "vectorized",
]
