"""Label flip: attackers train honestly on wrong labels, so that their data are wrong and not their uploads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from plures.attacks.attackers import Attackers
from plures.errors import Unsupported
from plures.method import Attack
from plures.registry import channel
from plures.types import Key, Tree

LEARNED_FROM = (0, 1)  # train and valid rows; test rows stay what they are


@channel(title="Attack: label flip", tags=("attack",))
def label_flip(*, attackers: Attackers = Attackers()) -> Attack:
    """Uploads as they are, of clients that learned from the labels C - 1 - y instead of y.

    Args:
        attackers: Who attacks.
    """
    return _attack(attackers)


def _attack(attackers: Attackers) -> Attack:
    @cache  # one object per number: an attack is a static argument of what is compiled
    def bound(num_clients: int) -> Attack:
        return _attack(attackers.among(num_clients))

    def spoil(federation: Any) -> Any:
        return flip_labels(federation, np.asarray(attackers.members(jnp.asarray(federation.uid))))

    return Attack(
        name="label_flip",
        share=attackers.share,
        members=attackers.members,
        forge=_send_as_is,
        spoil=spoil,
        bound=bound,
    )


def flip_labels(federation: Any, bad: np.ndarray) -> Any:
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


def _send_as_is(key: Key, uploads: Tree, weights: Array, uids: Array, receivers: Array | None = None) -> Tree:
    return uploads
