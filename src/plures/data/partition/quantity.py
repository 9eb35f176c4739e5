"""Clients of other sizes, and the data's own clients: no label is looked at."""

from __future__ import annotations

import jax
import numpy as np

from plures import registry
from plures.data.federation import Federation
from plures.data.partition.deal import Owners, Rule, dealt, key_of
from plures.data.partition.sizes import check_spread, sizes_of_kind
from plures.data.splits import SHARES, Shares
from plures.errors import BadValue
from plures.types import Key


@registry.partitioner(title="Independent and identical", tags=("deals",))
def iid(
    federation: Federation,
    *,
    num_clients: int = 20,
    shares: Shares = SHARES,
    seed: int = 0,
    in_place: bool = False,
) -> Federation:
    """Examples dealt at random into clients of equal size: nothing differs but chance."""
    rule = by_size("equal", spread=0.0, smallest=1)
    return dealt(federation, num_clients, rule, key=key_of(seed, "iid"), shares=shares, in_place=in_place)


@registry.partitioner(title="Quantity skew, lognormal", tags=("deals",))
def lognormal(
    federation: Federation,
    *,
    num_clients: int = 20,
    spread: float = 1.0,
    min_size: int = 3,
    shares: Shares = SHARES,
    seed: int = 0,
    in_place: bool = False,
) -> Federation:
    """Examples dealt at random into clients whose sizes go as exp(spread * z), z standard normal."""
    rule = by_size("lognormal", spread=spread, smallest=min_size)
    key = key_of(seed, "lognormal")
    return dealt(federation, num_clients, rule, key=key, min_size=min_size, shares=shares, in_place=in_place)


@registry.partitioner(title="Quantity skew, Zipf", tags=("deals",))
def zipf(
    federation: Federation,
    *,
    num_clients: int = 20,
    exponent: float = 1.0,
    min_size: int = 3,
    shares: Shares = SHARES,
    seed: int = 0,
    in_place: bool = False,
) -> Federation:
    """Examples dealt at random into clients whose sizes go as rank^(-exponent)."""
    check_spread("exponent", exponent)
    rule = by_size("zipf", spread=exponent, smallest=min_size)
    return dealt(
        federation, num_clients, rule, key=key_of(seed, "zipf"), min_size=min_size, shares=shares, in_place=in_place
    )


def by_size(kind: str, *, spread: float, smallest: int) -> Rule:
    """A rule that deals a random order of the examples in pieces of the wanted sizes."""

    def rule(key: Key, labels: Owners, num_clients: int) -> Owners:
        key_sizes, key_order = jax.random.split(key)
        sizes = sizes_of_kind(kind, key_sizes, len(labels), num_clients, spread=spread, smallest=smallest)
        owner = np.empty(len(labels), np.int64)
        owner[np.asarray(jax.random.permutation(key_order, len(labels)))] = np.repeat(np.arange(num_clients), sizes)
        return owner

    return rule


@registry.partitioner(title="Natural clients", tags=("chooses",))
def natural(federation: Federation, *, min_rows: int = 0) -> Federation:
    """The data's own clients; those with fewer than ``min_rows`` rows are left out, with a note that counts them."""
    large = federation.count.sum(1) >= min_rows
    if not large.any():
        raise BadValue("min_rows", min_rows, f"at most {federation.count.sum(1).max()}, the largest client's rows")
    if large.all():
        return federation
    left_out = f"{int((~large).sum())} clients with fewer than {min_rows} rows are left out"
    return federation.take(large).renumbered(0).noted(left_out)


@registry.partitioner(title="Some of the clients", tags=("chooses",))
def draw_clients(federation: Federation, *, num_clients: int = 20, seed: int = 0) -> Federation:
    """Some of the clients, drawn at random; those set apart as unseen keep their share."""
    if not 1 <= num_clients <= federation.num_clients:
        raise BadValue("num_clients", num_clients, f"between 1 and {federation.num_clients}")
    order = np.asarray(jax.random.permutation(key_of(seed, "draw_clients"), federation.num_clients))
    order = np.argsort(federation.uid)[order]
    apart = np.zeros(federation.num_clients, bool) if federation.apart is None else federation.apart
    unseen = min(round(num_clients * apart.mean()), num_clients - int(not apart.all()))
    chosen = [*order[apart[order]][:unseen], *order[~apart[order]][: num_clients - unseen]]
    return federation.take(np.sort(chosen)).renumbered(0)
