"""Tiny federations on which every method is checked; awkward on purpose.

Sizes differ, one client has a single class, one has no training rows at all, junk lies between clients' rows,
and two clients are never seen in training.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from plures.data import Federation
from plures.models.linear import softmax
from plures.models.mlp import mlp
from plures.models.mlp_norm import mlp_norm
from plures.types import Model, Plan

SIZES = ((5, 2, 2), (9, 3, 3), (4, 2, 3), (7, 2, 2), (6, 2, 2), (0, 2, 2), (5, 2, 2), (6, 3, 2))
NUM_UNSEEN = 2
NUM_SEEN = len(SIZES) - NUM_UNSEEN
DIM, CLASSES, GAP = 3, 3, 2
ONE_CLASS = 4

PLAN = Plan(epochs=1, batch=4, lr=0.2)
FULL_BATCH = Plan(epochs=2, batch=None, lr=0.2)


def model(*, parts: bool = False, norm: bool = False) -> Model:
    """Softmax regression with a little ridge, so that every optimum is finite; or a body and a head; or with batch norm."""
    if norm:
        return mlp_norm((DIM,), CLASSES, hidden=(4,))
    return mlp((DIM,), CLASSES, hidden=(4,)) if parts else softmax((DIM,), CLASSES, ridge=0.01)


def awkward(*, junk: float = 0.0, order: list[int] | None = None) -> tuple[Federation, Federation]:
    """(seen, unseen): the same clients whatever fills the gaps and in whichever order they are stored."""
    clients = [_client(uid) for uid in range(len(SIZES))]
    federation = _laid_out(clients, order or list(range(len(SIZES))), junk)
    rows_of = {int(uid): row for row, uid in enumerate(federation.uid)}
    stored = [int(uid) for uid in federation.uid]
    return (
        federation.take([rows_of[uid] for uid in stored if uid < NUM_SEEN]),
        federation.take([rows_of[uid] for uid in stored if uid >= NUM_SEEN]),
    )


def limit_world(name: str) -> Federation:
    """The federation on which a limit is checked: see ``registry.Limit``."""
    if name == "one_client":
        return _laid_out([_client(1)], [0], 0.0)
    clients = [_client(uid) for uid in (0, 1, 2, 3)]
    groups = {"one_group": [0, 0, 0, 0], "own_groups": [0, 1, 2, 3]}.get(name, [0, 1, 0, 1])
    return _laid_out(clients, [0, 1, 2, 3], 0.0, groups)


def _client(uid: int) -> tuple[Any, Any, tuple[int, int, int]]:
    """One client's inputs, labels and split sizes; its group shifts the labels."""
    key_x, key_y = jax.random.split(jax.random.key(100 + uid))
    rows = sum(SIZES[uid])
    x = np.asarray(jax.random.normal(key_x, (rows, DIM)))
    noise = np.asarray(jax.random.gumbel(key_y, (rows, CLASSES)))
    labels = (x + 0.3 * noise).argmax(1)
    labels = (labels + uid % 2) % CLASSES if uid != ONE_CLASS else np.zeros(rows, int)
    return x, labels.astype(np.int32), SIZES[uid]


def _laid_out(clients: list[Any], order: list[int], junk: float, groups: list[int] | None = None) -> Federation:
    """Clients stored in an order, with junk rows between them."""
    x_parts, y_parts, starts, counts, at = [], [], [], [], 0
    for uid in order:
        x, y, sizes = clients[uid]
        x_parts += [x, np.full((GAP, DIM), junk)]
        y_parts += [y, np.zeros(GAP, np.int32)]
        starts.append(at + np.cumsum([0, *sizes[:2]]))
        counts.append(sizes)
        at += len(x) + GAP
    planted = groups or [uid % 2 for uid in range(len(clients))]
    return Federation(
        x=np.concatenate(x_parts).astype(np.float32),
        y=np.concatenate(y_parts),
        start=np.array(starts, np.int64),
        count=np.array(counts, np.int64),
        uid=np.array(order, np.int64),
        names=tuple(f"client-{uid}" for uid in order),
        task="classification",
        num_classes=CLASSES,
        group=np.array([planted[uid] for uid in order], np.int64),
        domain=np.array([uid % 2 for uid in order], np.int64),
        num_groups=max(planted) + 1,
        num_domains=2,
        title="awkward",
    )
