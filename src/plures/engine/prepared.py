"""A method and a federation made ready, and all that follows from them before the first round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from plures import tree
from plures.data.federation import Federation
from plures.engine import cohort as cohorts
from plures.engine import executors
from plures.engine.attackers import attackers_among
from plures.engine.clients import TRAIN, VALID, Arrays, Place, RowLayout, rows
from plures.engine.cohort import Everyone
from plures.engine.executors import Executor
from plures.engine.identity import Identity, identify_laid_out
from plures.engine.phases import Span, methods_of, spans_of
from plures.engine.private_rows import DiskStore
from plures.engine.record import Progress, Visits
from plures.engine.round import Client, Family, Setup
from plures.engine.rounds import clients_at
from plures.engine.settings import Settings
from plures.engine.state import State, server_shape
from plures.engine.traffic import Traffic, traffic_of
from plures.method import Method
from plures.types import Key, Tree


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """What a run is made of; ``everyone`` is in the order of uids, training clients first.

    ``old_checkpoints``: one of version 0.1, which does not say of which method it is, is read as well.
    """

    method: Method
    settings: Settings
    seen: Federation
    everyone: Federation
    layout: RowLayout
    arrays: Arrays
    places: Place
    key: Key
    progress: Callable[[Progress], None] | None = None
    family: Family | None = None
    numbers: Tree = ()
    old_checkpoints: bool = False

    @cached_property
    def phases(self) -> list[Span]:
        """All phases of the method, in order."""
        return spans_of(self.method, self.settings.rounds)

    @property
    def num_seen(self) -> int:
        """How many clients take part in training."""
        return self.seen.num_clients

    @cached_property
    def attackers(self) -> np.ndarray:
        """(clients,) who attacks, in the order of uids; unseen clients are honest."""
        found = attackers_among(self.settings.channels, self.num_seen)
        return np.concatenate([found, np.zeros(self.everyone.num_clients - self.num_seen, bool)])

    @cached_property
    def identity(self) -> Identity:
        """What this run is known by; its checkpoints also by where private rows are kept."""
        store = "memory" if self.settings.store == "memory" else "disk"
        own = identify_laid_out(self.method, self.seen, self.everyone, self.settings)
        return Identity({**own.parts, "store": store})

    def setup(self, span: Span) -> Setup:
        """The static part of a phase."""
        cohort = Everyone() if span.everyone else cohorts.cohort(self.settings.cohort)
        chosen = self._executor(span.method, self.seen, cohort.size(self.num_seen))
        alone = Setup(span.method, self.layout, chosen, cohort, self.settings.channels, span.start)
        if self.family is None or chosen.on_host:
            return alone
        number = self.phases.index(span)
        like = methods_of(self.family.base)[number]
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
            message_bytes=max(traffic.down, traffic.serve) * method.traits.lanes,
            data_bytes=max(self.layout.capacity) * row_bytes,
            work=federation.count[:, TRAIN].tolist(),
            num_clients=size,
        )

    def traffic(self, method: Method) -> Traffic:
        """Bytes of each message of one client."""
        if method not in self._traffic:
            place = tree.at(self.places, 0)
            both = (rows(self.layout, self.arrays, place, TRAIN), rows(self.layout, self.arrays, place, VALID))
            self._traffic[method] = traffic_of(method, self._server_shape(method), both)
        return self._traffic[method]

    @cached_property
    def _traffic(self) -> dict[Method, Traffic]:
        """What was found before: a method is traced for it, which takes longer than a small round."""
        return {}

    def _server_shape(self, method: Method) -> Tree:
        """The shapes of a method's server state, as handed over where another phase comes first."""
        chain = [span for span in self.phases if span.method is method]
        if not chain:
            return jax.eval_shape(lambda: method.start(self.key, self.num_seen))
        return server_shape(self.phases[: self.phases.index(chain[0]) + 1], self.num_seen)

    def visits(self, span: Span, state: State) -> Visits:
        """Who took part in a phase, with the bytes of a message."""
        traffic = self.traffic(span.method)
        name = "main" if span.main else f"prelude {self.phases.index(span) + 1}"
        played = int(state.round) - span.start
        visits, exchanges = (np.asarray(one, np.int64) for one in (state.visits, state.exchanges))
        return Visits(name, played, visits, exchanges, traffic.join, traffic.down, traffic.up, traffic.answer)

    def clients(self, state: State, store: DiskStore | None = None, uids: np.ndarray | None = None) -> Client:
        """Clients, all by default, as the executor wants them; unseen ones have not joined, whatever row they are given."""
        uids = np.arange(self.everyone.num_clients) if uids is None else uids
        known = uids < self.num_seen
        rows = np.where(known, uids, 0)
        private = tree.at(state.private, rows) if store is None else store.get(rows)
        visits = jnp.where(known, state.visits[rows], 0)
        return clients_at(tree.at(self.places, uids), private, visits, state.round, self.key)
