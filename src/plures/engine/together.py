"""Runs that differ in seeds and numbers alone, their rounds played side by side: these are one more batch axis.

Each run is what it would be alone, up to rounding: a batched product may add up in another order.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp

from plures import tree
from plures.engine.checkpoint import latest
from plures.engine.executors import executor
from plures.engine.play import play_together
from plures.engine.result import Run
from plures.engine.run import Runner, check_entry
from plures.engine.settings import Settings
from plures.engine.state import State, next_state
from plures.errors import MethodWarning, Unsupported
from plures.records import Record


def run_together(runners: Sequence[Runner]) -> list[Run]:
    """The runs of several runners of one method, or of one family, on the same data; each is evaluated on its own.

    Their seconds are shared out evenly.
    """
    _check(runners)
    for said in runners[0].warned():
        warnings.warn(said, MethodWarning, stacklevel=2)
    began = time.perf_counter()
    states = [one.begin()[0] for one in runners]
    if any(int(state.round) for state in states):
        raise Unsupported("a run that goes on from a checkpoint is not played side by side with others")
    records = [Record() for _ in runners]
    for number, phase in enumerate(runners[0].phases):
        if number:
            states = [_entered(one, number, state) for one, state in zip(runners, states, strict=True)]
        for stop in runners[0].stops(phase):
            states, records = _advanced(runners, number, states, records, stop)
            spent = (time.perf_counter() - began) / len(runners)
            for one, state, record in zip(runners, states, records, strict=True):
                one.report(one.phases[number], state, record, spent, 0)
        if number < len(runners[0].phases) - 1:
            visits = [one.visits(one.phases[number], state) for one, state in zip(runners, states, strict=True)]
            records = [record.with_past(now) for record, now in zip(records, visits, strict=True)]
    for one, state, record in zip(runners, states, records, strict=True):
        one.save(state, None, record, last=True)
        for note in one.notes(state):
            warnings.warn(note, MethodWarning, stacklevel=2)
    spent = (time.perf_counter() - began) / len(runners)
    return [Run(*parts, spent) for parts in zip(runners, states, [None] * len(runners), records, strict=True)]


def can_join(settings: Settings) -> bool:
    """Whether a run with these settings can be played side by side with others."""
    named = executor(settings.executor)
    fresh = settings.checkpoint is None or latest(Path(settings.checkpoint)) is None
    compiled = named is None or not named.on_host
    return fresh and compiled and settings.store == "memory" and settings.checkpoint_every is None


def _check(runners: Sequence[Runner]) -> None:
    """Refuse runs that cannot be played side by side."""
    first = runners[0]
    alike = all(
        (one.method is first.method or (one.family is not None and one.family is first.family))
        and one.everyone.fingerprint == first.everyone.fingerprint
        and replace(one.settings, seed=0, checkpoint="any") == replace(first.settings, seed=0, checkpoint="any")
        for one in runners
    )
    if not alike:
        raise Unsupported("runs are played side by side only if they differ in seeds and numbers alone")
    if first.settings.store != "memory" or first.settings.checkpoint_every is not None:
        raise Unsupported(
            "runs side by side keep their private rows in memory, and no checkpoint but the last state"
        )
    if any(first.setup(phase).executor.on_host for phase in first.phases):
        raise Unsupported("runs side by side need a compiled executor; one_by_one is not one")


def _entered(runner: Runner, number: int, state: State) -> State:
    """The state with which a phase begins; every runner has phases of its own."""
    phase = runner.phases[number]
    check_entry(phase, state)
    return next_state(phase, runner.key, state)


def _advanced(
    runners: Sequence[Runner], number: int, states: Sequence[State], records: Sequence[Record], stop: int
) -> tuple[list[State], list[Record]]:
    """All runs played up to a round, and evaluated there one after another if it is time to."""
    first, keys = runners[0], jnp.stack([one.key for one in runners])
    places = tree.at(first.places, slice(0, first.num_seen))
    length = stop - int(states[0].round)
    setups = [one.setup(one.phases[number]) for one in runners]
    setup = replace(setups[0], numbers=tree.stack([one.numbers for one in setups]))
    after, infos = play_together(setup, first.arrays, places, keys, tree.stack(list(states)), length)
    new = [tree.at(after, place) for place in range(len(runners))]
    found = []
    for place, (one, state, record) in enumerate(zip(runners, new, records, strict=True)):
        info = {name: values[place] for name, values in infos.items()}
        found.append(one.recorded(one.phases[number], state, None, record, info))
    return new, found
