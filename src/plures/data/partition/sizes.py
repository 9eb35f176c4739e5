"""How many rows each client gets: equal, lognormal or by Zipf's law."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from plures.errors import BadValue, UnknownChoice
from plures.types import Key

KINDS = ("equal", "lognormal", "zipf")


def sizes_of_kind(
    kind: str, key: Key, total: int, num_clients: int, *, spread: float, smallest: int
) -> NDArray[np.int64]:
    """Sizes that add up to ``total``, none below ``smallest``; ``spread`` is the sigma or the exponent."""
    makers = {"equal": equal_sizes, "lognormal": lognormal_sizes, "zipf": zipf_sizes}
    if kind not in makers:
        raise UnknownChoice("kind of sizes", kind, KINDS)
    return makers[kind](key, total, num_clients, spread, smallest)


def equal_sizes(key: Key, total: int, num_clients: int, spread: float, smallest: int) -> NDArray[np.int64]:
    """As equal as whole numbers can be."""
    return _shared_out(np.ones(num_clients), total, smallest)


def lognormal_sizes(key: Key, total: int, num_clients: int, spread: float, smallest: int) -> NDArray[np.int64]:
    """Proportional to exp(spread * z) with z standard normal, above the smallest size."""
    check_spread("spread", spread)
    return _shared_out(np.exp(spread * np.asarray(jax.random.normal(key, (num_clients,)), float)), total, smallest)


def zipf_sizes(key: Key, total: int, num_clients: int, spread: float, smallest: int) -> NDArray[np.int64]:
    """Proportional to rank^(-spread), above the smallest size; which client has which rank is drawn."""
    check_spread("spread", spread)
    rank = 1.0 + np.asarray(jax.random.permutation(key, num_clients))
    return _shared_out(rank**-spread, total, smallest)


def check_spread(name: str, spread: float) -> None:
    """Refuse a sigma or an exponent outside [0, 10), by the name of its option."""
    if not 0 <= spread < 10:
        raise BadValue(name, spread, "a number in [0, 10)")


def _shared_out(amounts: NDArray[Any], total: int, smallest: int) -> NDArray[np.int64]:
    """Sizes of at least ``smallest`` that share the rest in proportion to the amounts."""
    free = total - smallest * len(amounts)
    sizes = smallest + np.floor(free * amounts / amounts.sum()).astype(np.int64)
    sizes[: total - sizes.sum()] += 1
    return sizes
