"""The label-flip attack: Byzantine clients train honestly on wrong labels.

It changes data and not uploads, so it is no channel. Apply it to the clients that take part (after ``hold_out``): a
client is Byzantine by its uid.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from plures.aggregate.byzantine import is_byzantine
from plures.data.federation import Federation
from plures.errors import Unsupported

LEARNED_FROM = (0, 1)  # train and valid rows; test rows stay what they are


def label_flip(federation: Federation, *, share: float = 0.2, seed: int = 0) -> Federation:
    """The federation in which a share of the clients learn from the labels C - 1 - y instead of y.

    They are those of ``plures.aggregate.byzantine_uids`` for the same share and seed.
    """
    if federation.task != "classification" or federation.y.ndim > 1:
        raise Unsupported(f"label_flip is for classification, but these data are for {federation.task}")
    uids = jnp.asarray(federation.uid)
    bad = np.asarray(is_byzantine(uids, share=share, seed=seed, num_clients=federation.num_clients))
    y = federation.y.copy()
    for client in np.flatnonzero(bad):
        for part in LEARNED_FROM:
            first = federation.start[client, part]
            own = slice(first, first + federation.count[client, part])
            y[own] = federation.num_classes - 1 - y[own]
    said = f"label flip: {bad.sum()} of {federation.num_clients} clients learn from wrong labels"
    return replace(federation, y=y).noted(said)
