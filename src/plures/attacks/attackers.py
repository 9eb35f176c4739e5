"""What attacks share: who the attackers are, what they know of the others, and how their uploads are replaced.

Attackers are chosen by uid from a seed, the same whatever the order of clients. Honest clients are scored alone, so the
choice is known outside a run too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from plures import tree
from plures.aggregate.points import cleaned, combine, usable
from plures.errors import BadValue, require
from plures.keys import Purpose, derive, root
from plures.method import Attack
from plures.registry import OptionGroup
from plures.types import Key, Tree


@dataclass(frozen=True)
class Attackers(OptionGroup):
    """Who attacks.

    Args:
        share: Share of the clients that are attackers, above 0 and below 1; of the clients of a run, exactly so many.
        seed: Seed by which they are chosen.
        num_clients: Clients of the federation; 0 is taken from the run. A channel used by itself needs it: without it
            every client is an attacker with the probability ``share``.
    """

    share: float = 0.2
    seed: int = 0
    num_clients: int = 0

    def __post_init__(self) -> None:
        require(0 < self.share < 1, "share", self.share, "a number above 0 and below 1")
        require(self.num_clients >= 0, "num_clients", self.num_clients, "0 (unknown) or more")
        root(self.seed)

    def members(self, uids: Array) -> Array:
        """Whether each of these clients is an attacker."""
        return is_attacker(uids, share=self.share, seed=self.seed, num_clients=self.num_clients)

    def among(self, num_clients: int) -> Attackers:
        """The same of a federation of so many clients; another number than they were made for is refused."""
        if self.num_clients not in (0, num_clients):
            raise BadValue("num_clients", self.num_clients, f"{num_clients}, the number of training clients")
        return replace(self, num_clients=num_clients)


def attacker_uids(num_clients: int, *, share: float, seed: int = 0) -> NDArray[np.int64]:
    """The uids of the attackers among 0..num_clients-1, in ascending order: round(share n) of them.

    >>> attacker_uids(10, share=0.2, seed=1).shape
    (2,)
    """
    return np.flatnonzero(is_attacker(jnp.arange(num_clients), share=share, seed=seed, num_clients=num_clients))


def is_attacker(uids: Array, *, share: float, seed: int = 0, num_clients: int = 0) -> Array:
    """Whether each of these clients is an attacker.

    With ``num_clients`` (of the whole federation) exactly those of ``attacker_uids``; without it every client by
    itself, with the probability ``share``.
    """
    require(0 <= share < 1, "share", share, "a number in [0, 1)")
    if not num_clients:
        return _luck(uids, seed) < share
    with jax.ensure_compile_time_eval():  # a constant, also where a round is compiled
        order = jnp.argsort(_luck(jnp.arange(num_clients), seed), stable=True)
        # The last entry is for everybody else.
        table = jnp.zeros(num_clients + 1, bool).at[order[: int(share * num_clients + 0.5)]].set(True)
    return table[jnp.minimum(uids, num_clients)]


def _luck(uids: Array, seed: int) -> Array:
    key = jax.random.fold_in(derive(root(seed), Purpose.CHANNEL), zlib.crc32(b"byzantine"))
    return jax.vmap(lambda uid: jax.random.uniform(jax.random.fold_in(key, uid)))(uids)


class Knowledge(NamedTuple):
    """All that attackers see, and what they draw with; an entry per client of the cohort.

    ``known`` and ``allies`` are (clients, clients), or (1, clients) where all messages are for the server: what holds
    for the one who sends is then the same for all.
    """

    uploads: Tree  # zeros in place of whole numbers
    known: Array  # whether another client is honest, its upload counts, and it is for the same receiver
    allies: Array  # whether another client is an attacker, takes part, and sends to the same receiver
    victims: Array  # the index of the honest client it picks
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


Forge = Callable[[Knowledge], Tree]


def attack(name: str, attackers: Attackers, forge: Forge, *, collude: bool = True) -> Attack:
    """The attack in which the attackers' uploads are what ``forge`` makes, on all float leaves.

    A forged leaf has an entry per client on axis 0, or one for all. Those who ``collude`` draw the same.
    """

    def replace_uploads(
        key: Key, uploads: Tree, weights: Array, uids: Array, receivers: Array | None = None
    ) -> Tree:
        # Whole numbers are not attacked, and must not count in distances either.
        seen = jax.tree.map(lambda leaf: leaf if tree.is_float(leaf) else jnp.zeros_like(leaf), uploads)
        bad = attackers.members(uids)
        same = jnp.ones((1, len(uids)), bool) if receivers is None else receivers[:, None] == receivers[None]
        honest = same & usable(seen, weights) & ~bad
        fixed = jax.random.fold_in(derive(root(attackers.seed), Purpose.CHANNEL), zlib.crc32(b"attack"))
        lasting = _keys(fixed, collude, uids, receivers)
        victims = _victims(lasting, honest, uids, receivers)
        allies = same & bad & (weights > 0)
        known = Knowledge(seen, honest, allies, victims, _keys(key, collude, uids, receivers), lasting)
        return jax.tree.map(
            lambda new, old: (
                jnp.where(tree.along(bad, old), new.astype(old.dtype), old) if tree.is_float(old) else old
            ),
            forge(known),
            uploads,
        )

    @cache  # one object per number: an attack is a static argument of what is compiled
    def bound(num_clients: int) -> Attack:
        return attack(name, attackers.among(num_clients), forge, collude=collude)

    return Attack(name=name, share=attackers.share, members=attackers.members, forge=replace_uploads, bound=bound)


def _keys(key: Key, collude: bool, uids: Array, receivers: Array | None) -> Array:
    """A key for every client's message: the same for those to one receiver from all that collude."""
    own = jnp.zeros_like(uids) if collude else uids + 1
    to = jnp.zeros_like(uids) if receivers is None else receivers + 1
    return jax.vmap(lambda a, b: jax.random.fold_in(jax.random.fold_in(key, a), b))(own, to)


def _victims(keys: Array, known: Array, uids: Array, receivers: Array | None) -> Array:
    """The index of the known client that each picks: the receiver if it is one, else by lot over uids.

    One who knows nobody picks itself.
    """
    luck = jax.vmap(lambda key: jax.vmap(lambda uid: jax.random.uniform(jax.random.fold_in(key, uid)))(uids))(keys)
    if receivers is not None:
        luck = jnp.where(uids[None] == receivers[:, None], -1.0, luck)
    picked = jnp.where(known, luck, 2.0).argmin(1)
    return jnp.where(known.any(1), picked, jnp.arange(len(uids)))
