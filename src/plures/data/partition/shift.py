"""Feature shift: the same classes look different. Concept shift: the same input means something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Federation
from plures.data.partition.groups import draw_groups, of_rows, with_groups
from plures.data.partition.images import KINDS, Chance, as_images, rotate
from plures.data.partition.redistribution import key_of, parts_of
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.types import Key


@registry.partitioner(title="Feature shift")
def feature_shift(
    federation: Federation, *, kinds: tuple[str, ...] = tuple(KINDS), strength: float = 1.0, seed: int = 0
) -> Federation:
    """Every client's images changed in one of some ways: inverted, blurred, noisy, turned and so on.

    The kind is the client's domain, and its planted group.

    Args:
        kinds: Ways to change images, such as none+invert+blur; clients get them evenly and at random. Known: none,
            invert, blur, contrast, background, noise, resolution, rotation.
        strength: How strong the changes are: 0 leaves images as they are; at 1 they are inverted in full, turned by
            30 degrees, with noise of deviation 0.3 and so on.
        seed: Seed of all that is drawn here; steps of other names draw independently of it.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownChoice("kind of feature shift", kind, KINDS)
    most = int(np.bincount(parts_of(federation)[0]).min())
    if not 1 <= len(kinds) <= most:
        wanted = f"a list of 1 to {most} kinds, so that every group and domain has all of them"
        raise BadValue("kinds", kinds, wanted)
    if not 0 <= strength < float("inf"):
        raise BadValue("strength", strength, "0 or more")
    images = as_images(federation, "feature_shift")
    key_draw, key_noise = jax.random.split(key_of(seed, "feature_shift"))
    drawn = draw_groups(federation, len(kinds), key_draw)
    changed, each, chance = images.copy(), of_rows(federation, drawn), chance_of(federation, key_noise)
    for number, kind in enumerate(kinds):
        mine = np.flatnonzero(each == number)
        own = Chance(chance.key, chance.uid[mine], chance.place[mine])
        changed[mine] = np.clip(KINDS[kind](images[mine], strength, own), 0.0, 1.0)
    shifted = replace(federation, x=changed.reshape(federation.x.shape))
    shifted = with_groups(shifted, drawn, len(kinds))
    domain = drawn if federation.domain is None else federation.domain * len(kinds) + drawn
    return replace(shifted, domain=domain, num_domains=max(federation.num_domains, 1) * len(kinds))


@registry.partitioner(title="Rotation by degrees")
def rotation(federation: Federation, *, degrees: float = 30.0, seed: int = 0) -> Federation:
    """Every client's images turned by an angle of its own, drawn evenly between -degrees and +degrees.

    Args:
        degrees: Largest angle, from 0 (no rotation) to 360.
        seed: Seed of all that is drawn here; steps of other names draw independently of it.
    """
    if not 0 <= degrees <= 360:
        raise BadValue("degrees", degrees, "between 0 and 360")
    images = as_images(federation, "rotation")
    turned, key = images.copy(), key_of(seed, "rotation")
    for uid, start, count in zip(federation.uid, federation.start, federation.count, strict=True):
        angle = jax.random.uniform(jax.random.fold_in(key, int(uid)), (), minval=-degrees, maxval=degrees)
        own = slice(start[0], start[0] + count.sum())
        turned[own] = rotate(images[own], float(angle))
    return replace(federation, x=turned.reshape(federation.x.shape))


def chance_of(federation: Federation, key: jax.Array) -> Chance:
    """Randomness for every row: by its client's uid and its place among the client's rows."""
    uid = of_rows(federation, federation.uid)
    first = of_rows(federation, federation.start[:, 0])
    return Chance(key, uid, np.arange(len(uid)) - first)


@registry.partitioner(title="Concept shift")
def concept_shift(federation: Federation, *, dial: float = 0.5, num_groups: int = 2, seed: int = 0) -> Federation:
    """A dial from 0 (all groups agree) to 1 (they disagree about every class).

    Classification: a share ``dial`` of the classes changes places, in group g by g steps of a circle. Regression: group
    g > 0 adds a linear function of the inputs of its own, ``dial`` times as large as the target's deviation.

    Args:
        dial: How much groups disagree: 0 is not at all; at 1 they disagree about every class, or the added function
            is as large as the target's deviation.
        num_groups: How many groups are planted; clients are drawn into them evenly, inside each group and domain
            there is. 1 changes nothing.
        seed: Seed of all that is drawn here; steps of other names draw independently of it.
    """
    if not 0 <= dial <= 1:
        raise BadValue("dial", dial, "a number in [0, 1]")
    key_groups, key_what = jax.random.split(key_of(seed, "concept_shift"))
    group = draw_groups(federation, num_groups, key_groups)
    if federation.task == "classification":
        y = _rename_classes(federation, of_rows(federation, group), dial, num_groups, key_what)
    elif federation.task == "regression" and federation.y.ndim == 1:
        y = _add_function(federation, of_rows(federation, group), dial, num_groups, key_what)
    else:
        several = " of several targets" if federation.task == "regression" else ""
        wanted = "concept_shift is for classification and regression of one target"
        raise Unsupported(f"{wanted}, but these data are for {federation.task}{several}")
    return with_groups(replace(federation, y=y), group, num_groups)


def _rename_classes(
    federation: Federation, group: NDArray[Any], dial: float, num_groups: int, key: Key
) -> NDArray[Any]:
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


def _add_function(
    federation: Federation, group: NDArray[Any], dial: float, num_groups: int, key: Key
) -> NDArray[Any]:
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
