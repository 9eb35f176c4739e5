"""Planted clusters of clients: by rotation, by the meaning of labels, by which labels occur."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Federation
from plures.data.partition.images import as_images, rotate_each
from plures.data.partition.quantity import by_size
from plures.data.partition.redistribution import Dealing, Owners, key_of, needs_labels, parts_of, redistribute
from plures.errors import BadValue, Unsupported
from plures.types import Key


@registry.partitioner(title="Rotation groups")
def rotation_groups(
    federation: Federation, *, num_groups: int = 4, degrees: float | None = None, seed: int = 0
) -> Federation:
    """Group g sees its images turned by g times ``degrees`` (a full turn divided by the groups by default).

    Quarter turns are exact; other angles are interpolated.

    Args:
        num_groups: How many groups are planted; clients are drawn into them evenly, inside each group and domain
            there is. 1 changes nothing.
        degrees: Angle between the images of one group and those of the next; None divides a full turn by the groups.
        seed: Seed of all that is drawn here; steps of other names draw independently of it.
    """
    images = as_images(federation, "rotation_groups")
    group = draw_groups(federation, num_groups, key_of(seed, "rotation_groups"))
    step = 360.0 / num_groups if degrees is None else degrees
    if not np.isfinite(step):
        raise BadValue("degrees", degrees, "a finite number")
    turned = rotate_each(images, np.maximum(of_rows(federation, group), 0) * step)
    return with_groups(replace(federation, x=turned.reshape(federation.x.shape)), group, num_groups)


@registry.partitioner(title="Label-permutation groups")
def label_permutation_groups(federation: Federation, *, num_groups: int = 4, seed: int = 0) -> Federation:
    """Group g calls class c by the name (c + g) mod the number of classes: the same inputs, other labels.

    Args:
        num_groups: How many groups are planted; clients are drawn into them evenly, inside each group and domain
            there is. At most the number of classes; 1 changes nothing.
        seed: Seed of all that is drawn here; steps of other names draw independently of it.
    """
    if federation.task != "classification":
        raise Unsupported(f"label_permutation_groups renames classes, but these data are for {federation.task}")
    if not 1 <= num_groups <= federation.num_classes:
        raise BadValue("num_groups", num_groups, f"between 1 and the {federation.num_classes} classes there are")
    group = draw_groups(federation, num_groups, key_of(seed, "label_permutation_groups"))
    shift = np.maximum(of_rows(federation, group), 0)
    y = ((federation.y + shift) % federation.num_classes).astype(federation.y.dtype)
    return with_groups(replace(federation, y=y), group, num_groups)


@registry.partitioner(title="Label-set groups", tags=("deals",))
def label_set_groups(federation: Federation, *, num_groups: int = 2, dealing: Dealing = Dealing()) -> Federation:
    """Classes are shared out among the groups; a client sees the classes of its group alone, dealt at random.

    Args:
        num_groups: How many groups the classes are shared out among, at most the number of classes; 1 gives everyone
            all classes.
        num_clients: How many new clients the rows are dealt to, as evenly over groups and domains as can be. At least
            one per group.
    """
    needs_labels(federation, "label_set_groups")
    num_clients = dealing.num_clients
    least = num_groups * len(parts_of(federation)[1])
    if num_clients < least:
        raise BadValue("num_clients", num_clients, f"at least {least}, one per group")

    def rule(key: Key, labels: Owners, number: int) -> Owners:
        key_sets, key_deal = jax.random.split(key)
        classes, codes = np.unique(labels, return_inverse=True)
        if not 1 <= num_groups <= len(classes):
            raise BadValue("num_groups", num_groups, f"between 1 and the {len(classes)} classes there are")
        set_of = np.asarray(jax.random.permutation(key_sets, len(classes))) % num_groups
        owner = np.empty(len(labels), np.int64)
        for g in range(num_groups):
            mine = np.flatnonzero(set_of[codes] == g)
            members = np.arange(g, number, num_groups)
            # Nobody can be topped up with the classes of another group.
            if len(mine) < len(members):
                wanted = f"fewer: the classes of one group have {len(mine)} rows for {len(members)} clients"
                raise BadValue("num_clients", num_clients, wanted)
            key_own = jax.random.fold_in(key_deal, g)
            owner[mine] = members[by_size("equal", spread=0.0, smallest=0)(key_own, labels[mine], len(members))]
        return owner

    made = redistribute(federation, rule, dealing, step="label_set_groups")
    part, _ = parts_of(made)
    # Parts lie one after another, so a client's place in its part is its row less the part's first.
    place = np.arange(num_clients) - np.searchsorted(part, part)
    return with_groups(made, place % num_groups, num_groups)


def draw_groups(federation: Federation, num_groups: int, key: Key) -> NDArray[np.int64]:
    """A group for every client, at random and as evenly as can be inside each group and domain there is.

    Clients are taken in the order of their uids, so where they are stored makes no difference.
    """
    part, facts = parts_of(federation)
    least = int(np.bincount(part).min())
    if not 1 <= num_groups <= least:
        inside = " there are" if len(facts) == 1 else " of the smallest group or domain"
        raise BadValue("num_groups", num_groups, f"between 1 and the {least} clients{inside}")
    group = np.empty(federation.num_clients, np.int64)
    for number in range(len(facts)):
        mine = np.flatnonzero(part == number)
        order = np.asarray(jax.random.permutation(jax.random.fold_in(key, number), len(mine)))
        group[mine[np.argsort(federation.uid[mine])]] = order % num_groups
    return group


def with_groups(federation: Federation, group: NDArray[np.int64], num_groups: int) -> Federation:
    """The federation with these planted groups, inside those it has already."""
    if federation.group is None:
        return replace(federation, group=group.astype(np.int64), num_groups=num_groups)
    both = federation.group * num_groups + group
    return replace(federation, group=both, num_groups=federation.num_groups * num_groups)


def of_rows(federation: Federation, per_client: NDArray[np.int64]) -> NDArray[np.int64]:
    """The client's number for every row of the examples; -1 for rows of no client here."""
    each = np.full(len(federation.x), -1, np.int64)
    for number, starts, counts in zip(per_client, federation.start, federation.count, strict=True):
        each[starts[0] : starts[0] + counts.sum()] = number
    return each
