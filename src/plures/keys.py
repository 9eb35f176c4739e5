"""Randomness: a client's key depends on (seed, purpose, round, uid) and on nothing else.

So results do not depend on the executor, on chunking, on the number of devices or on the order of rows.
"""

from __future__ import annotations

from enum import IntEnum

import jax
import jax.numpy as jnp
from jax import Array

from plures.errors import BadValue
from plures.types import Key


class Purpose(IntEnum):
    """What a key is for; each purpose has its own stream."""

    START = 0
    COHORT = 1
    JOIN = 2
    TRAIN = 3
    CHANNEL = 4
    SETTLE = 5
    SERVE = 6
    HAND_OVER = 7
    DATA = 8
    SPLIT = 9
    HOLD_OUT = 10
    PARTITION = 11
    TUNE = 12


def root(seed: int) -> Key:
    """The key everything else is derived from."""
    if not 0 <= seed < 2**32:
        raise BadValue("seed", seed, "a whole number from 0 to 4294967295")
    return jax.random.key(seed)


def derive(key: Key, purpose: Purpose, round_: Array | int = 0, uid: Array | int = 0) -> Key:
    """The key of one purpose, round and client."""
    for number in (int(purpose), round_, uid):
        key = jax.random.fold_in(key, number)
    return key


SWAP_ROUNDS = 24


def permute(key: Key, index: Array, count: Array | int) -> Array:
    """Where ``index`` goes under a random permutation of 0..count-1 fixed by the key.

    The swap-or-not shuffle of Hoang, Morris and Rogaway (CRYPTO 2012): each round pairs i with (k - i) mod
    count and swaps the pair by a random bit. No sort and no array of length ``count`` is needed, and the
    permutation does not depend on padding. Every index in 0..count-1 is hit exactly once.
    """
    pivots, factors, shifts = jax.random.bits(key, (3, SWAP_ROUNDS), jnp.uint32)
    size = jnp.maximum(jnp.asarray(count, jnp.uint32), 1)

    def swap_or_not(at: Array, now: tuple[Array, Array, Array]) -> tuple[Array, None]:
        pivot, factor, shift = now
        partner = jnp.where(at <= pivot, pivot - at, pivot + size - at)
        swap = (jnp.maximum(at, partner) * factor + shift) >> 31
        return jnp.where(swap == 1, partner, at), None

    # Unrolled four at a time: fewer loop steps to run, little more to compile.
    at = jnp.minimum(index.astype(jnp.uint32), size - 1)
    at, _ = jax.lax.scan(swap_or_not, at, (pivots % size, factors | 1, shifts), unroll=4)
    return at.astype(index.dtype)
