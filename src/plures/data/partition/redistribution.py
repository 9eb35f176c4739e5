"""Dealing: every example of a federation goes to one of some new clients, by a rule that sees labels only."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from plures.data.check import check_shares
from plures.data.federation import Examples, Federation, assemble
from plures.data.splits import SHARES, Shares, at_random, rank_within, stratified
from plures.errors import BadValue, Unsupported
from plures.keys import Purpose, derive, root
from plures.registry import OptionGroup
from plures.types import Key

KEPT = ("task", "num_classes", "num_domains", "num_groups", "title", "class_names", "notes", "standardize_target")
"""What a federation keeps when its rows are dealt anew."""
Owners = NDArray[np.int64]
Rule = Callable[[Key, NDArray[np.int64], int], Owners]
"""(key, labels, number of clients) -> the client of each example, from 0 on."""


def key_of(seed: int, step: str) -> Key:
    """The key of one step of a partition: steps of other names draw independently from the same seed."""
    return jax.random.fold_in(derive(root(seed), Purpose.PARTITION), zlib.crc32(step.encode()))


class Pool(NamedTuple):
    """All examples of a federation, whose part (group and domain) each belongs to, and a label to deal by."""

    rows: NDArray[np.int64]
    part: NDArray[np.int64]
    labels: NDArray[np.int64]
    facts: list[tuple[int, int]]  # (domain, group) of each part, -1 where there is none


def pool_of(federation: Federation) -> Pool:
    """The federation's examples without their clients."""
    size = federation.count.sum(1)
    first = federation.start.min(1)
    rows = np.repeat(first - (np.cumsum(size) - size), size) + np.arange(size.sum())
    part, facts = parts_of(federation)
    labels = labels_to_deal_by(federation.task, federation.y[rows])
    return Pool(rows, np.repeat(part, size), labels, facts)


def parts_of(federation: Federation) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """The part of every client, and each part's (domain, group); -1 where there is none."""
    none = np.full(federation.num_clients, -1)
    domain = none if federation.domain is None else federation.domain
    group = none if federation.group is None else federation.group
    facts, part = np.unique(np.stack([domain, group], 1), axis=0, return_inverse=True)
    return part.ravel(), [(int(d), int(g)) for d, g in facts]


def labels_to_deal_by(task: str, y: NDArray[Any]) -> NDArray[np.int64]:
    """Classes as they are; a real target by its decile; a sequence by nothing."""
    if task in ("classification", "density"):
        return y.astype(np.int64)
    if task == "regression" and y.ndim == 1:
        return np.searchsorted(np.quantile(y, np.arange(0.1, 0.95, 0.1)), y).astype(np.int64)
    return np.zeros(len(y), np.int64)


def needs_labels(federation: Federation, what: str) -> None:
    """Refuse a rule by label where a row has no label of its own."""
    if federation.task == "sequence" or federation.y.ndim > 1:
        wanted = "use iid or lognormal"
        raise Unsupported(f"{what} deals by label, but a row of these data has no single label; {wanted}")


@dataclass(frozen=True, kw_only=True)
class Dealing(OptionGroup):
    """To how many new clients all rows are dealt, and how each one's are split.

    Args:
        num_clients: How many new clients the rows are dealt to, as evenly over groups and domains as can be.
        shares: Shares of train, valid and test rows in which every client's rows are split anew.
        seed: Seed of all that is drawn here; steps of other names draw independently of it.
        in_place: Whether to reorder the given federation's own arrays instead of copies, which saves their memory;
            the given federation must then not be used any more.
    """

    num_clients: int = 20
    shares: Shares = SHARES
    seed: int = 0
    in_place: bool = False


def redistribute(
    federation: Federation, rule: Rule, dealing: Dealing, *, step: str, min_size: int = 1
) -> Federation:
    """A federation of new clients with every example once, dealt by ``rule`` inside each part.

    Clients that got fewer than ``min_size`` examples are topped up from larger ones of their part. ``step`` is the name
    of the partitioner, from which the key is made.
    """
    check_shares(dealing.shares)
    pool, key = pool_of(federation), key_of(dealing.seed, step)
    each = clients_per_part(pool, dealing.num_clients, min_size)
    owner, moved = np.empty(len(pool.rows), np.int64), 0
    for part, number in enumerate(each):
        mine = np.flatnonzero(pool.part == part)
        key_rule, key_top = jax.random.split(jax.random.fold_in(key, part))
        own = rule(key_rule, pool.labels[mine], int(number))
        own, poor = top_up(key_top, own, int(number), min_size)
        owner[mine] = own + each[:part].sum()
        moved += poor
    codes = split_anew(jax.random.fold_in(key, len(each)), federation, pool, owner, dealing.shares)
    domain, group = np.repeat(np.array(pool.facts), each, axis=0).T
    made = assemble(
        Examples(federation.x, federation.y, owner, codes, pool.rows),
        names=names_of(dealing.num_clients),
        in_place=dealing.in_place,
        domain=None if federation.domain is None else domain,
        group=None if federation.group is None else group,
        **{name: getattr(federation, name) for name in KEPT},
    )
    if moved:
        made = made.noted(f"{moved} clients drew fewer than {min_size} rows and were topped up from larger ones")
    return made.noted(*_lost(federation))


def _lost(federation: Federation) -> list[str]:
    """Warnings about what dealing anew undoes."""
    notes = []
    if federation.unit:
        notes.append(f"rows of one {federation.unit} may now lie in train and in test: scores will be too good")
    if federation.held_out is not None:
        number = int(federation.held_out.sum())
        notes.append(f"the rows of {number} clients that were held out as unseen are dealt with the others")
    return notes


def clients_per_part(pool: Pool, num_clients: int, min_size: int) -> NDArray[np.int64]:
    """How many of the new clients each part gets: as even as can be.

    Refused are more clients than there are examples for, and fewer than there are parts.
    """
    examples, parts, per_client = len(pool.rows), len(pool.facts), f"({min_size} rows or more each)"
    if not 1 <= min_size <= examples:
        raise BadValue("min_size", min_size, f"between 1 and the {examples} rows there are")
    if not 1 <= num_clients <= examples // min_size:
        raise BadValue("num_clients", num_clients, f"between 1 and {examples // min_size} {per_client}")
    if num_clients < parts:
        raise BadValue("num_clients", num_clients, f"at least {parts}, one for each group or domain of the data")
    each = np.full(parts, num_clients // parts)
    each[: num_clients % parts] += 1
    rows = np.bincount(pool.part, minlength=parts)
    short = np.flatnonzero(each * min_size > rows)
    if len(short):
        wanted = f"fewer: a group or domain of {rows[short[0]]} rows is too small for {each[short[0]]} clients"
        raise BadValue("num_clients", num_clients, f"{wanted} {per_client}")
    return each


def top_up(key: Key, owner: Owners, num_clients: int, min_size: int) -> tuple[Owners, int]:
    """Owners with at least ``min_size`` examples each, and how many clients had fewer.

    Larger clients give at random, in proportion to what they have above the minimum.
    """
    sizes = np.bincount(owner, minlength=num_clients)
    lacking, surplus = np.maximum(min_size - sizes, 0), np.maximum(sizes - min_size, 0)
    need = int(lacking.sum())
    if not need:
        return owner, 0
    chance = np.asarray(jax.random.uniform(key, owner.shape))
    gives = round_to_total(surplus * (need / surplus.sum()), need)
    movable = np.flatnonzero(rank_within(owner, chance) < gives[owner])
    movable = movable[np.argsort(chance[movable])]
    owner = owner.copy()
    owner[movable] = np.repeat(np.arange(num_clients), lacking)
    return owner, int((lacking > 0).sum())


def round_to_total(amounts: NDArray[Any], total: int, start: float = 0.5) -> NDArray[np.int64]:
    """Whole numbers that add up to ``total``, each within one of its share of it; an amount of 0 gets none."""
    edges = np.cumsum(amounts)
    # Dividing first makes the last edge exactly 1, and that of every client of amount 0 before it.
    return np.diff(np.floor(edges / edges[-1] * total + start).astype(np.int64), prepend=0)


def split_anew(key: Key, federation: Federation, pool: Pool, owner: Owners, shares: Shares) -> Owners:
    """Split codes of the dealt rows: stratified by label or target where a row has one."""
    if federation.task in ("classification", "regression") and federation.y.ndim == 1:
        return stratified(key, owner, federation.y[pool.rows], shares)
    return at_random(key, owner, shares)


def names_of(num_clients: int) -> tuple[str, ...]:
    """client-000, client-001, ... in an order that sorting keeps."""
    width = max(len(str(num_clients - 1)), 3)
    return tuple(f"client-{k:0{width}d}" for k in range(num_clients))
