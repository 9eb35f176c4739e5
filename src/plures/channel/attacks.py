"""Attacks: what Byzantine clients send in place of their uploads.

A ``share`` of the clients, chosen by uid from ``seed``, is Byzantine: exactly that share of the clients of a run. (A
channel used by itself needs ``num_clients`` for that; without it every client is Byzantine with that probability.) They
know what the honest clients send. With ``collude`` all send the same; else each draws for itself, by its uid. Whole
numbers in an upload (a cluster's number) are left alone.

In a method in which clients send something to every other one, attackers lie to each receiver in another way. They then
know the honest messages to the same receiver alone, and the victim is the receiver itself where it is honest.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.points import column, combine, squared_distances
from plures.channel.gang import Gang, Scene, attack
from plures.errors import BadValue, UnknownChoice
from plures.registry import channel
from plures.types import Attack, Key, Tree

DIRECTIONS = ("lasting", "against")
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
) -> Attack:
    """Normal noise of deviation ``scale`` around ``offset`` in every coordinate."""
    if not scale >= 0:
        raise BadValue("scale", scale, "0 or more")

    def forge(scene: Scene) -> Tree:
        return jax.tree.map(lambda leaf: offset + scale * leaf, _each(_normal, scene.keys, scene.uploads))

    return attack(Gang("large_noise", share, seed, num_clients, collude), forge)


@channel(title="Attack: sign flip", tags=("attack",), paper="arXiv:2306.08393")
def sign_flip(
    *, share: float = 0.2, factor: float = 1.0, collude: bool = False, seed: int = 0, num_clients: int = 0
) -> Attack:
    """The own upload times -``factor``; colluding, that of one honest victim."""
    _positive("factor", factor)

    def forge(scene: Scene) -> Tree:
        return tree.scale(-factor, scene.victim if collude else scene.uploads)

    return attack(Gang("sign_flip", share, seed, num_clients, collude), forge)


@channel(title="Attack: a little is enough", tags=("attack",), paper="arXiv:1902.06635")
def alie(
    *, share: float = 0.2, z: float | None = None, collude: bool = True, seed: int = 0, num_clients: int = 0
) -> Attack:
    """The honest mean minus ``z`` honest deviations in every coordinate; each for itself, plus or minus.

    Without ``z`` it is the largest one at which, of n clients with b Byzantine, s = floor(n/2 + 1) - b honest ones
    still lie further out: Phi(z) = (n - b - s) / (n - b).

    Baruch, Baruch, Goldberg: A Little Is Enough, NeurIPS 2019. arXiv 1902.06635.
    """

    def forge(scene: Scene) -> Tree:
        middle = scene.means()
        length = alie_z(scene.known.sum(1), scene.allies.sum(1)) if z is None else jnp.full(len(scene.known), z)

        def one(center: Array, spread: Array, sign: Array) -> Array:
            return center + (-1.0 if collude else sign) * column(length, spread) * spread

        return jax.tree.map(one, middle, scene.deviations(middle), _each(_signs, scene.keys, scene.uploads))

    return attack(Gang("alie", share, seed, num_clients, collude), forge)


def alie_z(num_honest: Array, num_byzantine: Array) -> Array:
    """The number of deviations that still hides among the honest; 0 if there is no room for any."""
    total = num_honest + num_byzantine
    supporters = total // 2 + 1 - num_byzantine
    level = (num_honest - supporters) / jnp.maximum(num_honest, 1)
    return jnp.maximum(jax.scipy.stats.norm.ppf(jnp.clip(level, 0.5, 0.9999)), 0.0)


@channel(title="Attack: inner-product manipulation", tags=("attack",), paper="arXiv:1903.03936")
def ipm(
    *, share: float = 0.2, epsilon: float = 0.5, collude: bool = True, seed: int = 0, num_clients: int = 0
) -> Attack:
    """The honest mean times -``epsilon``; each for itself, a victim's upload times -``epsilon``.

    Xie, Koyejo, Gupta: Fall of Empires, UAI 2019. arXiv 1903.03936.
    """
    _positive("epsilon", epsilon)

    def forge(scene: Scene) -> Tree:
        return tree.scale(-epsilon, scene.means() if collude else scene.victim)

    return attack(Gang("ipm", share, seed, num_clients, collude), forge)


@channel(title="Attack: mimic", tags=("attack",), paper="arXiv:2006.09365")
def mimic(*, share: float = 0.2, collude: bool = True, seed: int = 0, num_clients: int = 0) -> Attack:
    """A copy of one honest victim's upload, which then counts too often; each for itself, of its own victim.

    The victim is drawn from the seed and stays the same for as long as it takes part. (In the paper it is the one whose
    upload stands out most along the direction in which the honest ones differ most.)

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022. arXiv 2006.09365.
    """

    def forge(scene: Scene) -> Tree:
        return scene.victim

    return attack(Gang("mimic", share, seed, num_clients, collude), forge)


@channel(title="Attack: edge of the ball", tags=("attack",))
def edge(
    *,
    share: float = 0.2,
    radius: float | None = None,
    num_near: int | None = None,
    factor: float = 0.9,
    direction: str = "lasting",
    collude: bool = True,
    seed: int = 0,
    num_clients: int = 0,
) -> Attack:
    """A point in the ball of honest clients, ``factor`` times its radius from their mean.

    With a ``radius`` the honest clients are those within it of a victim, that is, its cluster: b attackers among n of
    them shift the mean of the ball by b / (n + b) * factor * radius. With ``num_near`` they are so many, those nearest
    to the victim, itself among them; without either they are all honest clients. The radius is then the distance of
    the farthest of them from their mean. ``direction`` is one side for the whole run ("lasting"), or away from where
    the mean points ("against").
    """
    if radius is not None:
        _positive("radius", radius)
    if num_near is not None:
        _positive("num_near", num_near)
    if radius is not None and num_near is not None:
        raise BadValue("num_near", num_near, "left out where a radius is given")
    _positive("factor", factor)
    if direction not in DIRECTIONS:
        raise UnknownChoice("direction", direction, DIRECTIONS)

    def forge(scene: Scene) -> Tree:
        centers, length = _balls(scene, radius, num_near)
        if direction == "against":
            sides = jax.vmap(lambda one: _unit(tree.scale(-1.0, one)))(centers)
        else:
            sides = _each(_direction, scene.lasting, scene.uploads)
        return jax.tree.map(lambda a, b: a + factor * column(length, b) * b, centers, sides)

    return attack(Gang("edge", share, seed, num_clients, collude), forge)


@channel(title="Attack: not a number", name="nan", tags=("attack",))
def not_a_number(*, share: float = 0.2, value: str = "nan", seed: int = 0, num_clients: int = 0) -> Attack:
    """Uploads of nothing but "nan", "inf" or "-inf"."""
    if value not in VALUES:
        raise UnknownChoice("value", value, VALUES)

    def forge(scene: Scene) -> Tree:
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, VALUES[value]), scene.uploads)

    return attack(Gang("nan", share, seed, num_clients, True), forge)


def _balls(scene: Scene, radius: float | None, num_near: int | None) -> tuple[Tree, Array]:
    """The mean of the honest uploads that each attacker aims at, and the radius it aims within."""
    if radius is None and num_near is None:
        centers = scene.means()
        far = jnp.sqrt(jax.vmap(tree.squared_norm)(tree.subtract(scene.clean, centers)))
        return centers, jnp.where(scene.known, far, 0.0).max(1)
    pairs = squared_distances(scene.clean, scene.known.any(0))
    apart = jnp.where(scene.known, jnp.sqrt(pairs)[scene.victims], jnp.inf)
    if radius is not None:
        near = scene.known & (apart <= radius)
    else:
        near = scene.known & (apart <= jnp.sort(apart, axis=1)[:, [min(num_near or 1, len(pairs)) - 1]])
    share = near / jnp.maximum(near.sum(1, keepdims=True), 1)
    centers = combine(share, scene.clean)
    if radius is not None:
        return centers, jnp.full(len(near), radius)
    # |z_j - center|^2 from the distances of pairs
    mixed = jnp.matmul(share, pairs, precision=jax.lax.Precision.HIGHEST)
    squares = mixed - 0.5 * (mixed * share).sum(1, keepdims=True)
    return centers, jnp.sqrt(jnp.where(near, jnp.maximum(squares, 0.0), 0.0).max(1))


def _each(draw: Callable[[Key, Tree], Tree], keys: Array, uploads: Tree) -> Tree:
    """What is drawn with every client's key, in the shape of one upload."""
    one = tree.at(uploads, 0)
    return jax.vmap(lambda key: draw(key, one))(keys)


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
    return _unit(floats)


def _unit(one: Tree) -> Tree:
    """The same direction, of length 1."""
    return tree.scale(1.0 / jnp.maximum(jnp.sqrt(tree.squared_norm(one)), 1e-30), one)


def _positive(name: str, given: float) -> None:
    if not given > 0:
        raise BadValue(name, given, "a positive number")
