"""Trials of tuning, and what all have in common; those that differ in numbers alone share their compiled programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from plures.builders import build_method
from plures.data import Federation
from plures.engine import Family, Progress, Run, Settings, prepare
from plures.errors import UserError
from plures.method import Method
from plures.study.tuning.search_space import Range
from plures.types import Model, Plan

Numbers: TypeAlias = Mapping[tuple[int, str], Any]
"""Options by (which of the parts of a method's text, name)."""

Shared: TypeAlias = tuple[Family, Mapping[str, Any]]
"""The family of a trial, and its place in it."""

NEEDS_NUMBERS = (TypeError, jax.errors.JAXIndexError, UserError)
"""What a method raises that has to know its numbers, while it is traced: JAX's errors about traced values are of these types."""


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
    numbers: Numbers = MappingProxyType({})


class Families:
    """Families by what makes their programs; one that has to know its numbers is forgotten when it says so."""

    def __init__(self, make: Callable[[str, Any, Numbers], Method]) -> None:
        self.make = make  # (text, step size, options) -> method
        self.known: dict[tuple[str, tuple[tuple[int, str], ...]], Family | None] = {}

    def of(self, text: str, lr: float, options: Numbers, base: Method) -> Shared | None:
        """What a trial shares with others; None where the method has to know its numbers."""
        key, places = (text, tuple(options)), {f"{index}.{name}": (index, name) for index, name in options}
        if key not in self.known:

            def make(numbers: Mapping[str, Any]) -> Method:
                return self.make(text, numbers["lr"], {place: numbers[name] for name, place in places.items()})

            self.known[key] = Family(make, base)
        family = self.known[key]
        if family is None:
            return None
        values = {"lr": lr, **{name: options[place] for name, place in places.items()}}
        return family, {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}

    def forget(self, family: Family) -> None:
        """Leave a family that has to know its numbers: its trials are compiled one by one."""
        for key, one in self.known.items():
            if one is family:
                self.known[key] = None


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialSetup:
    """All that is the same for every trial."""

    federation: Federation
    model: Model
    plan: Plan
    norm: str
    ranges: Mapping[str, Range]
    seed: int
    seeds: tuple[int, ...]
    running: Mapping[str, Any]

    @cached_property
    def families(self) -> Families:
        """Trials that may share their programs; compiled programs keep what makes a method, but not the data."""
        return Families(partial(build_trial, self.model, self.plan, self.federation.known, self.norm))

    def settings(self, rounds: int, *, seed: int = 0, every: int | None = None) -> Settings:
        """How a trial is run."""
        return Settings.of({**self.running, "rounds": rounds, "seed": seed, "eval_every": every})

    def build(self, text: str, lr: float) -> Method:
        """The method of a trial."""
        return build_trial(self.model, self.plan, self.federation.known, self.norm, text, lr, {})

    def run(self, trial: Trial, settings: Settings, tell: Callable[[Progress], None]) -> Run:
        """A run of a trial; a family whose method has to know its numbers is left, and its trials are compiled one by one.

        What is wrong with the run itself is raised by the run without the family.
        """
        assert trial.method is not None
        start = partial(prepare, trial.method, self.federation, settings=settings, progress=tell)
        shared = self.families.of(trial.shape, trial.lr, trial.numbers, trial.method)
        if shared is None:
            return start().run()
        family, numbers = shared
        try:
            return start(family=family, numbers=numbers).run()
        except NEEDS_NUMBERS:
            run = start().run()
            self.families.forget(family)
            return run


def build_trial(
    model: Model, plan: Plan, facts: Mapping[str, Any], norm: str, text: str, lr: Any, numbers: Numbers
) -> Method:
    """A method with another step size and other numbers; both may be traced."""
    return build_method(text, model, plan=replace(plan, lr=lr), facts=facts, norm=norm, numbers=numbers)
