"""Scores of all clients, seen and unseen, put into the record."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plures import tree
from plures.engine.evaluate import Measure, score
from plures.engine.patience import has_settled
from plures.engine.phases import Span
from plures.engine.prepared import Prepared
from plures.engine.private_rows import DiskStore
from plures.engine.record import Record
from plures.engine.round import Client, Setup
from plures.engine.rounds import clients_at
from plures.engine.state import State
from plures.types import Tree

BLOCK = 256  # clients scored at a time when private rows are on disk


def record_scores(ready: Prepared, span: Span, state: State, store: DiskStore | None, record: Record) -> Record:
    """The record with an evaluation of the state, if it is time for one; test rows are scored at the end alone, also an early one."""
    now, every = int(state.round), ready.settings.eval_every or ready.settings.rounds
    last = span is ready.phases[-1] and now == span.stop
    if not span.main or not (last or now % every == 0):
        return record
    found = score_everyone(ready, ready.scoring(ready.setup(span)), state, store)
    uid = np.asarray(ready.everyone.uid)
    record, before = record.with_scores(now, uid, found, ("valid", "served")), record
    if last or has_settled(ready, record):
        record = before.with_scores(now, uid, found, ("valid", "served", "test"))
    spent = np.array([record.num_bytes(ready.visits(span, state))]) / ready.num_seen / 1e6
    return record.with_info(now - 1, {"mb_per_client": spent})


def score_everyone(
    ready: Prepared, setup: Setup, state: State, store: DiskStore | None, of: Measure = score
) -> Any:
    """Scores of all clients, seen and unseen: kind -> split -> metric -> (clients,), or what ``of`` measures."""
    everybody = np.arange(ready.num_seen)
    blocks = [everybody] if store is None else np.array_split(everybody, -(-ready.num_seen // BLOCK))
    parts = []
    for block in blocks:
        private = state.private if store is None else store.get(block)
        clients = _block(ready, state, private, block, with_unseen=block is blocks[-1])
        parts.append(jax.device_get(of(setup, ready.arrays, state.server, clients)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _block(ready: Prepared, state: State, private: Tree, block: np.ndarray, *, with_unseen: bool) -> Client:
    """Some of the training clients, and with them the unseen ones if asked."""
    extra = ready.everyone.num_clients - ready.num_seen if with_unseen else 0
    rows = np.concatenate([block, ready.num_seen + np.arange(extra)])
    blank = jax.tree.map(lambda leaf: jnp.zeros((extra, *leaf.shape[1:]), leaf.dtype), private)
    everyone = jax.tree.map(lambda a, b: jnp.concatenate([a, b]) if extra else a, private, blank)
    visits = jnp.concatenate([state.visits[block], jnp.zeros(extra, jnp.int32)])
    return clients_at(tree.at(ready.places, rows), everyone, visits, state.round, ready.key)
