"""A run: rounds between evaluations inside one compiled scan, records, checkpoints, the result."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.data.federation import Federation
from plures.engine import checkpoint as disk
from plures.engine import cohort as cohorts
from plures.engine import executors
from plures.engine.check import check_fit, check_kinds
from plures.engine.clients import TRAIN, VALID, Arrays, Layout, Place, layout_of, on_device, rows, together
from plures.engine.cohort import Everyone
from plures.engine.evaluate import Measure, score
from plures.engine.executors import Executor
from plures.engine.liars import Threat, attacks_in, bound, byzantine, forecast_of, spoiled, threat_of
from plures.engine.play import clients_at, cohort_of, compiled_round, counted, play
from plures.engine.result import Progress, Run, mean_known
from plures.engine.round import Client, Family, Setup, one_round
from plures.engine.settings import Settings
from plures.engine.state import Phase, State, chain, first_state, next_state, phases, private_shape
from plures.engine.store import DiskStore
from plures.errors import BadValue, MethodWarning, Unsupported
from plures.keys import root
from plures.records import Record, Traffic, Visits, traffic_of
from plures.types import Info, Key, Method, Tree

BLOCK = 256  # clients scored at a time when private rows are on disk


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
    if unseen is not None and method.transductive:
        raise Unsupported("this method serves only clients it was trained with; leave out unseen clients")
    settings = replace(settings, channels=bound(settings.channels, federation.num_clients))
    federation = spoiled(settings.channels, federation)
    check_fit(method, federation, settings)
    everyone = federation if unseen is None else together(federation, unseen)
    everyone = everyone.take(np.argsort(everyone.uid))
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
class Runner:
    """A method and a federation made ready; ``everyone`` is in the order of uids, training clients first."""

    method: Method
    settings: Settings
    seen: Federation
    everyone: Federation
    layout: Layout
    arrays: Arrays
    places: Place
    key: Key
    progress: Callable[[Progress], None] | None = None
    family: Family | None = None
    numbers: Tree = ()

    @cached_property
    def phases(self) -> list[Phase]:
        """The preludes in order, then the method."""
        return phases(self.method, self.settings.rounds)

    @property
    def num_seen(self) -> int:
        """How many clients take part in training."""
        return self.seen.num_clients

    @property
    def threat(self) -> Threat | None:
        """Which attacks there are, and by how many; None if nobody lies."""
        return threat_of(self.settings.channels, self.num_seen)

    @cached_property
    def byzantine(self) -> np.ndarray:
        """(clients,) who lies, in the order of uids; unseen clients are honest."""
        liars = byzantine(self.settings.channels, self.num_seen)
        return np.concatenate([liars, np.zeros(self.everyone.num_clients - self.num_seen, bool)])

    def run(self) -> Run:
        """Play all rounds that are left, from the last checkpoint if there is one."""
        for said in self.warned():
            warnings.warn(said, MethodWarning, stacklevel=3)
        state, record, phase, store = self.begin()
        began, first = time.perf_counter(), int(state.round)
        while True:
            stops = self.stops(phase)
            for stop in (one for one in stops if one > int(state.round)):
                state, record = self.advance(phase, state, store, record, stop)
                self.report(phase, state, record, time.perf_counter() - began, first)
                if stop < phase.stop:
                    self.save(state, store, record)
            if phase is self.phases[-1]:
                break
            record = record.with_past(self.visits(phase, state))
            phase = self.phases[self.phases.index(phase) + 1]
            check_entry(phase, state)
            state = next_state(phase, self.key, state, with_rows=store is None)
            state, store = self._enter(phase, state)
            self.save(state, store, record)
        self.save(state, store, record, last=True)
        for note in self.notes(state):
            warnings.warn(note, MethodWarning, stacklevel=3)
        return Run(self, state, store, record, time.perf_counter() - began)

    def warned(self) -> tuple[str, ...]:
        """What is likely to go wrong."""
        ahead = forecast_of(self.method, self.seen, self.settings.channels, self.settings.cohort)
        return () if ahead is None else tuple(ahead.warnings)

    def notes(self, state: State) -> list[str]:
        """What the method has to say of how its training went."""
        return [] if self.method.notes is None else self.method.notes(jax.device_get(state.server))

    def told(self, state: State) -> list[str]:
        """What the method has to tell of its result."""
        return [] if self.method.tells is None else self.method.tells(jax.device_get(state.server))

    def setup(self, phase: Phase) -> Setup:
        """The static part of a phase."""
        everyone = phase.everyone or phase.method.full_cohort
        cohort = Everyone() if everyone else cohorts.cohort(self.settings.cohort)
        chosen = self._executor(phase.method, self.seen, cohort.size(self.num_seen))
        alone = Setup(phase.method, self.layout, chosen, cohort, self.settings.channels, phase.start)
        if self.family is None or chosen.on_host:
            return alone
        number = self.phases.index(phase)
        like = chain(self.family.base)[number]
        return replace(alone, method=like, family=self.family, phase=number, numbers=self.numbers)

    def scoring(self, setup: Setup) -> Setup:
        """The same with an executor for all clients at a time instead of a cohort."""
        chosen = self._executor(setup.method, self.everyone, self.everyone.num_clients)
        return replace(setup, executor=chosen, cohort=Everyone(), channels=())  # whoever trains, all are scored

    def _executor(self, method: Method, federation: Federation, size: int) -> Executor:
        named = executors.executor(self.settings.executor)
        if named is not None:
            return named
        traffic = self.traffic(method)
        row_bytes = 4 * math.prod(federation.shape)
        return executors.choose(
            message_bytes=max(traffic.down, traffic.serve) * method.lanes,
            data_bytes=max(self.layout.capacity) * row_bytes,
            work=federation.count[:, TRAIN].tolist(),
            num_clients=size,
        )

    def traffic(self, method: Method) -> Traffic:
        """Bytes of each message of one client."""
        if method not in self._traffic:
            self._traffic[method] = self._traffic_of(method)
        return self._traffic[method]

    @cached_property
    def _traffic(self) -> dict[Method, Traffic]:
        """What was found before: a method is traced for it, which takes longer than a small round."""
        return {}

    def _traffic_of(self, method: Method) -> Traffic:
        server = self._server_shape(method)
        place = tree.at(self.places, 0)
        both = (rows(self.layout, self.arrays, place, TRAIN), rows(self.layout, self.arrays, place, VALID))
        return traffic_of(method, server, both)

    def _server_shape(self, method: Method) -> Tree:
        """The shapes of a method's server state, as handed over where a prelude comes first."""
        chain = [phase for phase in self.phases if phase.method is method]
        if not chain:
            return jax.eval_shape(lambda: method.start(self.key, self.num_seen))
        upto = self.phases[: self.phases.index(chain[0]) + 1]
        first = partial(first_state, upto[0].method, self.key, self.num_seen, with_rows=False)
        return jax.eval_shape(lambda: _first_of(upto, self.key, first(), with_rows=False)).server

    def visits(self, phase: Phase, state: State) -> Visits:
        """Who took part in a phase, with the bytes of a message."""
        traffic = self.traffic(phase.method)
        name = "main" if phase.main else f"prelude {self.phases.index(phase) + 1}"
        played = int(state.round) - phase.start
        visits, turns = (np.asarray(one, np.int64) for one in (state.visits, state.turns))
        return Visits(name, played, visits, turns, traffic.join, traffic.down, traffic.up, traffic.answer)

    def clients(self, state: State, private: Tree, chosen: Array | slice = slice(None)) -> Client:
        """Clients of a stacked private tree as the executor wants them."""
        places = tree.at(self.places, chosen)
        return clients_at(places, private, state.visits, state.round, self.key)

    def begin(self) -> tuple[State, Record, Phase, DiskStore | None]:
        """The first state, or the one of the last checkpoint."""
        phase = self.phases[0]
        in_memory = self.settings.store == "memory"
        state = first_state(phase.method, self.key, self.num_seen, with_rows=in_memory)
        record = Record()
        found = None if self.settings.checkpoint is None else disk.latest(Path(self.settings.checkpoint))
        if found is not None:
            done = disk.round_of(found, self._identity())
            if done > self.settings.rounds:
                raise BadValue("rounds", self.settings.rounds, f"at least {done}, which the checkpoint has done")
            phase = next(one for one in reversed(self.phases) if one.start <= done)
            chain = self.phases[: self.phases.index(phase) + 1]
            template = jax.eval_shape(partial(_first_of, chain, self.key, with_rows=in_memory), state)
            state, record = disk.load(found, template)
        state, store = self._enter(phase, state, resumed=found)
        return state, record, phase, store

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        cohort = cohorts.cohort(self.settings.cohort)
        plan = self.method.plan
        # A closing round is the last one: such a run cannot go on for longer than was said.
        end = {"rounds": self.settings.rounds} if any(one.main for one in self.phases[:-1]) else {}
        return {
            **end,
            "seed": self.settings.seed,
            "cohort": repr(cohort),
            "clients": self.num_seen,
            "data": self.everyone.fingerprint,
            "plan": f"{plan.epochs} {plan.steps} {plan.batch} {plan.lr}",
            "channels": len(self.settings.channels),
            **{f"attack {one.name}": one.share for one in attacks_in(self.settings.channels)},
            "store": "memory" if self.settings.store == "memory" else "disk",
        }

    def _enter(self, phase: Phase, state: State, resumed: Path | None = None) -> tuple[State, DiskStore | None]:
        """With a disk store, move the private rows out of the state into files."""
        if self.settings.store == "memory":
            return state, None
        folder = Path(self.settings.store)
        for file in folder.glob("rows-*.bin"):
            file.unlink()
        if resumed is not None:
            disk.restore_rows(resumed, folder)
        store = DiskStore(folder, private_shape(phase.method, state.server), self.num_seen)
        return state._replace(private=()), store

    def stops(self, phase: Phase) -> list[int]:
        """The rounds of a phase after which something happens: evaluation, a checkpoint, its end."""
        every = self.settings.eval_every or self.settings.rounds
        saving = self.settings.checkpoint_every or self.settings.rounds
        marks = {r for r in range(phase.start + 1, phase.stop) if r % every == 0 or r % saving == 0}
        return sorted(marks | {phase.stop})

    def advance(
        self, phase: Phase, state: State, store: DiskStore | None, record: Record, stop: int
    ) -> tuple[State, Record]:
        """Play a phase up to ``stop`` and evaluate there if it is time to."""
        setup, length = self.setup(phase), stop - int(state.round)
        places = tree.at(self.places, slice(0, self.num_seen))
        if store is None and not setup.executor.on_host:
            state, info = play(setup, self.arrays, places, self.key, state, length)
        else:
            state, info = self._walk(setup, places, state, store, length)
        return state, self.recorded(phase, state, store, record, info)

    def recorded(self, phase: Phase, state: State, store: DiskStore | None, record: Record, info: Info) -> Record:
        """The record with the rounds that led to a state, and with an evaluation of it if it is time for one."""
        length, stop = len(next(iter(info.values()), ())), int(state.round)
        record = record.with_info(stop - length, {name: np.asarray(values) for name, values in info.items()})
        every = self.settings.eval_every or self.settings.rounds
        last = phase is self.phases[-1] and stop == phase.stop
        if phase.main and (last or stop % every == 0):
            found = self.score(self.scoring(self.setup(phase)), state, store)
            splits = ("valid", "served", "test") if last else ("valid", "served")
            record = record.with_scores(stop, np.asarray(self.everyone.uid), found, splits)
            spent = np.array([record.num_bytes(self.visits(phase, state))]) / self.num_seen / 1e6
            record = record.with_info(stop - 1, {"mb_per_client": spent})
        return record

    def score(self, setup: Setup, state: State, store: DiskStore | None, of: Measure = score) -> Any:
        """Scores of all clients, seen and unseen: kind -> split -> metric -> (clients,), or what ``of`` measures."""
        everybody = np.arange(self.num_seen)
        blocks = [everybody] if store is None else np.array_split(everybody, -(-self.num_seen // BLOCK))
        parts = []
        for block in blocks:
            private = state.private if store is None else store.get(block)
            clients = self._block(state, private, block, block is blocks[-1])
            parts.append(jax.device_get(of(setup, self.arrays, state.server, clients)))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    def _block(self, state: State, private: Tree, block: np.ndarray, with_unseen: bool) -> Client:
        """Some of the training clients, and with them the unseen ones if asked."""
        extra = self.everyone.num_clients - self.num_seen if with_unseen else 0
        rows_ = np.concatenate([block, self.num_seen + np.arange(extra)])
        blank = jax.tree.map(lambda leaf: jnp.zeros((extra, *leaf.shape[1:]), leaf.dtype), private)
        everyone = jax.tree.map(lambda a, b: jnp.concatenate([a, b]) if extra else a, private, blank)
        visits = jnp.concatenate([state.visits[block], jnp.zeros(extra, jnp.int32)])
        places = tree.at(self.places, rows_)
        return clients_at(places, everyone, visits, state.round, self.key)

    def _walk(
        self, setup: Setup, places: Place, state: State, store: DiskStore | None, length: int
    ) -> tuple[State, Info]:
        """Rounds driven from Python: one by one, or with private rows on disk."""
        infos = []
        for _ in range(length):
            chosen = np.asarray(cohort_of(setup, self.key, state.round, places))
            private = store.get(chosen) if store else tree.at(state.private, chosen)
            clients = clients_at(tree.at(places, chosen), private, state.visits[chosen], state.round, self.key)
            step = one_round if setup.executor.on_host else compiled_round
            server, private, info, turns = step(setup, self.arrays, state.server, clients, self.key, state.round)
            if store is None:
                state = state._replace(private=tree.put(state.private, chosen, private))
            else:
                store.put(chosen, private)
            state = state._replace(round=state.round + 1, server=server, **counted(state, chosen, turns))
            infos.append({name: values.mean() for name, values in info.items()})
        return state, tree.stack(infos)

    def save(self, state: State, store: DiskStore | None, record: Record, *, last: bool = False) -> None:
        """Write a checkpoint if there is to be one after this round."""
        folder, every = self.settings.checkpoint, self.settings.checkpoint_every
        if folder is None or not (last or (every is not None and int(state.round) % every == 0)):
            return
        if store is not None:
            store.flush()
        disk.save(Path(folder), state, record, [] if store is None else store.files, self._identity())

    def report(self, phase: Phase, state: State, record: Record, seconds: float, first: int) -> None:
        """Tell whoever shows it how far the run is."""
        if self.progress is None:
            return
        model, done = self.method.model, int(state.round)
        valid = record.latest("personal", "valid")
        honest = np.flatnonzero(~self.byzantine[: self.num_seen])
        now, loss = (mean_known(valid, name, honest) for name in (model.score, "loss"))
        size, rate = record.num_bytes(self.visits(phase, state)), (done - first) / max(seconds, 1e-9)
        self.progress(Progress(done, self.settings.rounds, size, model.score, now, seconds, rate, loss))


def check_entry(phase: Phase, before: State) -> None:
    """End the run where a method cannot go on from what its prelude found."""
    assert phase.entry is not None
    why = None if phase.entry.refuse is None else phase.entry.refuse(jax.device_get(before.server))
    if why is not None:
        raise Unsupported(why)


def _first_of(chain: list[Phase], key: Key, state: State, *, with_rows: bool) -> State:
    """The state with which the last phase of a chain begins, given that of the first."""
    for phase in chain[1:]:
        state = next_state(phase, key, state, with_rows=with_rows)
    return state
