"""A method on the bench: built, run in the ways the checks need, with as few compilations as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plures import tree
from plures.contract import worlds
from plures.data import Federation
from plures.engine import Progress, Run, Runner, Settings, evaluate, prepare
from plures.engine.state import least_rounds
from plures.registry import METHODS, PERSONALIZERS, Entry
from plures.types import Method, Model, Plan

ROUNDS, COHORT = 3, 4

Build = Callable[[Model, Plan, Mapping[str, Any]], Method]


@dataclass(frozen=True)
class Subject:
    """What is checked: a name, the registered entry and a way to build the method with options."""

    name: str
    entry: Entry
    build: Build

    @property
    def model(self) -> Model:
        """A tiny model; with a body and a head for an entry tagged ``parts``, with batch norm for one tagged ``norm``."""
        return worlds.model(parts="parts" in self.entry.tags, norm="norm" in self.entry.tags)

    @staticmethod
    def method(entry: Entry) -> Subject:
        """A registered method."""

        def build(model: Model, plan: Plan, options: Mapping[str, Any]) -> Method:
            method: Method = entry.factory(model, **_accepted(entry, plan, options))
            return method

        return Subject(entry.name, entry, build)

    @staticmethod
    def personalizer(entry: Entry, base: str) -> Subject:
        """A registered personalizer around a method."""

        def build(model: Model, plan: Plan, options: Mapping[str, Any]) -> Method:
            inner = Subject.method(METHODS[base]).build(model, plan, {})
            method: Method = entry.factory(inner, **_accepted(entry, plan, options))
            return method

        return Subject(f"{base}|{entry.name}", entry, build)


FACTS = {"num_groups": 2, "num_domains": 2}


def _accepted(entry: Entry, plan: Plan, options: Mapping[str, Any]) -> dict[str, Any]:
    known = {"plan": plan, **FACTS}
    return {**{name: value for name, value in known.items() if name in entry.options}, **options}


def subjects() -> list[Subject]:
    """Every registered method, and every personalizer around FedAvg (guard: around Ditto)."""
    found = [Subject.method(entry) for entry in METHODS.values()]
    bases = {"guard": "ditto"}
    return found + [Subject.personalizer(one, bases.get(one.name, "fedavg")) for one in PERSONALIZERS.values()]


class Bench:
    """One method built once; runs share its compilations."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.method = quiet(subject.build(subject.model, worlds.PLAN, {}))

    @cached_property
    def base(self) -> Run:
        """The run all others are compared with."""
        return self.run()

    def run(self, **changes: Any) -> Run:
        """A run on the awkward federation; ``changes`` are settings, ``junk``, ``order`` or ``method``."""
        return self.runner(**changes).run()

    def runner(
        self,
        *,
        junk: float = 0.0,
        order: list[int] | None = None,
        method: Method | None = None,
        **changes: Any,
    ) -> Runner:
        """A runner on the awkward federation."""
        chosen = method or self.method
        seen, unseen = worlds.awkward(junk=junk, order=order)
        defaults = {"rounds": ROUNDS, "cohort": COHORT, "executor": "vectorized", "eval_every": 1}
        wanted: dict[str, Any] = {**defaults, **changes}
        settings = Settings(**{**wanted, "rounds": wanted["rounds"] + prelude_rounds(chosen)})
        return prepare(chosen, seen, unseen=None if chosen.transductive else unseen, settings=settings)

    def rebuilt(self) -> Method:
        """The method built a second time."""
        return quiet(self.subject.build(self.subject.model, worlds.PLAN, {}))


def quiet(method: Method) -> Method:
    """The method without its warnings: worlds this small deserve them, and they are not what is checked."""
    return replace(method, notes=None, forecast=None)


def prelude_rounds(method: Method) -> int:
    """How many rounds come before and after the method's own: checks count those alone."""
    return least_rounds(method) - 1


def outcome(run: Run) -> dict[str, np.ndarray]:
    """All that a run leaves behind, by name: server, private rows, visits, scores."""
    named = dict(zip(tree.paths(run.state), jax.tree.leaves(run.state), strict=True))
    found = {f"state/{name}": _plain(leaf) for name, leaf in named.items()}
    for one in run.record.scores:
        for metric, values in one.metrics.items():
            found[f"round {one.round}/{one.kind}/{one.split}/{metric}"] = np.asarray(values)
    return found


def _plain(leaf: Any) -> np.ndarray:
    if tree.is_key(leaf):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


class Unscored(Runner):
    """A runner that evaluates nobody: there is one program less to compile."""

    def score(self, *args: Any, **options: Any) -> Any:
        """Nothing."""
        return {}


def predictions(method: Method, federation: Federation, *, rounds: int) -> np.ndarray:
    """What every client predicts for some probes after a few rounds with everyone."""
    rounds = rounds + prelude_rounds(method)
    settings = Settings(rounds=rounds, executor="vectorized", eval_every=rounds)
    prepared = prepare(quiet(method), federation, settings=settings)
    runner = Unscored(**{one.name: getattr(prepared, one.name) for one in fields(prepared)})
    done = runner.run()
    probes = jax.random.normal(jax.random.key(7), (5, *federation.shape))
    clients = runner.clients(done.state, done.state.private)
    setup = runner.setup(runner.phases[-1])
    return np.asarray(evaluate.predictions(setup, runner.arrays, done.state.server, clients, probes))


def served_models(run: Run) -> Any:
    """What every client is served, stacked."""
    runner = run.runner

    def served(setup: Any, arrays: Any, server: Any, clients: Any) -> Any:
        return jax.vmap(lambda client: evaluate.serve_one(setup, arrays, server, client))(clients)

    return runner.score(runner.scoring(runner.setup(runner.phases[-1])), run.state, run.store, served)


def capacity_raised(runner: Runner, extra: int) -> Runner:
    """The same runner with longer padding."""
    most = runner.layout.capacity
    raised = (most[0] + extra, most[1] + extra, most[2] + extra)
    return replace(runner, layout=replace(runner.layout, capacity=raised))


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


def losing(uid: int, content: list[float]) -> Any:
    """A channel on which one client's upload arrives as ``content[0]`` and is declared lost.

    What stands there is read while a program runs, so that runs with other content need no other program.
    """

    def apply(key: Any, uploads: Any, weights: Any, uids: Any) -> Any:
        lost = uids == uid
        scalar = jax.eval_shape(lambda: jnp.zeros(()))
        wrong = jax.pure_callback(lambda: np.float32(content[0]), scalar)

        def spoil(leaf: Any) -> Any:
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                return leaf
            return jnp.where(lost.reshape(-1, *(1,) * (leaf.ndim - 1)), wrong.astype(leaf.dtype), leaf)

        return jax.tree.map(spoil, uploads), jnp.where(lost, 0.0, weights)

    return apply
