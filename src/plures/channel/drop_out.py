"""Drop-outs: some clients train but their upload never arrives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from plures.errors import require
from plures.method import Channel
from plures.registry import channel
from plures.types import Key, Tree


@channel(title="Drop-outs")
def drop_out(*, share: float = 0.1) -> Channel:
    """Each upload is lost with probability ``share``, by (round, uid).

    Args:
        share: Probability that an upload is lost, in [0, 1); 0 loses none.
    """
    require(0 <= share < 1, "share", share, "a number in [0, 1)")

    def apply(key: Key, uploads: Tree, weights: Array, uids: Array) -> tuple[Tree, Array]:
        luck = jax.vmap(lambda uid: jax.random.uniform(jax.random.fold_in(key, uid)))(uids)
        return uploads, jnp.where(luck < share, 0.0, weights)

    return apply
