"""Scores of all clients, seen and unseen, put into the record; and when valid rows have stopped improving."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from plures.engine.clients import VALID
from plures.engine.evaluate import Measure, score
from plures.engine.phases import Span
from plures.engine.prepared import Prepared
from plures.engine.private_rows import DiskStore
from plures.engine.record import Record
from plures.engine.state import State

BLOCK = 256  # clients scored at a time when private rows are on disk

ENOUGH = 0.005
"""By what share of itself the mean valid loss must fall for an evaluation to count as an improvement."""


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


def has_settled(ready: Prepared, record: Record) -> bool:
    """Whether the mean valid loss has not improved for as many evaluations as the run has patience for.

    It is the mean over honest clients in training that have valid rows; one that is no finite number is no improvement.
    """
    patience = ready.settings.patience
    if patience is None:
        return False
    counted = ~ready.attackers[: ready.num_seen] & (ready.everyone.count[: ready.num_seen, VALID] > 0)
    best, waited = np.inf, 0
    for one in record.scores:
        if (one.kind, one.split) != ("personal", "valid") or not counted.any():
            continue
        loss = float(np.mean(np.asarray(one.metrics["loss"], float)[: ready.num_seen][counted]))
        improved = loss < (best - ENOUGH * abs(best) if np.isfinite(best) else np.inf)
        best, waited = (loss, 0) if improved else (best, waited + 1)
    return waited >= patience
