"""Clipping: an upload longer than a bound is scaled back to it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import BadValue
from plures.registry import channel
from plures.types import Channel, Key, Tree


@channel(title="Clip by norm")
def clip(*, norm: float = 1.0) -> Channel:
    """Uploads scaled to at most ``norm`` in the Euclidean norm over all leaves."""
    if not norm > 0:
        raise BadValue("norm", norm, "a positive number")

    def one(upload: Tree) -> Tree:
        length = jnp.sqrt(tree.squared_norm(upload))
        return tree.scale(jnp.minimum(1.0, norm / jnp.maximum(length, 1e-12)), upload)

    def apply(key: Key, uploads: Tree, weights: Array, uids: Array) -> tuple[Tree, Array]:
        return jax.vmap(one)(uploads), weights

    return apply
