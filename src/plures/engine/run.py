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
from plures.engine.cohort import Everyone, Uniform
from plures.engine.evaluate import Measure, score
from plures.engine.executors import Executor
from plures.engine.liars import Threat, attacks_in, bound, byzantine, forecast_of, spoiled, threat_of
from plures.engine.result import Progress, Run
from plures.engine.round import Client, Setup, one_round
from plures.engine.settings import Settings
from plures.engine.state import Phase, State, first_state, next_state, phases, private_shape
from plures.engine.store import DiskStore
from plures.errors import BadValue, MethodWarning, Unsupported
from plures.keys import Purpose, derive, root
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
) -> Runner:
    """A method and a federation checked and made ready to run."""
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
        ahead = forecast_of(self.method, self.seen, self.settings.channels, self.settings.cohort)
        for said in () if ahead is None else ahead.warnings:
            warnings.warn(said, MethodWarning, stacklevel=3)
        state, record, phase, store = self._begin()
        began, first = time.perf_counter(), int(state.round)
        while True:
            stops = self._stops(phase)
            for stop in (one for one in stops if one > int(state.round)):
                state, record = self.advance(phase, state, store, record, stop)
                self._report(phase, state, record, time.perf_counter() - began, first)
                if stop < phase.stop:
                    self._save(state, store, record)
            if phase is self.phases[-1]:
                break
            record = record.with_past(self.visits(phase, state))
            phase = self.phases[self.phases.index(phase) + 1]
            _check_entry(phase, state)
            state = next_state(phase, self.key, state, with_rows=store is None)
            state, store = self._enter(phase, state)
            self._save(state, store, record)
        self._save(state, store, record, last=True)
        for note in self.notes(state):
            warnings.warn(note, MethodWarning, stacklevel=3)
        return Run(self, state, store, record, time.perf_counter() - began)

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
        return Setup(phase.method, self.layout, chosen, cohort, self.settings.channels, phase.start)

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
        return _clients(places, private, state.visits, state.round, self.key)

    def _begin(self) -> tuple[State, Record, Phase, DiskStore | None]:
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

    def _stops(self, phase: Phase) -> list[int]:
        """The rounds of a phase after which something happens: evaluation, a checkpoint, its end."""
        every = self.settings.eval_every or self.settings.rounds
        saving = self.settings.checkpoint_every or self.settings.rounds
        marks = {r for r in range(phase.start + 1, phase.stop) if r % every == 0 or r % saving == 0}
        return sorted(marks | {phase.stop})

    def advance(
        self, phase: Phase, state: State, store: DiskStore | None, record: Record, stop: int
    ) -> tuple[State, Record]:
        """Play a phase up to ``stop`` and evaluate there if it is time to."""
        setup, begin = self.setup(phase), int(state.round)
        places = tree.at(self.places, slice(0, self.num_seen))
        if store is None and not setup.executor.on_host:
            state, info = play(setup, self.arrays, places, self.key, state, stop - begin)
        else:
            state, info = self._walk(setup, places, state, store, stop - begin)
        record = record.with_info(begin, {name: np.asarray(values) for name, values in info.items()})
        every = self.settings.eval_every or self.settings.rounds
        last = phase is self.phases[-1] and stop == phase.stop
        if phase.main and (last or stop % every == 0):
            found = self.score(self.scoring(setup), state, store)
            splits = ("valid", "served", "test") if last else ("valid", "served")
            record = record.with_scores(stop, np.asarray(self.everyone.uid), found, splits)
        return state, record

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
        return _clients(places, everyone, visits, state.round, self.key)

    def _walk(
        self, setup: Setup, places: Place, state: State, store: DiskStore | None, length: int
    ) -> tuple[State, Info]:
        """Rounds driven from Python: one by one, or with private rows on disk."""
        infos = []
        for _ in range(length):
            chosen = np.asarray(_cohort(setup, self.key, state.round, places))
            private = store.get(chosen) if store else tree.at(state.private, chosen)
            clients = _clients(tree.at(places, chosen), private, state.visits[chosen], state.round, self.key)
            step = one_round if setup.executor.on_host else _one_round
            server, private, info, turns = step(setup, self.arrays, state.server, clients, self.key, state.round)
            if store is None:
                state = state._replace(private=tree.put(state.private, chosen, private))
            else:
                store.put(chosen, private)
            state = state._replace(round=state.round + 1, server=server, **_counted(state, chosen, turns))
            infos.append({name: values.mean() for name, values in info.items()})
        return state, tree.stack(infos)

    def _save(self, state: State, store: DiskStore | None, record: Record, *, last: bool = False) -> None:
        folder, every = self.settings.checkpoint, self.settings.checkpoint_every
        if folder is None or not (last or (every is not None and int(state.round) % every == 0)):
            return
        if store is not None:
            store.flush()
        disk.save(Path(folder), state, record, [] if store is None else store.files, self._identity())

    def _report(self, phase: Phase, state: State, record: Record, seconds: float, first: int) -> None:
        if self.progress is None:
            return
        model, done = self.method.model, int(state.round)
        valid = record.latest("personal", "valid")
        honest = ~self.byzantine[: self.num_seen]
        scores = np.array([]) if valid is None else valid.metrics[model.score][: self.num_seen][honest]
        known = scores[np.isfinite(scores)]
        now = float(known.mean()) if len(known) else None
        size = int(sum((one.bytes_down + one.bytes_up).sum() for one in [*record.past, self.visits(phase, state)]))
        rate = (done - first) / max(seconds, 1e-9)
        self.progress(Progress(done, self.settings.rounds, size, model.score, now, seconds, rate))


def _check_entry(phase: Phase, before: State) -> None:
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


def _clients(places: Place, private: Tree, visits: Array, round_: Array, key: Key) -> Client:
    size = places.uid.shape[0]
    return Client(places, private, visits, jnp.broadcast_to(round_, (size,)), jnp.broadcast_to(key, (size,)))


def _counted(state: State, cohort: Array | np.ndarray, turns: Array | int) -> dict[str, Array]:
    """How often clients took part, after a round of so many turns with a cohort."""
    return {"visits": state.visits.at[cohort].add(1), "turns": state.turns.at[cohort].add(turns)}


def _cohort(setup: Setup, key: Key, round_: Array, places: Place) -> Array:
    sizes = places.sizes[:, TRAIN].astype(float)
    return setup.cohort.draw(derive(key, Purpose.COHORT, round_), sizes)


@partial(jax.jit, static_argnums=0)
def _one_round(setup: Setup, *args: Any) -> Any:
    return one_round(setup, *args)


@partial(jax.jit, static_argnums=(0, 5), donate_argnums=4)
def play(setup: Setup, arrays: Arrays, places: Place, key: Key, state: State, length: int) -> tuple[State, Info]:
    """``length`` rounds in one compiled loop; places are in the order of uids."""
    rounds = state.round + jnp.arange(length)
    # Small cohorts are drawn for all rounds together; those that touch every client, round by round.
    ahead = isinstance(setup.cohort, Uniform)
    chosen = jax.vmap(lambda round_: _cohort(setup, key, round_, places))(rounds) if ahead else rounds

    def step(state: State, now: tuple[Array, Array]) -> tuple[State, Info]:
        round_, drawn = now
        cohort = drawn if ahead else _cohort(setup, key, round_, places)
        clients = _clients(
            tree.at(places, cohort), tree.at(state.private, cohort), state.visits[cohort], round_, key
        )
        server, private, info, turns = one_round(setup, arrays, state.server, clients, key, round_)
        rows_ = tree.put(state.private, cohort, private)
        after = State(round_ + 1, server, rows_, **_counted(state, cohort, turns))
        return after, {name: values.mean() for name, values in info.items()}

    return jax.lax.scan(step, state, (rounds, chosen))
