"""The result of a run: its state, its record, a row per client, a model for each of them, and what newcomers get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.engine import cohort as cohorts
from plures.engine.clients import TEST, TRAIN, VALID
from plures.engine.cohort import Everyone
from plures.engine.evaluate import row_losses, score, served
from plures.engine.prepared import Prepared
from plures.engine.private_rows import DiskStore
from plures.engine.record import Record
from plures.engine.round import STEPS
from plures.engine.scoring import score_everyone
from plures.engine.state import State
from plures.errors import BadValue, UnknownChoice
from plures.method import Report
from plures.types import Tree

if TYPE_CHECKING:
    import polars as pl

    from plures.engine.runner import Runner

AMOUNTS = (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Served:
    """One client's model."""

    weights: Tree
    apply: Callable[[Tree, Array], Array]

    def predict(self, x: Any) -> Array:
        """The model's outputs for some inputs."""
        return self.apply(self.weights, jnp.asarray(x))


@dataclass(frozen=True)
class Run:
    """A finished run."""

    runner: Runner
    state: State
    store: DiskStore | None
    record: Record
    seconds: float

    @cached_property
    def report(self) -> Report:
        """What the method says of its training and its result, in plain words."""
        report = self.runner.method.views.report
        return Report() if report is None else report(jax.device_get(self.state.server))

    @property
    def num_bytes(self) -> int:
        """Bytes that crossed the network, all clients together."""
        return self.record.num_bytes(self.runner.visits(self.runner.phases[-1], self.state))

    @property
    def clients(self) -> pl.DataFrame:
        """A row per client: who it is, what it has, its final scores, its traffic; under attack, who attacks."""
        import polars as pl

        runner = self.runner
        everyone, num_seen = runner.everyone, runner.num_seen
        nothing = [None] * everyone.num_clients
        columns: dict[str, Any] = {
            "uid": everyone.uid,
            "name": list(everyone.names),
            "seen": everyone.uid < num_seen,
            **({"attacker": runner.attackers} if runner.attackers.any() else {}),
            "group": nothing if everyone.group is None else everyone.group,
            "train_rows": everyone.count[:, 0],
            "valid_rows": everyone.count[:, 1],
            "test_rows": everyone.count[:, 2],
        }
        extra = np.zeros(everyone.num_clients - num_seen, np.int64)
        visits = self._visits()
        columns["rounds"] = np.concatenate([sum(one.visits for one in visits), extra])
        columns["bytes_down"] = np.concatenate([sum(one.bytes_down for one in visits), extra])
        columns["bytes_up"] = np.concatenate([sum(one.bytes_up for one in visits), extra])
        work = steps_per_client(runner, self.record)
        columns["steps_per_client"] = [work] * num_seen + [None] * len(extra)
        for kind in ("personal", "global"):
            for split in ("valid", "test"):
                found = self.record.latest(kind, split)
                for name, values in ({} if found is None else found.metrics).items():
                    columns[f"{kind}_{split}_{name}"] = values
        told = self.record.latest("facts", "served")
        columns.update({} if told is None else told.metrics)
        return pl.DataFrame(columns, schema_overrides={"group": pl.Int64}).fill_nan(None)

    def losses(self) -> dict[str, list[np.ndarray]]:
        """The loss of every row: split ("valid", "test") -> an array per client, in the order of uids.

        Every client is served anew, all of them in one pass.
        """
        found = score_everyone(self.runner, self.state, self.store, row_losses)
        count = self.runner.everyone.count
        sizes = {"valid": count[:, VALID], "test": count[:, TEST]}
        return {
            split: [np.asarray(row[:number], float) for row, number in zip(found[split], counts, strict=True)]
            for split, counts in sizes.items()
        }

    def model_for(self, client: int | str) -> Served:
        """What the client with this uid or name predicts with: ``run.model_for(3).predict(x)``."""
        runner, state = self.runner, self.state
        if isinstance(client, str) and client not in runner.everyone.names:
            raise UnknownChoice("client", client, runner.everyone.names)
        uid = runner.everyone.names.index(client) if isinstance(client, str) else client
        if not 0 <= uid < runner.everyone.num_clients:
            raise BadValue("uid", uid, f"between 0 and {runner.everyone.num_clients - 1}")
        one = tree.at(runner.clients(state, self.store, np.array([uid])), 0)
        setup = runner.setup(runner.phases[-1])
        return Served(served(setup, runner.arrays, state.server, one), runner.method.predict)

    def _visits(self) -> list[Any]:
        return [*self.record.past, self.runner.visits(self.runner.phases[-1], self.state)]


def steps_per_client(ready: Prepared, record: Record) -> float:
    """The mean over training clients of the gradient steps they made, all rounds and exchanges together.

    A round's record is the mean over its cohort, so that it counts for the cohort's share of the clients. A step of Newton's
    method counts as one. What clients do when they are served (fine-tuning, say) is done once and not counted.
    """
    total = 0.0
    for span in ready.phases:
        cohort = Everyone() if span.everyone else cohorts.cohort(ready.settings.cohort)
        share = cohort.size(ready.num_seen) / ready.num_seen
        rounds = range(span.start + 1, span.stop + 1)
        total += share * sum(value for at, name, value in record.info if name == STEPS and at in rounds)
    return total


def newcomers(done: Run, amounts: Sequence[int] = AMOUNTS) -> pl.DataFrame | None:
    """A row per unseen client and amount: its scores on all its test rows if it brings so many training rows.

    A client brings its first training rows and the same share of its valid rows; the last amount is all it has. None
    where there are no unseen clients. One pass serves all of them.
    """
    import polars as pl

    runner = done.runner
    number = runner.everyone.num_clients - runner.num_seen
    if not number:
        return None
    count = runner.everyone.count[runner.num_seen :]
    who, train = _amounts(count[:, TRAIN], amounts)
    share = train / np.maximum(count[who, TRAIN], 1)
    sizes = np.stack([train, np.round(share * count[who, VALID]), count[who, TEST]], 1)
    found = _scored(done, runner.num_seen + who, sizes.astype(np.int32))
    metrics = {f"personal_test_{name}": values for name, values in found["personal"]["test"].items()}
    uid = runner.everyone.uid[runner.num_seen :][who]
    columns: dict[str, Any] = {"uid": uid, "rows": train, "all": train == count[who, TRAIN], **metrics}
    return pl.DataFrame(columns).fill_nan(None)


def _amounts(have: np.ndarray, amounts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(whose, how many) rows: every amount below what a client has, and what it has.

    >>> [part.tolist() for part in _amounts(np.array([3, 7]), (0, 5))]
    [[0, 0, 1, 1, 1], [0, 3, 0, 5, 7]]
    """
    each = [[*(amount for amount in amounts if amount < most), most] for most in have.tolist()]
    return np.repeat(np.arange(len(each)), [len(one) for one in each]), np.concatenate(each).astype(np.int64)


def _scored(done: Run, rows: np.ndarray, sizes: np.ndarray) -> Any:
    """The scores of some unseen clients, each as if it had as many rows as said."""
    runner, state = done.runner, done.state
    those = replace(runner, layout=replace(runner.layout, equal=(False, False, runner.layout.equal[TEST])))
    clients = those.clients(state, done.store, rows)
    clients = clients._replace(place=clients.place._replace(sizes=jnp.asarray(sizes)))
    setup = those.scoring(those.setup(those.phases[-1]))
    return jax.device_get(score(setup, those.arrays, state.server, clients))
