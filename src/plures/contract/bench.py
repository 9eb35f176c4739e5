"""A method on the bench: built, run in the ways the checks need, with as few compilations as possible."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plures import tree
from plures.contract import worlds
from plures.contract.lost_uploads import Loss, losing, losing_nothing
from plures.contract.watched_runs import (
    AtMost,
    Stop,
    Watched,
    copied,
    main_phase,
    named_round,
    twin_seed,
    with_longer_padding,
)
from plures.data import Federation
from plures.engine import Progress, Run, Runner, Settings, evaluate, prepare
from plures.engine.phases import least_rounds
from plures.engine.record import Record
from plures.engine.round import Family
from plures.engine.rounds import play
from plures.engine.scoring import score_everyone
from plures.engine.state import State
from plures.engine.traffic import Traffic
from plures.keys import root
from plures.method import Method
from plures.registry import METHODS, PERSONALIZERS, Entry
from plures.types import Model, Plan

ROUNDS, COHORT = 3, 4
CHUNKED, LONGER = "chunked:3", 5

FACTS = {"num_groups": 2, "num_domains": 2}


@dataclass(frozen=True)
class Subject:
    """What is checked: a registered entry; a personalizer around the method called ``base``."""

    entry: Entry
    base: str = ""

    @property
    def name(self) -> str:
        """What a user types."""
        return f"{self.base}|{self.entry.name}" if self.base else self.entry.name

    @property
    def model(self) -> Model:
        """A tiny model; with a body and a head for an entry tagged ``parts``, with batch norm for one tagged ``norm``."""
        return worlds.model(parts="parts" in self.entry.tags, norm="norm" in self.entry.tags)

    @staticmethod
    def method(entry: Entry) -> Subject:
        """A registered method."""
        return Subject(entry)

    def build(self, model: Model, plan: Plan, options: Mapping[str, Any]) -> Method:
        """The method with options."""
        inner = Subject(METHODS[self.base]).build(model, plan, {}) if self.base else model
        known = {name: value for name, value in {"plan": plan, **FACTS}.items() if name in self.entry.options}
        method: Method = self.entry.factory(inner, **{**known, **options})
        return method


def subjects() -> list[Subject]:
    """Every registered method, and every personalizer around the base it names, FedAvg by default."""
    methods = [Subject(one) for one in METHODS.values()]
    return methods + [Subject(one, one.base or "fedavg") for one in PERSONALIZERS.values()]


class Bench:
    """One method built once; its runs share two compiled programs, one that plays a round and one that scores.

    What differs from run to run is an argument of these: the key, what lies between clients' rows, in which order
    they are stored, and whether an upload is lost. ``chunked`` and ``one_by_one`` have programs of their own.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.method = self.rebuilt()
        self._families: dict[Method, Family] = {}
        self._messages: dict[int, Traffic] = {}

    def rebuilt(self) -> Method:
        """The method built once more."""
        return quiet(self.subject.build(self.subject.model, worlds.PLAN, {}))

    @cached_property
    def base(self) -> Run:
        """The run all others are compared with."""
        return self.run()

    @property
    def watched(self) -> Watched:
        """The runner of the base run, which is done."""
        runner = self.base.runner
        assert isinstance(runner, Watched)
        return runner

    @property
    def stops(self) -> list[Stop]:
        """Where the base run stood after each of its rounds."""
        return self.watched.stops_seen

    @cached_property
    def one_by_one(self) -> dict[str, np.ndarray]:
        """What ``rounds_of`` finds client after client: each sees its own rows alone, between more NaN than there was."""
        return self.rounds_of(self.runner(executor="one_by_one", longer=LONGER))

    @cached_property
    def expected(self) -> dict[str, np.ndarray]:
        """What ``rounds_of`` should find."""
        found: dict[str, np.ndarray] = {}
        for _, after in self.last_rounds:
            found |= named_round(after.state, self.base.record)
        return found

    @cached_property
    def last_rounds(self) -> list[tuple[State, Stop]]:
        """Of every phase of the base run the state before its last round and where it stood after that."""
        found = []
        for number in range(len(self.base.runner.phases)):
            stops = [one for one in self.stops if one.phase == number]
            found.append((([self.watched.entries[number]] + [one.state for one in stops])[-2], stops[-1]))
        return found

    def rounds_of(self, runner: Watched, *, main_only: bool = False) -> dict[str, np.ndarray]:
        """The last round of every phase of the base run (or of the main one alone) as another runner plays it."""
        found: dict[str, np.ndarray] = {}
        for before, after in self.last_rounds:
            if main_only and after.phase != main_phase(runner):
                continue
            phase, stop = runner.phases[after.phase], int(before.round) + 1
            state, record = runner.advance(phase, copied(before), None, Record(), stop)
            found |= named_round(state, record)
        return found

    def next_round_with_another_key(self, before: Stop) -> State:
        """Where the round after a stop leads with the same cohort but another key."""
        runner = self.base.runner
        phase = runner.phases[before.phase]
        setup, round_ = runner.setup(phase), int(before.state.round)
        key = root(twin_seed(setup.cohort, round_, runner.num_seen))
        places = tree.at(runner.places, slice(0, runner.num_seen))
        state, _ = play(setup, runner.arrays, places, key, copied(before.state), 1)
        return state

    def scores(self, *, seed: int) -> Any:
        """The scores of the last state of the base run; the key is for clients that learn when they are served."""
        return score_everyone(replace(self.watched, key=root(seed)), self.base.state, None)

    def run(self, **changes: Any) -> Run:
        """A run on the awkward federation; see ``runner``."""
        return self.runner(**changes).run()

    def runner(
        self,
        *,
        junk: float = 0.0,
        order: list[int] | None = None,
        method: Method | None = None,
        loss: Loss | None = None,
        longer: int = 0,
        **changes: Any,
    ) -> Watched:
        """A runner on the awkward federation; ``changes`` are settings."""
        seen, unseen = worlds.awkward(junk=junk, order=order)
        found = self.on(method or self.method, seen, unseen, loss=loss, **changes)
        return with_longer_padding(found, longer)

    def alone(self) -> Watched:
        """A runner on a federation of one client, whose functions are those of ``one_by_one``."""
        one = replace(worlds.limit_world("one_client"), num_groups=self.method.traits.num_groups)
        found = self.on(self.method, one, None, executor="one_by_one", rounds=1)
        return replace(found, layout=self.runner(longer=LONGER).layout)

    def on(
        self,
        method: Method,
        seen: Federation,
        unseen: Federation | None,
        *,
        loss: Loss | None = None,
        **changes: Any,
    ) -> Watched:
        """A runner on some federation."""
        defaults = {"rounds": ROUNDS, "cohort": AtMost(COHORT), "executor": "vectorized", "eval_every": 1}
        wanted: dict[str, Any] = {**defaults, **changes}
        settings = Settings(**{**wanted, "rounds": wanted["rounds"] + prelude_rounds(method)})
        family = self._families.setdefault(method, Family(partial(losing, method), method))
        ready = prepare(
            method, seen, unseen=unseen, settings=settings, family=family, numbers=loss or losing_nothing()
        )
        # Sizes of messages are the same in all runs, and tracing for them takes longer than a round.
        messages = self._messages if method.model is self.method.model else {}
        return Watched.of(ready, messages=messages)


def quiet(method: Method) -> Method:
    """The method without its warnings: worlds this small deserve them, and they are not what is checked."""
    return replace(method, views=replace(method.views, report=None, forecast=None))


def prelude_rounds(method: Method) -> int:
    """How many rounds come before and after the method's own: checks count those alone."""
    return least_rounds(method) - 1


NOBODY_ASKS: dict[int, Traffic] = {number: Traffic(0, 0, 0, 0, 0) for number in range(10)}


def predictions(method: Method, federation: Federation, *, rounds: int) -> np.ndarray:
    """What every client predicts for some probes after a few rounds with everyone."""
    rounds = rounds + prelude_rounds(method)
    settings = Settings(rounds=rounds, executor="vectorized", eval_every=rounds)
    ready = prepare(quiet(method), federation, settings=settings)
    runner = Watched.of(ready, scored=False, messages=NOBODY_ASKS)
    done = runner.run()
    probes = np.asarray(jax.random.normal(jax.random.key(7), (5, *federation.shape)))
    clients = runner.clients(done.state)
    setup = runner.setup(runner.phases[-1])
    return np.asarray(evaluate.predictions(setup, runner.arrays, done.state.server, clients, probes))


def served_models(runner: Runner, state: State) -> Any:
    """What every client is served in the last phase of a run, stacked."""
    return score_everyone(runner, state, None, evaluate.served_to_all)


class Stopped(Exception):
    """A run was stopped on purpose."""


def interrupted(bench: Bench, folder: Path) -> Run:
    """A run stopped in its last round and started again from the checkpoints it left in a folder."""
    runner = bench.runner(checkpoint=folder, checkpoint_every=1)

    def stop_at_the_end(now: Progress) -> None:
        if now.round == now.rounds:
            raise Stopped

    with suppress(Stopped):
        replace(runner, progress=stop_at_the_end).run()
    return runner.run()
