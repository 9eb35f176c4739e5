"""What attacks share: who is Byzantine, what they know of the others, and how their lies replace their uploads."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.byzantine import is_byzantine
from plures.aggregate.points import cleaned, column, combine, usable
from plures.errors import BadValue
from plures.keys import Purpose, derive, root
from plures.types import Attack, Key, Tree


@dataclass(frozen=True)
class Gang:
    """Who is Byzantine, and whether they act as one."""

    name: str
    share: float
    seed: int
    num_clients: int = 0
    collude: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise BadValue("share", self.share, "a number above 0 and below 1")
        if self.num_clients < 0:
            raise BadValue("num_clients", self.num_clients, "0 (unknown) or more")
        root(self.seed)

    def members(self, uids: Array) -> Array:
        """Whether each of these clients is Byzantine."""
        return is_byzantine(uids, share=self.share, seed=self.seed, num_clients=self.num_clients)

    def among(self, num_clients: int) -> Gang:
        """The same gang in a federation of so many clients; another number than it was made for is refused."""
        if self.num_clients not in (0, num_clients):
            raise BadValue("num_clients", self.num_clients, f"{num_clients}, the number of training clients")
        return replace(self, num_clients=num_clients)

    def keys(self, key: Key, uids: Array, receivers: Array | None) -> Array:
        """A key for every client's message: the same for those to one receiver from all that collude."""
        own = jnp.zeros_like(uids) if self.collude else uids + 1
        to = jnp.zeros_like(uids) if receivers is None else receivers + 1
        return jax.vmap(lambda a, b: jax.random.fold_in(jax.random.fold_in(key, a), b))(own, to)


class Scene(NamedTuple):
    """All that attackers see, and what they draw with; an entry per client of the cohort.

    ``known`` and ``allies`` are (clients, clients), or (1, clients) where all messages are for the server: what holds
    for the one who sends is then the same for all.
    """

    uploads: Tree  # zeros in place of whole numbers
    known: Array  # whether another client is honest, its upload counts, and it is for the same receiver
    allies: Array  # whether another client is Byzantine, takes part, and sends to the same receiver
    victims: Array  # the place of the honest client it picks
    keys: Array  # new in every round
    lasting: Array  # the same in every round

    @property
    def shares(self) -> Array:
        """``known`` as coefficients of a mean; zeros where nobody is known."""
        return self.known / jnp.maximum(self.known.sum(1, keepdims=True), 1)

    @property
    def clean(self) -> Tree:
        """The uploads, zeros in place of those that nobody knows."""
        return cleaned(self.uploads, self.known.any(0))

    @property
    def victim(self) -> Tree:
        """The upload of the client that each picks."""
        return tree.at(self.uploads, self.victims)

    def means(self) -> Tree:
        """The mean of the known uploads in every coordinate; axis 0 as that of ``known``."""
        return combine(self.shares, self.clean)

    def deviations(self, means: Tree) -> Tree:
        """The deviation of the known uploads in every coordinate.

        Those who know each other know the same ones, so every upload is taken from the mean beside it.
        """
        away = jax.tree.map(lambda leaf, middle: jnp.square(leaf - middle), self.clean, means)
        return jax.tree.map(jnp.sqrt, combine(self.shares, away))


Forge = Callable[[Scene], Tree]


def attack(gang: Gang, forge: Forge) -> Attack:
    """The attack in which the gang's uploads are what ``forge`` makes, on all float leaves.

    A forged leaf has an entry per client on axis 0, or one for all.
    """

    def forged(key: Key, uploads: Tree, weights: Array, uids: Array, receivers: Array | None = None) -> Tree:
        bad = gang.members(uids)
        scene = _scene(gang, bad, key, uploads, weights, uids, receivers)
        return _replaced(bad, forge(scene), uploads)

    @cache  # one object per number: an attack is a static argument of what is compiled
    def bound(num_clients: int) -> Attack:
        return attack(gang.among(num_clients), forge)

    return Attack(name=gang.name, share=gang.share, members=gang.members, forge=forged, bound=bound)


def _scene(
    gang: Gang, bad: Array, key: Key, uploads: Tree, weights: Array, uids: Array, receivers: Array | None
) -> Scene:
    # Whole numbers are not attacked, and must not count in distances either.
    seen = jax.tree.map(lambda leaf: leaf if tree.is_float(leaf) else jnp.zeros_like(leaf), uploads)
    same = jnp.ones((1, len(uids)), bool) if receivers is None else receivers[:, None] == receivers[None]
    known = same & usable(seen, weights) & ~bad
    lasting = jax.random.fold_in(derive(root(gang.seed), Purpose.CHANNEL), zlib.crc32(b"attack"))
    kept = gang.keys(lasting, uids, receivers)
    victims = _victims(kept, known, uids, receivers)
    return Scene(seen, known, same & bad & (weights > 0), victims, gang.keys(key, uids, receivers), kept)


def _victims(keys: Array, known: Array, uids: Array, receivers: Array | None) -> Array:
    """The place of the known client that each picks: the receiver if it is one, else by lot over uids.

    One who knows nobody picks itself.
    """
    luck = jax.vmap(lambda key: jax.vmap(lambda uid: jax.random.uniform(jax.random.fold_in(key, uid)))(uids))(keys)
    if receivers is not None:
        luck = jnp.where(uids[None] == receivers[:, None], -1.0, luck)
    picked = jnp.where(known, luck, 2.0).argmin(1)
    return jnp.where(known.any(1), picked, jnp.arange(len(uids)))


def _replaced(bad: Array, forged: Tree, uploads: Tree) -> Tree:
    def one(new: Array, old: Array) -> Array:
        return jnp.where(column(bad, old), new.astype(old.dtype), old) if tree.is_float(old) else old

    return jax.tree.map(one, forged, uploads)
