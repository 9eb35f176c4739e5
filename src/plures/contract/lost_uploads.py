"""Uploads of one client that are lost on the way: whether they are is read while a program runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures.method import Method

LOST = 1  # the client whose uploads may be lost


class Loss(NamedTuple):
    """Whether the uploads of one client are lost, and what arrives in their place; both are read while a program runs."""

    on: np.bool_
    content: np.float32


def losing_nothing() -> Loss:
    """All uploads arrive."""
    return Loss(np.bool_(False), np.float32(0))


def lost_as(content: float) -> Loss:
    """One client's uploads are lost, and this stands in their place."""
    return Loss(np.bool_(True), np.float32(content))


def losing(method: Method, loss: Loss) -> Method:
    """The method in whose every phase the uploads of client ``LOST`` arrive as ``loss`` says, with weight 0."""
    phases = tuple(
        phase if phase.method is None else replace(phase, method=_losing_alone(phase.method, loss))
        for phase in method.phases
    )
    return replace(_losing_alone(method, loss), phases=phases)


def _losing_alone(method: Method, loss: Loss) -> Method:
    def merge(server: Any, uploads: Any, weights: Array, uids: Array) -> Any:
        lost = loss.on & (uids == LOST)

        def spoil(leaf: Array) -> Array:
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                return leaf
            where = lost.reshape(-1, *(1,) * (leaf.ndim - 1))
            return jnp.where(where, jnp.asarray(loss.content, leaf.dtype), leaf)

        return method.merge(server, jax.tree.map(spoil, uploads), jnp.where(lost, 0.0, weights), uids)

    return replace(method, merge=merge)
