"""Clients of other sizes, and the data's own clients: no label is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Federation
from plures.data.partition.redistribution import Dealing, Owners, Rule, key_of, redistribute
from plures.errors import BadValue, UnknownChoice
from plures.types import Key

KINDS: dict[str, Callable[[Key, int, float], NDArray[Any]]] = {
    "equal": lambda key, number, spread: np.ones(number),
    "lognormal": lambda key, number, spread: np.exp(spread * np.asarray(jax.random.normal(key, (number,)), float)),
    "zipf": lambda key, number, spread: (1.0 + np.asarray(jax.random.permutation(key, number))) ** -spread,
}
"""What sizes are proportional to, above the smallest one: 1, exp(spread * z) with z standard normal, or rank^(-spread),
where it is drawn which client has which rank."""


@registry.partitioner(title="Independent and identical", tags=("deals",))
def iid(federation: Federation, *, dealing: Dealing = Dealing()) -> Federation:
    """Examples dealt at random into clients of equal size: nothing differs but chance."""
    rule = by_size("equal", spread=0.0, smallest=1)
    return redistribute(federation, rule, dealing, step="iid")


@registry.partitioner(title="Quantity skew, lognormal", tags=("deals",))
def lognormal(
    federation: Federation, *, dealing: Dealing = Dealing(), spread: float = 1.0, min_size: int = 3
) -> Federation:
    """Examples dealt at random into clients whose sizes go as exp(spread * z), z standard normal.

    Args:
        spread: Sigma of the logarithm of sizes, in [0, 10): 0 makes all clients equally large, at 1 the largest of 20
            has some 40 times the rows of the smallest.
        min_size: Fewest rows of a client; the rest is shared out by the law.
    """
    rule = by_size("lognormal", spread=spread, smallest=min_size)
    return redistribute(federation, rule, dealing, step="lognormal", min_size=min_size)


@registry.partitioner(title="Quantity skew, Zipf", tags=("deals",))
def zipf(
    federation: Federation, *, dealing: Dealing = Dealing(), exponent: float = 1.0, min_size: int = 3
) -> Federation:
    """Examples dealt at random into clients whose sizes go as rank^(-exponent).

    Args:
        exponent: How fast sizes fall with the rank, in [0, 10): 0 makes all clients equally large, at 1 the tenth has
            a tenth of the rows of the first.
        min_size: Fewest rows of a client; the rest is shared out by the law.
    """
    check_spread("exponent", exponent)
    rule = by_size("zipf", spread=exponent, smallest=min_size)
    return redistribute(federation, rule, dealing, step="zipf", min_size=min_size)


def by_size(kind: str, *, spread: float, smallest: int) -> Rule:
    """A rule that deals a random order of the examples in pieces of the wanted sizes."""

    def rule(key: Key, labels: Owners, num_clients: int) -> Owners:
        key_sizes, key_order = jax.random.split(key)
        sizes = sizes_of_kind(kind, key_sizes, len(labels), num_clients, spread=spread, smallest=smallest)
        owner = np.empty(len(labels), np.int64)
        owner[np.asarray(jax.random.permutation(key_order, len(labels)))] = np.repeat(np.arange(num_clients), sizes)
        return owner

    return rule


def sizes_of_kind(
    kind: str, key: Key, total: int, num_clients: int, *, spread: float, smallest: int
) -> NDArray[np.int64]:
    """Sizes that add up to ``total``, none below ``smallest``; ``spread`` is the sigma or the exponent."""
    if kind not in KINDS:
        raise UnknownChoice("kind of sizes", kind, KINDS)
    if kind != "equal":
        check_spread("spread", spread)
    amounts = KINDS[kind](key, num_clients, spread)
    free = total - smallest * num_clients
    sizes = smallest + np.floor(free * amounts / amounts.sum()).astype(np.int64)
    sizes[: total - sizes.sum()] += 1
    return sizes


def check_spread(name: str, spread: float) -> None:
    """Refuse a sigma or an exponent outside [0, 10), by the name of its option."""
    if not 0 <= spread < 10:
        raise BadValue(name, spread, "a number in [0, 10)")


@registry.partitioner(title="Natural clients", tags=("chooses",))
def natural(federation: Federation, *, min_rows: int = 0) -> Federation:
    """The data's own clients; those with fewer than ``min_rows`` rows are left out, with a note that counts them.

    Args:
        min_rows: Fewest rows of a client that is kept, over all its splits; 0 keeps everyone.
    """
    large = federation.count.sum(1) >= min_rows
    if not large.any():
        raise BadValue("min_rows", min_rows, f"at most {federation.count.sum(1).max()}, the largest client's rows")
    if large.all():
        return federation
    left_out = f"{int((~large).sum())} clients with fewer than {min_rows} rows are left out"
    return federation.take(large).renumbered(0).noted(left_out)


@registry.partitioner(title="Some of the clients", tags=("chooses",))
def draw_clients(federation: Federation, *, num_clients: int = 20, seed: int = 0) -> Federation:
    """Some of the clients, drawn at random; those held out as unseen keep their share.

    Args:
        num_clients: How many clients are kept.
        seed: Seed of all that is drawn here; steps of other names draw independently of it.
    """
    if not 1 <= num_clients <= federation.num_clients:
        raise BadValue("num_clients", num_clients, f"between 1 and {federation.num_clients}")
    order = np.asarray(jax.random.permutation(key_of(seed, "draw_clients"), federation.num_clients))
    order = np.argsort(federation.uid)[order]
    held_out = np.zeros(federation.num_clients, bool) if federation.held_out is None else federation.held_out
    unseen = min(round(num_clients * held_out.mean()), num_clients - int(not held_out.all()))
    chosen = [*order[held_out[order]][:unseen], *order[~held_out[order]][: num_clients - unseen]]
    return federation.take(np.sort(chosen)).renumbered(0)
