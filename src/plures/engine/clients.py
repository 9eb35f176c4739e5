"""A federation as the engine holds it: flat arrays shared by all, and a small placement per client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from plures.data.federation import Federation
from plures.errors import BadData
from plures.types import Data, Rows

TRAIN, VALID, TEST = 0, 1, 2


class Arrays(NamedTuple):
    """All examples of all clients."""

    x: Array
    y: Array


class Place(NamedTuple):
    """Where one client's rows lie (train, valid, test), and who it is; stacked on axis 0 for many clients."""

    starts: Array
    sizes: Array
    uid: Array
    domain: Array
    group: Array


@dataclass(frozen=True)
class RowLayout:
    """Static facts: the most rows any client has per split, and whether all have equally many."""

    capacity: tuple[int, ...]
    equal: tuple[bool, ...]


def layout_of(federation: Federation) -> RowLayout:
    """The static facts of a federation."""
    most, least = federation.count.max(0), federation.count.min(0)
    return RowLayout(tuple(most.tolist()), tuple((most == least).tolist()))


def on_device(federation: Federation) -> tuple[Arrays, Place]:
    """The federation's examples as device arrays (32-bit), and where each client's lie, on the host."""
    if len(federation.x) >= 2**31:
        raise BadData(f"a federation may hold at most 2^31 examples, got {len(federation.x)}")
    none = np.full(federation.num_clients, -1)
    domain = none if federation.domain is None else federation.domain
    group = none if federation.group is None else federation.group
    numbers = (federation.start, federation.count, federation.uid, domain, group)
    return Arrays(_floats(federation.x), _floats(federation.y)), Place(
        *(np.asarray(values, np.int32) for values in numbers)  # type: ignore[arg-type]
    )


def _floats(values: np.ndarray) -> Array:
    return jnp.asarray(values, jnp.float32 if values.dtype.kind == "f" else jnp.int32)


def rows(layout: RowLayout, arrays: Arrays, place: Place, split: int) -> Rows:
    """One client's rows of one split."""
    capacity = layout.capacity[split]
    count = capacity if layout.equal[split] else place.sizes[split]
    return Rows(arrays.x, arrays.y, place.starts[split], count, capacity)


def view(layout: RowLayout, arrays: Arrays, place: Place) -> Data:
    """One client's data as a method sees them."""
    return Data(rows(layout, arrays, place, TRAIN), rows(layout, arrays, place, VALID), place.domain, place.group)


def cut_out(layout: RowLayout, arrays: Arrays, place: Place) -> tuple[Arrays, Place]:
    """One client's rows alone, each split padded to its capacity with NaN (floats) or zeros (integers)."""
    starts = np.cumsum([0, *layout.capacity[:2]])
    parts = [_padded(arrays, place, split, layout.capacity[split]) for split in (TRAIN, VALID, TEST)]
    alone = Arrays(jnp.concatenate([p.x for p in parts]), jnp.concatenate([p.y for p in parts]))
    return alone, place._replace(starts=jnp.asarray(starts, jnp.int32))


def _padded(arrays: Arrays, place: Place, split: int, capacity: int) -> Arrays:
    first, count = int(place.starts[split]), int(place.sizes[split])

    def cut(values: Array) -> Array:
        blank = jnp.nan if jnp.issubdtype(values.dtype, jnp.floating) else 0
        fill = jnp.full((capacity - count, *values.shape[1:]), blank, values.dtype)
        return jnp.concatenate([values[first : first + count], fill])

    return Arrays(cut(arrays.x), cut(arrays.y))


def with_unseen(seen: Federation, unseen: Federation) -> Federation:
    """Both federations as one; examples are copied only if they are not shared already."""

    if (seen.shape, seen.task, seen.y.shape[1:]) != (unseen.shape, unseen.task, unseen.y.shape[1:]):
        raise BadData(
            f"seen and unseen clients must have inputs and labels of one shape and task, got {seen.shape} "
            f"{seen.task} and {unseen.shape} {unseen.task}"
        )
    if seen.num_classes != unseen.num_classes:
        raise BadData(f"seen clients have {seen.num_classes} classes, unseen ones {unseen.num_classes}")
    if set(seen.uid) & set(unseen.uid):
        raise BadData("seen and unseen clients share uids; make both with hold_out")
    if sorted(unseen.uid) != list(range(seen.num_clients, seen.num_clients + unseen.num_clients)):
        raise BadData(f"uids of unseen clients must go on from {seen.num_clients}; make both with hold_out")
    if set(seen.names) & set(unseen.names):
        raise BadData(f"client '{min(set(seen.names) & set(unseen.names))}' is both seen and unseen")
    shared = seen.x is unseen.x
    shift = 0 if shared else len(seen.x)

    def both(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
        if a is None and b is None:
            return None
        known = (np.full(n, -1) if v is None else v for v, n in ((a, seen.num_clients), (b, unseen.num_clients)))
        return np.concatenate(list(known))

    return replace(
        seen,
        x=seen.x if shared else np.concatenate([seen.x, unseen.x]),
        y=seen.y if shared else np.concatenate([seen.y, unseen.y]),
        start=np.concatenate([seen.start, unseen.start + shift]),
        count=np.concatenate([seen.count, unseen.count]),
        uid=np.concatenate([seen.uid, unseen.uid]),
        names=seen.names + unseen.names,
        group=both(seen.group, unseen.group),
        domain=both(seen.domain, unseen.domain),
    )
