"""The engine: loops, vectorization, randomness, cohorts, evaluation and records. It names no method."""

from plures.engine.attackers import AttackSummary
from plures.engine.cohort import Everyone, Uniform, Weighted
from plures.engine.executors import Executor, chunked, one_by_one, vectorized
from plures.engine.record import Progress
from plures.engine.result import Run, Served, newcomers
from plures.engine.round import Family
from plures.engine.runner import Runner, prepare, run
from plures.engine.settings import Settings
from plures.engine.state import State
