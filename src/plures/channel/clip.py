"""Clipping: an upload longer than a bound is scaled back to it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import require
from plures.method import Channel
from plures.registry import channel
from plures.types import Key, Tree


@channel(title="Clip by norm")
def clip(*, norm: float = 1.0) -> Channel:
    """Uploads scaled to at most ``norm`` in the Euclidean norm over all leaves.

    Args:
        norm: Length from which on an upload is scaled back, in the unit of uploads; a huge one changes nothing.
    """
    require(norm > 0, "norm", norm, "a positive number")

    def one(upload: Tree) -> Tree:
        numbers = [leaf for leaf in jax.tree.leaves(upload) if tree.is_float(leaf)]
        factor = jnp.minimum(1.0, norm / jnp.maximum(jnp.sqrt(tree.squared_norm(numbers)), 1e-12))
        # Whole numbers say which (a cluster, a domain), not how much.
        return jax.tree.map(lambda leaf: tree.scale(factor, leaf) if tree.is_float(leaf) else leaf, upload)

    def apply(key: Key, uploads: Tree, weights: Array, uids: Array) -> tuple[Tree, Array]:
        if not jax.tree.leaves(uploads):  # training alone sends nothing
            return uploads, weights
        return jax.vmap(one)(uploads), weights

    return apply
