"""A run: rounds between evaluations inside one compiled scan, records, checkpoints, the result."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plures import tree
from plures.data.federation import Federation
from plures.engine import checkpoint
from plures.engine.attackers import forecast_of
from plures.engine.check import check_fit, check_kinds
from plures.engine.clients import layout_of, on_device
from plures.engine.identity import lay_out
from plures.engine.phases import Span
from plures.engine.prepared import Prepared
from plures.engine.private_rows import DiskStore
from plures.engine.record import Progress, Record, mean_known
from plures.engine.result import Run
from plures.engine.round import Family
from plures.engine.rounds import play, walk
from plures.engine.scoring import has_settled, record_scores
from plures.engine.settings import Settings
from plures.engine.state import State, first_state, next_state, private_shape, state_entered
from plures.errors import BadValue, MethodWarning, Unsupported
from plures.keys import root
from plures.method import Method
from plures.types import Info, Tree


def run(
    method: Method,
    federation: Federation,
    *,
    unseen: Federation | None = None,
    progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Run:
    """Train ``method`` on the federation and score every client; ``settings`` are those of ``Settings``."""
    return prepare(method, federation, unseen=unseen, progress=progress, settings=Settings.of(settings)).run()


def prepare(
    method: Method,
    federation: Federation,
    *,
    settings: Settings,
    unseen: Federation | None = None,
    progress: Callable[[Progress], None] | None = None,
    family: Family | None = None,
    numbers: Tree = (),
) -> Runner:
    """A method and a federation checked and made ready to run.

    A method that its ``family`` makes of these ``numbers`` shares the family's compiled programs.
    """
    check_kinds(method, federation)
    settings, federation, everyone = lay_out(federation, unseen, settings)
    check_fit(method, federation, settings)
    arrays, places = on_device(everyone)
    return Runner(
        method=method,
        settings=settings,
        seen=federation,
        everyone=everyone,
        layout=layout_of(everyone),
        arrays=arrays,
        places=places,
        key=root(settings.seed),
        progress=progress,
        family=family,
        numbers=numbers,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Runner(Prepared):
    """Plays what was prepared: the one loop over the rounds of a run."""

    def run(self) -> Run:
        """Play all rounds that are left, from the last checkpoint if there is one."""
        ahead = forecast_of(self.method, self.seen, self.settings.channels, self.settings.cohort)
        for warning in () if ahead is None else ahead.warnings:
            warnings.warn(warning, MethodWarning, stacklevel=3)
        state, record, current, store = begin(self)
        began, first = time.perf_counter(), int(state.round)
        for span, stop in self.stops(current, first):
            if span.phase.rounds is None and has_settled(self, record):
                continue  # a closing round is still to come
            if span is not current:
                record = record.with_past(self.visits(current, state))
                state, store, current = *self._enter(span, state), span
                save(self, state, store, record)
            state, record = self.advance(span, state, store, record, stop)
            self._tell(span, state, record, time.perf_counter() - began, first)
            if stop < span.stop:
                save(self, state, store, record)
        save(self, state, store, record, last=True)
        done = Run(self, state, store, record, time.perf_counter() - began)
        for warning in done.report.warnings:
            warnings.warn(warning, MethodWarning, stacklevel=3)
        return done

    def stops(self, current: Span, done: int) -> Iterator[tuple[Span, int]]:
        """The rounds that are left after which something happens: evaluation, a checkpoint, the end of a phase."""
        every = self.settings.eval_every or self.settings.rounds
        saving = self.settings.checkpoint_every or self.settings.rounds
        for span in self.phases[self.phases.index(current) :]:
            marks = {r for r in range(span.start + 1, span.stop) if r % every == 0 or r % saving == 0}
            yield from ((span, stop) for stop in sorted(marks | {span.stop}) if stop > done)

    def advance(
        self, span: Span, state: State, store: DiskStore | None, record: Record, stop: int
    ) -> tuple[State, Record]:
        """Play a phase up to ``stop`` and evaluate there if it is time to."""
        setup, length = self.setup(span), stop - int(state.round)
        places = tree.at(self.places, slice(0, self.num_seen))
        if store is None and not setup.executor.on_host:
            state, info = play(setup, self.arrays, places, self.key, state, length)
        else:
            state, info = walk(setup, self.arrays, places, self.key, state, length, store)
        return state, self.record_rounds(span, state, store, record, info)

    def record_rounds(
        self, span: Span, state: State, store: DiskStore | None, record: Record, info: Info
    ) -> Record:
        """The record with the rounds that led to a state, and with an evaluation of it if it is time for one."""
        length, stop = len(next(iter(info.values()), ())), int(state.round)
        record = record.with_info(stop - length, {name: np.asarray(values) for name, values in info.items()})
        return record_scores(self, span, state, store, record)

    def _enter(self, span: Span, before: State) -> tuple[State, DiskStore | None]:
        """The state with which a later phase begins; the run ends where its method cannot go on from what was found."""
        refuse = span.phase.refuse
        why = None if refuse is None else refuse(jax.device_get(before.server))
        if why is not None:
            raise Unsupported(why)
        state = next_state(span, self.key, before, with_rows=self.settings.store == "memory")
        return move_rows(self, span, state)

    def _tell(self, span: Span, state: State, record: Record, seconds: float, first: int) -> None:
        """Tell whoever shows it how far the run is."""
        if self.progress is None:
            return
        model, done = self.method.model, int(state.round)
        valid = record.latest("personal", "valid")
        honest = np.flatnonzero(~self.attackers[: self.num_seen])
        now, loss = (mean_known(valid, name, honest) for name in (model.score, "loss"))
        size, rate = record.num_bytes(self.visits(span, state)), (done - first) / max(seconds, 1e-9)
        self.progress(Progress(done, self.settings.rounds, size, model.score, now, seconds, rate, loss))


def begin(ready: Prepared) -> tuple[State, Record, Span, DiskStore | None]:
    """The first state, or the one of the last checkpoint."""
    span, settings = ready.phases[0], ready.settings
    in_memory = settings.store == "memory"
    state = first_state(span.method, ready.key, ready.num_seen, with_rows=in_memory)
    record = Record()
    found = None if settings.checkpoint is None else checkpoint.latest(Path(settings.checkpoint))
    if found is not None:
        # A closing round is the last one: such a run cannot go on for longer than was said.
        but = () if any(one.main for one in ready.phases[:-1]) else ("rounds",)
        done = checkpoint.round_of(found, ready.identity, but=but, old=ready.old_checkpoints)
        if done > settings.rounds:
            raise BadValue("rounds", settings.rounds, f"at least {done}, which the checkpoint has done")
        span = next(one for one in reversed(ready.phases) if one.start <= done)
        spans = ready.phases[: ready.phases.index(span) + 1]
        template = jax.eval_shape(partial(state_entered, spans, ready.key, with_rows=in_memory), state)
        state, record = checkpoint.load(found, template)
    state, store = move_rows(ready, span, state, resumed=found)
    return state, record, span, store


def move_rows(
    ready: Prepared, span: Span, state: State, resumed: Path | None = None
) -> tuple[State, DiskStore | None]:
    """With a disk store, move the private rows out of the state into files."""
    if ready.settings.store == "memory":
        return state, None
    folder = Path(ready.settings.store)
    for file in folder.glob("rows-*.bin"):
        file.unlink()
    if resumed is not None:
        checkpoint.restore_rows(resumed, folder)
    store = DiskStore(folder, private_shape(span.method, state.server), ready.num_seen)
    return state._replace(private=()), store


def save(ready: Prepared, state: State, store: DiskStore | None, record: Record, *, last: bool = False) -> None:
    """Write a checkpoint if there is to be one after this round."""
    folder, every = ready.settings.checkpoint, ready.settings.checkpoint_every
    if folder is None or not (last or (every is not None and int(state.round) % every == 0)):
        return
    if store is not None:
        store.flush()
    files = [] if store is None else store.files
    checkpoint.save(Path(folder), state, record, files, ready.identity.parts)
