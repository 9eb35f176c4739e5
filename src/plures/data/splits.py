"""Train, valid, test: which rows of each client go where. Codes are 0, 1, 2.

Every rule looks at one client's rows at a time: what another client's rows hold changes nothing. Only chance is
drawn for all rows at once, so it does depend on where a client's rows lie.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from plures.data.check import check_shares
from plures.types import Key

Shares = tuple[float, float, float]
SHARES: Shares = (0.6, 0.2, 0.2)
Codes = NDArray[np.int64]


def at_random(key: Key, owner: NDArray[Any], shares: Shares) -> Codes:
    """Within each client a random order is cut into train, valid and test."""
    check_shares(shares)
    rank = rank_within(owner, uniform(key, owner))
    return _cut(rank, owner, shares)


def stratified(key: Key, owner: NDArray[Any], y: NDArray[Any], shares: Shares) -> Codes:
    """Within each client every class (or every range of a real target) is spread over the splits by its share.

    A client's rows are put in the order of their targets, ties at random, and test and valid rows are picked at
    even steps from a random start: each class gets its share up to one row.
    """
    check_shares(shares)
    key_ties, key_test, key_valid = jax.random.split(key, 3)
    owner, sizes = _number_clients(owner)
    chance = uniform(key_ties, owner)
    train, valid, test = (part.astype(np.int64) for part in sizes_of(sizes, shares))
    is_test = _even_steps(rank_within(owner, y, chance), sizes[owner], test[owner], uniform(key_test, sizes)[owner])
    rest = np.flatnonzero(~is_test)
    rank = rank_within(owner[rest], y[rest], chance[rest])
    left = (train + valid)[owner[rest]]
    is_valid = _even_steps(rank, left, valid[owner[rest]], uniform(key_valid, sizes)[owner[rest]])
    codes = np.where(is_test, 2, 0)
    codes[rest] = is_valid
    return codes


def by_order(owner: NDArray[Any], order: NDArray[Any], shares: Shares) -> Codes:
    """Later rows are test: within each client the first by ``order`` train, the next validate, the last test.

    Rows of one moment stay together, so a client whose rows all carry one moment only trains.
    """
    check_shares(shares)
    rank = rank_within(owner, order)
    moment = np.lexsort((order, owner))
    same = (owner[moment][1:] == owner[moment][:-1]) & (order[moment][1:] == order[moment][:-1])
    # The rank of the first row of a moment, carried on to the others.
    first = np.maximum.accumulate(np.where(np.r_[False, same], 0, np.arange(len(owner))))
    shared = np.empty_like(rank)
    shared[moment] = rank[moment[first]]
    return _cut(shared, owner, shares)


def by_unit(key: Key, owner: NDArray[Any], unit: NDArray[Any], shares: Shares) -> Codes:
    """Whole units (recordings, visits, documents) go to one split, drawn at random within each client."""
    check_shares(shares)
    owner, _ = _number_clients(owner)
    unit_of = np.unique(unit, return_inverse=True)[1]
    pairs, pair = np.unique(owner * (unit_of.max() + 1) + unit_of, return_inverse=True)
    owner_of_unit = pairs // (unit_of.max() + 1)
    return at_random(key, owner_of_unit, shares)[pair]


def sizes_of(sizes: NDArray[Any], shares: Shares) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(train, valid, test) rows of clients of these sizes.

    From three rows on a client gets at least one row of each wanted part; training always has one.
    """
    test = np.where(shares[2] > 0, np.maximum(np.rint(shares[2] * sizes), 1), 0)
    for_valid = (shares[1] > 0) & (sizes >= 3)
    test = np.minimum(test, np.maximum(sizes - 1 - for_valid, 0))
    valid = np.where(shares[1] > 0, np.maximum(np.rint(shares[1] * sizes), 1), 0)
    valid = np.minimum(valid, np.maximum(sizes - test - 1, 0))
    return sizes - test - valid, valid, test


def rank_within(owner: NDArray[Any], *by: NDArray[Any]) -> NDArray[np.int64]:
    """The place of each row among its client's rows, ordered by the first of ``by``, ties by the next."""
    owner, sizes = _number_clients(owner)
    order = np.lexsort((*reversed(by), owner))
    first = np.cumsum(sizes) - sizes
    rank = np.empty(len(owner), np.int64)
    rank[order] = np.arange(len(owner)) - first[owner[order]]
    return rank


def _cut(rank: NDArray[np.int64], owner: NDArray[Any], shares: Shares) -> Codes:
    owner, sizes = _number_clients(owner)
    train, valid, _ = (part.astype(np.int64) for part in sizes_of(sizes, shares))
    return (rank >= train[owner]).astype(np.int64) + (rank >= (train + valid)[owner])


def _number_clients(owner: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Clients as numbers from 0 on, and how many rows each has."""
    if owner.dtype.kind != "i" or (len(owner) and owner.min() < 0):
        owner = np.unique(owner, return_inverse=True)[1]
    return owner.astype(np.int64), np.bincount(owner)


def _even_steps(rank: Any, total: Any, wanted: Any, start: Any) -> NDArray[np.bool_]:
    """Exactly ``wanted`` of the ranks 0..total-1, evenly spaced from a start in [0, 1)."""
    # Whole numbers keep the count exact: the start is a step number out of `total`.
    offset = np.floor(start * total).astype(np.int64)
    return ((rank + 1) * wanted + offset) // total > (rank * wanted + offset) // total


def uniform(key: Key, like: NDArray[Any]) -> NDArray[Any]:
    """Numbers drawn evenly from [0, 1), as many as another array has."""
    return np.asarray(jax.random.uniform(key, like.shape))
