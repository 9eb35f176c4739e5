"""Feature shift: the same classes look different from client to client."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from plures import registry
from plures.data.federation import Federation
from plures.data.partition.deal import key_of, parts_of
from plures.data.partition.groups import drawn_groups, of_rows, with_groups
from plures.data.partition.images import KINDS, Chance, as_images, rotated
from plures.errors import BadValue, UnknownChoice


@registry.partitioner(title="Feature shift")
def feature_shift(
    federation: Federation, *, kinds: tuple[str, ...] = tuple(KINDS), strength: float = 1.0, seed: int = 0
) -> Federation:
    """Every client's images changed in one of some ways: inverted, blurred, noisy, turned and so on.

    Clients are given the ``kinds`` evenly and at random. The kind is the client's domain, and its planted group.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownChoice("kind of feature shift", kind, KINDS)
    most = int(np.bincount(parts_of(federation)[0]).min())
    if not 1 <= len(kinds) <= most:
        raise BadValue(
            "kinds", kinds, f"a list of 1 to {most} kinds, so that every group and domain has all of them"
        )
    if not 0 <= strength < float("inf"):
        raise BadValue("strength", strength, "0 or more")
    images = as_images(federation, "feature_shift")
    key_draw, key_noise = jax.random.split(key_of(seed, "feature_shift"))
    drawn = drawn_groups(federation, len(kinds), key_draw)
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
    """Every client's images turned by an angle of its own, drawn evenly between -degrees and +degrees."""
    if not 0 <= degrees <= 360:
        raise BadValue("degrees", degrees, "between 0 and 360")
    images = as_images(federation, "rotation")
    turned, key = images.copy(), key_of(seed, "rotation")
    for uid, start, count in zip(federation.uid, federation.start, federation.count, strict=True):
        angle = jax.random.uniform(jax.random.fold_in(key, int(uid)), (), minval=-degrees, maxval=degrees)
        own = slice(start[0], start[0] + count.sum())
        turned[own] = rotated(images[own], float(angle))
    return replace(federation, x=turned.reshape(federation.x.shape))


def chance_of(federation: Federation, key: jax.Array) -> Chance:
    """Randomness for every row: by its client's uid and its place among the client's rows."""
    uid = of_rows(federation, federation.uid)
    first = of_rows(federation, federation.start[:, 0])
    return Chance(key, uid, np.arange(len(uid)) - first)
