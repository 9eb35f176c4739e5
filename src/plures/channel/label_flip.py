"""Label flip: Byzantine clients train honestly on wrong labels, so that their data lie and not their uploads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from plures.channel.gang import Gang
from plures.errors import Unsupported
from plures.registry import channel
from plures.types import Attack, Key, Tree

LEARNED_FROM = (0, 1)  # train and valid rows; test rows stay what they are


@channel(title="Attack: label flip", tags=("attack",))
def label_flip(*, share: float = 0.2, seed: int = 0, num_clients: int = 0) -> Attack:
    """Uploads as they are, of clients that learned from the labels C - 1 - y instead of y."""
    return _attack(Gang("label_flip", share, seed, num_clients))


def _attack(gang: Gang) -> Attack:
    @cache
    def bound(num_clients: int) -> Attack:
        return _attack(gang.among(num_clients))

    def spoil(federation: Any) -> Any:
        return flipped(federation, np.asarray(gang.members(jnp.asarray(federation.uid))))

    return Attack(name=gang.name, share=gang.share, members=gang.members, forge=_honestly, spoil=spoil, bound=bound)


def flipped(federation: Any, bad: np.ndarray) -> Any:
    """The federation in which the clients at these rows learn from mirrored labels."""
    if federation.task != "classification" or federation.y.ndim > 1:
        raise Unsupported(f"label_flip is for classification, but these data are for {federation.task}")
    y = federation.y.copy()
    for client in np.flatnonzero(bad):
        for part in LEARNED_FROM:
            first = federation.start[client, part]
            own = slice(first, first + federation.count[client, part])
            y[own] = federation.num_classes - 1 - y[own]
    return replace(federation, y=y)


def _honestly(key: Key, uploads: Tree, weights: Array, uids: Array, receivers: Array | None = None) -> Tree:
    return uploads
