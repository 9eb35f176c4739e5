"""Attacks: what Byzantine clients send in place of their uploads.

A ``share`` of the clients, chosen by uid from ``seed`` (``plures.aggregate.byzantine_uids`` says which), is
Byzantine. They know what the honest clients send. With ``collude`` all send the same; else each draws for itself,
by its uid. With ``num_clients``, the number of clients of the whole federation, exactly that share of them is
Byzantine; without it every client is one with that probability. Whole numbers in an upload (a cluster's number) are
left alone.

An attack takes the uid of a ``receiver`` as a fifth argument, for methods in which every client is sent something
by every other one: what is drawn, and who the victim is, then differ from receiver to receiver.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.byzantine import check_share, is_byzantine
from plures.aggregate.points import cleaned, column, combine, distances_to, squared_distances, usable
from plures.errors import BadValue, UnknownChoice
from plures.keys import Purpose, derive, root
from plures.registry import channel
from plures.types import Channel, Key, Tree

VALUES = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@channel(title="Attack: large noise", tags=("attack",), paper="arXiv:2306.08393")
def large_noise(
    *,
    share: float = 0.2,
    scale: float = 200.0,
    offset: float = 1e6,
    collude: bool = False,
    seed: int = 0,
    num_clients: int = 0,
) -> Channel:
    """Normal noise of deviation ``scale`` around ``offset`` in every coordinate."""
    if not scale >= 0:
        raise BadValue("scale", scale, "0 or more")

    def forge(scene: Scene) -> Tree:
        noise = jax.vmap(lambda key: _normal(key, tree.at(scene.uploads, 0)))(scene.keys)
        return jax.tree.map(lambda leaf: offset + scale * leaf, noise)

    return attack(Gang(share, seed, num_clients, collude), forge)


@channel(title="Attack: sign flip", tags=("attack",), paper="arXiv:2306.08393")
def sign_flip(
    *, share: float = 0.2, factor: float = 1.0, collude: bool = False, seed: int = 0, num_clients: int = 0
) -> Channel:
    """The own upload times -``factor``; colluding, that of one honest victim."""
    _positive("factor", factor)

    def forge(scene: Scene) -> Tree:
        turned = tree.at(scene.uploads, scene.victims) if collude else scene.uploads
        return tree.scale(-factor, turned)

    return attack(Gang(share, seed, num_clients, collude), forge)


@channel(title="Attack: a little is enough", tags=("attack",), paper="arXiv:1902.06635")
def alie(
    *, share: float = 0.2, z: float | None = None, collude: bool = True, seed: int = 0, num_clients: int = 0
) -> Channel:
    """The honest mean minus ``z`` honest deviations in every coordinate; each for itself, plus or minus.

    Without ``z`` it is the largest one at which, of n clients with b Byzantine, s = floor(n/2 + 1) - b honest ones
    still lie further out: Phi(z) = (n - b - s) / (n - b).

    Baruch, Baruch, Goldberg: A Little Is Enough, NeurIPS 2019. arXiv 1902.06635.
    """

    def forge(scene: Scene) -> Tree:
        middle, deviation = _moments(scene)
        length = alie_z(scene.honest.sum(), scene.attackers.sum()) if z is None else jnp.asarray(z)
        signs = jax.vmap(lambda key: _signs(key, middle))(scene.keys)

        def one(center: Array, spread: Array, sign: Array) -> Array:
            return center + (-1.0 if collude else sign) * length * spread

        return jax.tree.map(lambda a, b, c: one(a[None], b[None], c), middle, deviation, signs)

    return attack(Gang(share, seed, num_clients, collude), forge)


def alie_z(num_honest: Array, num_byzantine: Array) -> Array:
    """The number of deviations that still hides among the honest; 0 if there is no room for any."""
    total = num_honest + num_byzantine
    supporters = total // 2 + 1 - num_byzantine
    level = (num_honest - supporters) / jnp.maximum(num_honest, 1)
    return jnp.maximum(jax.scipy.stats.norm.ppf(jnp.clip(level, 0.5, 0.9999)), 0.0)


@channel(title="Attack: inner-product manipulation", tags=("attack",), paper="arXiv:1903.03936")
def ipm(
    *, share: float = 0.2, epsilon: float = 0.5, collude: bool = True, seed: int = 0, num_clients: int = 0
) -> Channel:
    """The honest mean times -``epsilon``; each for itself, a victim's upload times -``epsilon``.

    Xie, Koyejo, Gupta: Fall of Empires, UAI 2019. arXiv 1903.03936.
    """
    _positive("epsilon", epsilon)

    def forge(scene: Scene) -> Tree:
        if not collude:
            return tree.scale(-epsilon, tree.at(scene.uploads, scene.victims))
        middle, _ = _moments(scene)
        return jax.tree.map(lambda leaf: -epsilon * leaf[None], middle)

    return attack(Gang(share, seed, num_clients, collude), forge)


@channel(title="Attack: mimic", tags=("attack",), paper="arXiv:2006.09365")
def mimic(*, share: float = 0.2, collude: bool = True, seed: int = 0, num_clients: int = 0) -> Channel:
    """A copy of one honest victim's upload, which then counts too often; each for itself, of its own victim.

    The victim is drawn from the seed and stays the same for as long as it takes part.
    """

    def forge(scene: Scene) -> Tree:
        return tree.at(scene.uploads, scene.victims)

    return attack(Gang(share, seed, num_clients, collude), forge)


@channel(title="Attack: edge of the ball", tags=("attack",))
def edge(
    *,
    share: float = 0.2,
    radius: float | None = None,
    factor: float = 0.9,
    collude: bool = True,
    seed: int = 0,
    num_clients: int = 0,
) -> Channel:
    """A point in the ball of honest clients, ``factor`` times ``radius`` from their mean, always on the same side.

    With a radius the honest clients are those within it of a victim, that is, its cluster: b attackers among n of
    them shift the mean of the ball by b / (n + b) * factor * radius. Without one they are all honest clients, and the
    radius is the distance of the farthest from their mean.
    """
    if radius is not None:
        _positive("radius", radius)
    _positive("factor", factor)

    def forge(scene: Scene) -> Tree:
        centers, length = _balls(scene, radius)
        side = jax.vmap(lambda key: _direction(key, tree.at(scene.uploads, 0)))(scene.lasting)
        return jax.tree.map(lambda a, b: a + factor * length * b, centers, side)

    return attack(Gang(share, seed, num_clients, collude), forge)


@channel(title="Attack: not a number", name="nan", tags=("attack",))
def not_a_number(*, share: float = 0.2, value: str = "nan", seed: int = 0, num_clients: int = 0) -> Channel:
    """Uploads of nothing but "nan", "inf" or "-inf"."""
    if value not in VALUES:
        raise UnknownChoice("value", value, VALUES)

    def forge(scene: Scene) -> Tree:
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, VALUES[value]), scene.uploads)

    return attack(Gang(share, seed, num_clients, True), forge)


@dataclass(frozen=True)
class Gang:
    """Who is Byzantine, and whether they act as one."""

    share: float
    seed: int
    num_clients: int
    collude: bool

    def __post_init__(self) -> None:
        check_share(self.share)
        if self.num_clients < 0:
            raise BadValue("num_clients", self.num_clients, "0 (unknown) or more")

    def members(self, uids: Array) -> Array:
        """Whether each of these clients is Byzantine."""
        return is_byzantine(uids, share=self.share, seed=self.seed, num_clients=self.num_clients)

    def keys(self, key: Key, uids: Array) -> Array:
        """A key for every client: the same for all that collude."""
        own = jnp.zeros_like(uids) if self.collude else uids + 1
        return jax.vmap(lambda number: jax.random.fold_in(key, number))(own)


class Scene(NamedTuple):
    """All that attackers see, and what they draw with; everything has an entry per client of the cohort."""

    uploads: Tree  # zeros in place of whole numbers
    honest: Array  # whether it is honest and its upload counts
    attackers: Array  # whether it is Byzantine and takes part
    victims: Array  # the place of the honest client it picks
    keys: Array  # new in every round
    lasting: Array  # the same in every round


Forge = Callable[[Scene], Tree]


def attack(gang: Gang, forge: Forge) -> Channel:
    """The channel on which the gang's uploads are what ``forge`` makes, on all float leaves."""

    def apply(
        key: Key, uploads: Tree, weights: Array, uids: Array, receiver: Array | None = None
    ) -> tuple[Tree, Array]:
        bad = gang.members(uids)
        lasting = jax.random.fold_in(derive(root(gang.seed), Purpose.CHANNEL), zlib.crc32(b"attack"))
        if receiver is not None:
            key, lasting = (jax.random.fold_in(one, receiver) for one in (key, lasting))
        # Whole numbers are not attacked, and must not count in distances either.
        seen = jax.tree.map(lambda leaf: leaf if tree.is_float(leaf) else jnp.zeros_like(leaf), uploads)
        honest = usable(seen, weights) & ~bad
        kept = gang.keys(lasting, uids)
        victims = _victims(kept, honest, uids, receiver)
        forged = forge(Scene(seen, honest, bad & (weights > 0), victims, gang.keys(key, uids), kept))
        return _replaced(bad, forged, uploads), weights

    return apply


def _replaced(bad: Array, forged: Tree, uploads: Tree) -> Tree:
    def one(new: Array, old: Array) -> Array:
        return jnp.where(column(bad, old), new.astype(old.dtype), old) if tree.is_float(old) else old

    return jax.tree.map(one, forged, uploads)


def _victims(keys: Array, honest: Array, uids: Array, receiver: Array | None) -> Array:
    """The place of the honest client that each picks: the receiver if it is one, else by lot over uids."""

    def pick(key: Key) -> Array:
        luck = jax.vmap(lambda uid: jax.random.uniform(jax.random.fold_in(key, uid)))(uids)
        if receiver is not None:
            luck = jnp.where(uids == receiver, -1.0, luck)
        return jnp.where(honest, luck, 2.0).argmin()

    return jax.vmap(pick)(keys)


def _moments(scene: Scene) -> tuple[Tree, Tree]:
    """The mean and the deviation of honest uploads in every coordinate."""
    clean, share = cleaned(scene.uploads, scene.honest), scene.honest / jnp.maximum(scene.honest.sum(), 1)
    middle = combine(share, clean)
    variance = jax.tree.map(lambda leaf, center: combine(share, jnp.square(leaf - center[None])), clean, middle)
    return middle, jax.tree.map(jnp.sqrt, variance)


def _balls(scene: Scene, radius: float | None) -> tuple[Tree, Array]:
    """The mean of the honest uploads that each attacker aims at, and the radius it aims within."""
    clean = cleaned(scene.uploads, scene.honest)
    if radius is None:
        near = jnp.broadcast_to(scene.honest, (len(scene.honest), len(scene.honest)))
    else:
        apart = jnp.sqrt(squared_distances(clean, scene.honest))
        near = scene.honest & (apart[scene.victims] <= radius)
    centers = combine(near / jnp.maximum(near.sum(1, keepdims=True), 1), clean)
    if radius is not None:
        return centers, jnp.asarray(radius)
    far = distances_to(tree.at(centers, 0), clean)
    return centers, jnp.where(scene.honest, far, 0.0).max()


def _normal(key: Key, one: Tree) -> Tree:
    """Standard normal numbers in the shape of one upload."""
    leaves, shape = jax.tree.flatten(one)
    drawn = [jax.random.normal(jax.random.fold_in(key, i), leaf.shape) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(shape, drawn)


def _signs(key: Key, one: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jnp.where(leaf < 0, -1.0, 1.0), _normal(key, one))


def _direction(key: Key, one: Tree) -> Tree:
    """A random direction of length 1 over the float leaves."""
    drawn = _normal(key, one)
    floats = jax.tree.map(lambda leaf, given: leaf if tree.is_float(given) else jnp.zeros_like(leaf), drawn, one)
    return tree.scale(1.0 / jnp.maximum(jnp.sqrt(tree.squared_norm(floats)), 1e-30), floats)


def _positive(name: str, given: float) -> None:
    if not given > 0:
        raise BadValue(name, given, "a positive number")
