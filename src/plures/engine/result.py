"""The result of a run: its state, its record, a row per client, and a model for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.engine.clients import TEST, VALID
from plures.engine.evaluate import row_losses, served
from plures.engine.private_rows import DiskStore
from plures.engine.record import Record
from plures.engine.scoring import score_everyone
from plures.engine.state import State
from plures.engine.work import steps_per_client
from plures.errors import BadValue, UnknownChoice
from plures.method import Report
from plures.types import Tree

if TYPE_CHECKING:
    import polars as pl

    from plures.engine.runner import Runner


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
