"""Who is Byzantine: chosen by uid from a seed, the same whatever the order of clients.

Honest clients are scored alone, so the choice must be known outside the run too.
"""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from plures.errors import BadValue
from plures.keys import Purpose, derive, root


def byzantine_uids(num_clients: int, *, share: float, seed: int = 0) -> NDArray[np.int64]:
    """The uids of the Byzantine clients among 0..num_clients-1, in ascending order: round(share n) of them.

    >>> byzantine_uids(10, share=0.2, seed=1).shape
    (2,)
    """
    return np.flatnonzero(is_byzantine(jnp.arange(num_clients), share=share, seed=seed, num_clients=num_clients))


def is_byzantine(uids: Array, *, share: float, seed: int = 0, num_clients: int = 0) -> Array:
    """Whether each of these clients is Byzantine.

    With ``num_clients`` (of the whole federation) exactly those of ``byzantine_uids``; without it every client by
    itself, with the probability ``share``.
    """
    check_share(share)
    if not num_clients:
        return _luck(uids, seed) < share
    with jax.ensure_compile_time_eval():  # a constant, also where a round is compiled
        order = jnp.argsort(_luck(jnp.arange(num_clients), seed), stable=True)
        # The last place is for everybody else.
        table = jnp.zeros(num_clients + 1, bool).at[order[: int(share * num_clients + 0.5)]].set(True)
    return table[jnp.minimum(uids, num_clients)]


def check_share(share: float) -> None:
    """Refuse a share that leaves nobody honest."""
    if not 0 <= share < 1:
        raise BadValue("share", share, "a number in [0, 1)")


def _luck(uids: Array, seed: int) -> Array:
    key = jax.random.fold_in(derive(root(seed), Purpose.CHANNEL), zlib.crc32(b"byzantine"))
    return jax.vmap(lambda uid: jax.random.uniform(jax.random.fold_in(key, uid)))(uids)
