"""Concept shift: the same input means something else from group to group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Federation
from plures.data.partition.deal import key_of
from plures.data.partition.groups import drawn_groups, of_rows, with_groups
from plures.errors import BadValue, Unsupported
from plures.types import Key


@registry.partitioner(title="Concept shift")
def concept_shift(federation: Federation, *, dial: float = 0.5, num_groups: int = 2, seed: int = 0) -> Federation:
    """A dial from 0 (all groups agree) to 1 (they disagree about every class).

    Classification: a ``dial`` of the classes changes places, in group g by g steps of a circle. Regression: group
    g > 0 adds a linear function of the inputs of its own, ``dial`` times as large as the target's deviation.
    """
    if not 0 <= dial <= 1:
        raise BadValue("dial", dial, "a number in [0, 1]")
    key_groups, key_what = jax.random.split(key_of(seed, "concept_shift"))
    group = drawn_groups(federation, num_groups, key_groups)
    if federation.task == "classification":
        y = _renamed(federation, of_rows(federation, group), dial, num_groups, key_what)
    elif federation.task == "regression" and federation.y.ndim == 1:
        y = _added(federation, of_rows(federation, group), dial, num_groups, key_what)
    else:
        several = " of several targets" if federation.task == "regression" else ""
        wanted = "concept_shift is for classification and regression of one target"
        raise Unsupported(f"{wanted}, but these data are for {federation.task}{several}")
    return with_groups(replace(federation, y=y), group, num_groups)


def _renamed(federation: Federation, group: NDArray[Any], dial: float, num_groups: int, key: Key) -> NDArray[Any]:
    """Labels with a share of the classes moved along a circle by the group's number."""
    num_classes = federation.num_classes
    moving = round(dial * num_classes)
    if dial and num_groups > num_classes:
        raise BadValue("num_groups", num_groups, f"at most the {num_classes} classes there are")
    if dial and moving < num_groups:
        least = f"0, or at least {num_groups / num_classes:.3g} for {num_groups} groups and {num_classes} classes"
        raise BadValue("dial", dial, least)
    circle = np.asarray(jax.random.permutation(key, num_classes))[:moving]
    renamed = np.tile(np.arange(num_classes), (num_groups, 1))
    for g in range(num_groups):
        renamed[g, circle] = np.roll(circle, -g)
    return renamed[np.maximum(group, 0), federation.y.astype(np.int64)].astype(federation.y.dtype)


def _added(federation: Federation, group: NDArray[Any], dial: float, num_groups: int, key: Key) -> NDArray[Any]:
    """Targets plus a linear function of the inputs that differs from group to group; group 0 keeps its own."""
    x = federation.x.reshape(len(federation.x), -1)
    if not x.shape[1]:
        raise Unsupported("concept_shift of a real target needs inputs, and these data have none")
    directions = np.array(jax.random.normal(key, (num_groups, x.shape[1])))
    directions[0] = 0.0
    mine = group >= 0
    extra = np.einsum("rd,rd->r", x - x[mine].mean(0), directions[np.maximum(group, 0)])
    spread = extra[group > 0].std() if (group > 0).any() else 1.0
    shifted = federation.y + dial * federation.y[mine].std() * extra / (spread or 1.0)
    # Whole-numbered targets do not stay whole.
    return shifted.astype(np.result_type(federation.y, np.float32))
