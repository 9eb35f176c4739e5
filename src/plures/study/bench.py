"""What all trials of tuning have in common, and how one of them is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from plures.data import Federation
from plures.engine import Run, Settings
from plures.study.search import Range
from plures.study.sharing import Families, Job, Shared, run_alone, run_groups
from plures.study.spec import build_method
from plures.study.trials import quiet
from plures.types import Method, Model, Plan


class Rung(NamedTuple):
    """So many trials of each method, for so many rounds."""

    trials: int
    rounds: int


class Trial(NamedTuple):
    """One setting of a method; ``redrawn`` draws before it were refused. Without a method all were, for ``reason``.

    ``shape`` is what of its text makes another program, ``numbers`` are the options that need not.
    """

    number: int
    text: str
    lr: float
    values: Mapping[str, Any]
    method: Method | None
    redrawn: int = 0
    reason: str = ""
    shape: str = ""
    numbers: Mapping[tuple[int, str], float] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """All that is the same for every trial."""

    federation: Federation
    model: Model
    named: str
    plan: Plan
    norm: str
    ranges: Mapping[str, Range]
    seed: int
    seeds: tuple[int, ...]
    running: Mapping[str, Any]
    together: bool | None = None

    @cached_property
    def families(self) -> Families:
        """Trials that may share their programs; compiled programs keep what makes a method, but not the data."""
        return Families(partial(built, self.model, self.plan, self.federation.known, self.norm))

    def shared(self, trial: Trial) -> Shared | None:
        """What a trial shares with others."""
        assert trial.method is not None
        return self.families.of(trial.shape, trial.lr, trial.numbers, trial.method)

    def settings(self, rounds: int, *, seed: int = 0, every: int | None = None) -> Settings:
        """How a trial is run."""
        return Settings.of({**self.running, "rounds": rounds, "seed": seed, "eval_every": every})

    def built(self, text: str, lr: float) -> Method:
        """The method of a trial."""
        return built(self.model, self.plan, self.federation.known, self.norm, text, lr, {})


def built(
    model: Model,
    plan: Plan,
    facts: Mapping[str, Any],
    norm: str,
    text: str,
    lr: Any,
    numbers: Mapping[tuple[int, str], Any],
) -> Method:
    """A method with another step size and other numbers; both may be traced."""
    return build_method(text, model, plan=replace(plan, lr=lr), facts=facts, norm=norm, numbers=numbers)


MOST = 8
"""Runs side by side; more gain little."""

Ahead = Mapping[tuple[int, int], tuple[Run, float]]
"""(run, seconds) by (trial, seed): what was run side by side."""


def batches(bench: Bench, trials: Sequence[Trial]) -> list[Sequence[Trial]]:
    """Trials in parts that are small enough to be run side by side, and lost together if the study is stopped."""
    size = max(1, MOST // len(bench.seeds))
    return [trials[start : start + size] for start in range(0, len(trials), size)]


def run_ahead(bench: Bench, trials: Sequence[Trial], runs: Sequence[Settings], tells: Mapping[int, Any]) -> Ahead:
    """Runs of trials side by side, where that is wanted and can be done."""
    if not bench.together:
        return {}
    jobs = {
        (trial.number, settings.seed): Job(trial.method, bench.shared(trial), settings, tell)
        for trial in trials
        if trial.method is not None
        for settings, tell in zip(runs, tells[trial.number], strict=True)
    }
    with quiet():
        found = run_groups(list(jobs.values()), bench.federation)
    return {run: found[place] for place, run in enumerate(jobs) if place in found}


def run_trial(bench: Bench, trial: Trial, ahead: Ahead, settings: Settings, tell: Any) -> Run:
    """A run of a trial: the one that was made ahead, or alone."""
    if (trial.number, settings.seed) in ahead:
        return ahead[trial.number, settings.seed][0]
    assert trial.method is not None
    return run_alone(Job(trial.method, bench.shared(trial), settings, tell), bench.federation, bench.families)
