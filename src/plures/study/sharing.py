"""Trials that differ in numbers alone share their compiled programs, and may be run side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from plures.data import Federation
from plures.engine import Family, Progress, Run, Runner, Settings, can_join, prepare, run_together
from plures.types import Method

Numbers = Mapping[tuple[int, str], float]
"""Options by (which of the parts of a method's text, name)."""


class Shared(NamedTuple):
    """The family of a trial, and its place in it."""

    family: Family
    numbers: Mapping[str, Any]


class Families:
    """Families by what makes their programs; one that has to know its numbers is forgotten when it says so."""

    def __init__(self, make: Callable[[str, Any, Mapping[tuple[int, str], Any]], Method]) -> None:
        self.make = make  # (text, step size, options) -> method
        self.known: dict[tuple[str, tuple[tuple[int, str], ...]], Family | None] = {}

    def of(self, text: str, lr: float, options: Numbers, base: Method) -> Shared | None:
        """What a trial shares with others; None where the method has to know its numbers."""
        key, places = (text, tuple(options)), {_name(place): place for place in options}
        if key not in self.known:

            def make(numbers: Mapping[str, Any]) -> Method:
                return self.make(text, numbers["lr"], {place: numbers[name] for name, place in places.items()})

            self.known[key] = Family(make, base)
        family = self.known[key]
        if family is None:
            return None
        values = {"lr": lr, **{_name(place): value for place, value in options.items()}}
        return Shared(family, {name: jnp.asarray(value, jnp.float32) for name, value in values.items()})

    def forget(self, family: Family) -> None:
        """Leave a family that has to know its numbers: its trials are compiled one by one."""
        for key, one in self.known.items():
            if one is family:
                self.known[key] = None


def _name(place: tuple[int, str]) -> str:
    return f"{place[0]}.{place[1]}"


class Job(NamedTuple):
    """A run of a trial: who trains, what it shares, how, and whom to tell."""

    method: Method
    shared: Shared | None
    settings: Settings
    tell: Callable[[Progress], None]

    def ready(self, federation: Federation) -> Runner:
        """The run made ready."""
        family, numbers = self.shared or (None, ())
        return prepare(
            self.method, federation, settings=self.settings, progress=self.tell, family=family, numbers=numbers
        )


def run_alone(job: Job, federation: Federation, families: Families) -> Run:
    """The run of a trial, with the programs of its family where it has one.

    A method that has to know its numbers fails in its own way while it is traced: any error counts, and the run is made anew
    without the family, which is left if that goes well. What is wrong with the run itself is raised by that one too.
    """
    if job.shared is None:
        return job.ready(federation).run()
    try:
        return job.ready(federation).run()
    except Exception:
        run = job._replace(shared=None).ready(federation).run()
        families.forget(job.shared.family)
        return run


def run_groups(jobs: Sequence[Job], federation: Federation) -> dict[int, tuple[Run, float]]:
    """{place: (run, seconds)} of jobs that can be run side by side: those of one family, two or more of them.

    Where that fails, out of memory for one, none of them is there, and each can be tried alone.
    """
    groups: dict[Family, list[int]] = {}
    for place, job in enumerate(jobs):
        if job.shared is not None and can_join(job.settings):
            groups.setdefault(job.shared.family, []).append(place)
    found = dict[int, tuple[Run, float]]()
    for places in groups.values():
        began = time.perf_counter()
        try:
            runs = run_together([jobs[place].ready(federation) for place in places]) if len(places) > 1 else []
        except Exception:
            continue
        spent = (time.perf_counter() - began) / len(places)
        found |= {place: (run, spent) for place, run in zip(places, runs, strict=False)}
    return found
