"""Scores of all clients, seen and unseen, put into the record."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from plures.engine.evaluate import Measure, score
from plures.engine.patience import has_settled
from plures.engine.phases import Span
from plures.engine.prepared import Prepared
from plures.engine.private_rows import DiskStore
from plures.engine.record import Record
from plures.engine.state import State

BLOCK = 256  # clients scored at a time when private rows are on disk


def record_scores(ready: Prepared, span: Span, state: State, store: DiskStore | None, record: Record) -> Record:
    """The record with an evaluation of the state, if it is time for one; test rows are scored at the end alone, also an early one."""
    now, every = int(state.round), ready.settings.eval_every or ready.settings.rounds
    last = span is ready.phases[-1] and now == span.stop
    if not span.main or not (last or now % every == 0):
        return record
    found = score_everyone(ready, state, store, span=span)
    uid = np.asarray(ready.everyone.uid)
    record, before = record.with_scores(now, uid, found, ("valid", "served")), record
    if last or (span is ready.phases[-1] and has_settled(ready, record)):
        record = before.with_scores(now, uid, found, ("valid", "served", "test"))
    spent = np.array([record.num_bytes(ready.visits(span, state))]) / ready.num_seen / 1e6
    return record.with_info(now - 1, {"mb_per_client": spent})


def score_everyone(
    ready: Prepared, state: State, store: DiskStore | None, of: Measure = score, *, span: Span | None = None
) -> Any:
    """Scores of all clients, seen and unseen: kind -> split -> metric -> (clients,), or what ``of`` measures.

    They are served as in the last phase, or in ``span``.
    """
    setup = ready.scoring(ready.setup(span or ready.phases[-1]))
    blocks = np.array_split(np.arange(ready.num_seen), 1 if store is None else -(-ready.num_seen // BLOCK))
    blocks[-1] = np.arange(blocks[-1][0], ready.everyone.num_clients)  # unseen clients come last
    parts = []
    for block in blocks:
        clients = ready.clients(state, store, block)
        parts.append(jax.device_get(of(setup, ready.arrays, state.server, clients)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
