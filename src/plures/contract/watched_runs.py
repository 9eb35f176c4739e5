"""A runner that remembers where it stood after every round, and what is compared of two runs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.engine import Run, Runner
from plures.engine.cohort import Cohort, Everyone, Uniform
from plures.engine.phases import Span
from plures.engine.record import Record
from plures.engine.rounds import play
from plures.engine.state import State
from plures.engine.traffic import Traffic
from plures.keys import Purpose, derive, root
from plures.method import Method
from plures.types import Key


class Stop(NamedTuple):
    """Where a run stood after some round."""

    phase: int
    state: State
    compiled: int  # how many programs there were to play rounds with


@dataclass(frozen=True, kw_only=True, eq=False)
class Watched(Runner):
    """A runner that remembers where it stood after every evaluation; ``scored`` False evaluates nobody."""

    scored: bool = True
    entries: dict[int, State] = field(default_factory=dict)  # the state with which each phase begins
    stops_seen: list[Stop] = field(default_factory=list)
    messages: dict[int, Traffic] = field(default_factory=dict)

    @staticmethod
    def of(runner: Runner, **own: Any) -> Watched:
        """The same runner, watched."""
        return Watched(**{one.name: getattr(runner, one.name) for one in fields(runner)}, **own)

    def traffic(self, method: Method) -> Traffic:
        """Bytes of each message of one client, found once for all runners that share ``messages``."""
        number = [phase.method for phase in self.phases].index(method)
        if number not in self.messages:
            self.messages[number] = super().traffic(method)
        return self.messages[number]

    def advance(self, span: Span, state: State, store: Any, record: Record, stop: int) -> tuple[State, Record]:
        """Rounds of a phase; the state with which it begins is kept, in a copy because a round takes its buffers."""
        if int(state.round) == span.start:
            self.entries[self.phases.index(span)] = copied(state)
        return super().advance(span, state, store, record, stop)

    def record_rounds(self, span: Span, state: State, store: Any, record: Record, info: Any) -> Record:
        """The record; the state is kept."""
        self.stops_seen.append(Stop(self.phases.index(span), copied(state), compilations()))
        return super().record_rounds(span, state, store, record, info) if self.scored else record


def copied(state: State) -> State:
    """The state in buffers of its own."""
    return State(*jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, Array) else leaf, tuple(state)))


def main_phase(runner: Runner) -> int:
    """The number of the phase that the run is about: the first that is scored."""
    return next(number for number, phase in enumerate(runner.phases) if phase.main)


def compilations() -> int:
    """How many programs ``play`` has been compiled to."""
    return int(play._cache_size())  # type: ignore[attr-defined]


@dataclass(frozen=True)
class AtMost(Uniform):
    """``number`` clients, or all where there are fewer."""

    def size(self, num_clients: int) -> int:
        """How many clients a round has."""
        return min(self.number, num_clients)

    def draw(self, key: Key, sizes: Array) -> Array:
        """The uids of one round."""
        return Uniform(self.size(len(sizes))).draw(key, sizes)


@cache
def twin_seed(cohort: Cohort, round_: int, num_clients: int) -> int:
    """A seed other than 0 with the cohort that seed 0 draws in a round."""
    if isinstance(cohort, Everyone):
        return 1
    roots = jnp.stack([root(seed) for seed in range(100)])
    keys = jax.vmap(lambda key: derive(key, Purpose.COHORT, round_))(roots)
    drawn = np.asarray(jax.vmap(lambda key: cohort.draw(key, jnp.ones(num_clients)))(keys))
    return int(np.flatnonzero((drawn == drawn[0]).all(1))[1])


def with_longer_padding(runner: Watched, extra: int) -> Watched:
    """The same runner with longer padding."""
    if not extra:
        return runner
    raised = tuple(most + extra for most in runner.layout.capacity)
    return replace(runner, layout=replace(runner.layout, capacity=raised))


def outcome(run: Run) -> dict[str, np.ndarray]:
    """All that a run leaves behind, by name: server, private rows, visits, scores."""
    return {f"state/{name}": values for name, values in flat(run.state).items()} | _scores(run.record)


def named_round(state: State, record: Record) -> dict[str, np.ndarray]:
    """What a round leaves behind, by name: the state, and the scores on valid rows if there are any."""
    number = int(state.round)
    scores = {k: v for k, v in _scores(record).items() if k.startswith(f"round {number}/")}
    return {f"round {number}/state/{name}": values for name, values in flat(state).items()} | scores


def _scores(record: Record) -> dict[str, np.ndarray]:
    return {
        f"round {one.round}/{one.kind}/{one.split}/{metric}": np.asarray(values)
        for one in record.scores
        for metric, values in one.metrics.items()
    }


def flat(state: State) -> dict[str, np.ndarray]:
    """The leaves of a state by name, on the host."""
    return {name: plain(leaf) for name, leaf in tree.named(state).items()}


def plain(leaf: Any) -> np.ndarray:
    """An array, or the numbers of a key, on the host."""
    return np.asarray(tree.plain(leaf))
