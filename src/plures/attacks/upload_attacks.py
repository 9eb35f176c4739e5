"""Attacks on uploads: what attackers send in place of theirs.

They know what the honest clients send. With ``collude`` all send the same; else each draws for itself, by its uid. Whole
numbers in an upload (a cluster's number) are left alone.

In a method in which clients send something to every other one, attackers tell each receiver another thing. They then
know the honest messages to the same receiver alone, and the victim is the receiver itself where it is honest.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.points import combine, squared_distances
from plures.attacks.attackers import Attackers, Knowledge, attack
from plures.errors import require, require_choice
from plures.method import Attack
from plures.registry import channel
from plures.types import Key, Tree

DIRECTIONS = ("lasting", "against")
VALUES = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@channel(title="Attack: large noise", tags=("attack",), paper="arXiv:2306.08393")
def large_noise(
    *, attackers: Attackers = Attackers(), scale: float = 200.0, offset: float = 1e6, collude: bool = False
) -> Attack:
    """Normal noise of deviation ``scale`` around ``offset`` in every coordinate.

    Args:
        attackers: Who attacks.
        scale: Standard deviation of the noise, in the unit of uploads; 0 sends ``offset`` alone.
        offset: Its mean, in the unit of uploads.
        collude: Whether all attackers send the same noise; else each its own.
    """
    require(scale >= 0, "scale", scale, "0 or more")

    def forge(known: Knowledge) -> Tree:
        return jax.tree.map(lambda leaf: offset + scale * leaf, _each(_normal, known.keys, known.uploads))

    return attack("large_noise", attackers, forge, collude=collude)


@channel(title="Attack: sign flip", tags=("attack",), paper="arXiv:2306.08393")
def sign_flip(*, attackers: Attackers = Attackers(), factor: float = 1.0, collude: bool = False) -> Attack:
    """The own upload times -``factor``; colluding, that of one honest victim.

    Args:
        attackers: Who attacks.
        factor: How many times as long the upload becomes; 1 only turns it around.
        collude: Whether all attackers send the upload of one honest victim, turned around; else each its own.
    """
    _positive("factor", factor)

    def forge(known: Knowledge) -> Tree:
        return tree.scale(-factor, known.victim if collude else known.uploads)

    return attack("sign_flip", attackers, forge, collude=collude)


@channel(title="Attack: a little is enough", tags=("attack",), paper="arXiv:1902.06635")
def alie(*, attackers: Attackers = Attackers(), z: float | None = None, collude: bool = True) -> Attack:
    """The honest mean minus ``z`` honest deviations in every coordinate; each for itself, plus or minus.

    Without ``z`` it is the largest one at which, of n clients with b attackers, s = floor(n/2 + 1) - b honest ones
    still lie further out: Phi(z) = (n - b - s) / (n - b).

    Baruch, Baruch, Goldberg: A Little Is Enough, NeurIPS 2019. arXiv 1902.06635.

    Args:
        attackers: Who attacks.
        z: Distance from the honest mean in honest standard deviations; None is the largest that still hides.
        collude: Whether all attackers go to the same side; else each to a side of its own in every coordinate.
    """

    def forge(known: Knowledge) -> Tree:
        middle = known.means()
        length = alie_z(known.known.sum(1), known.allies.sum(1)) if z is None else jnp.full(len(known.known), z)

        def one(center: Array, spread: Array, sign: Array) -> Array:
            return center + (-1.0 if collude else sign) * tree.along(length, spread) * spread

        return jax.tree.map(one, middle, known.deviations(middle), _each(_signs, known.keys, known.uploads))

    return attack("alie", attackers, forge, collude=collude)


def alie_z(num_honest: Array, num_attackers: Array) -> Array:
    """The number of deviations that still hides among the honest; 0 if there is no room for any."""
    total = num_honest + num_attackers
    supporters = total // 2 + 1 - num_attackers
    level = (num_honest - supporters) / jnp.maximum(num_honest, 1)
    return jnp.maximum(jax.scipy.stats.norm.ppf(jnp.clip(level, 0.5, 0.9999)), 0.0)


@channel(title="Attack: inner-product manipulation", tags=("attack",), paper="arXiv:1903.03936")
def ipm(*, attackers: Attackers = Attackers(), epsilon: float = 0.5, collude: bool = True) -> Attack:
    """The honest mean times -``epsilon``; each for itself, a victim's upload times -``epsilon``.

    Xie, Koyejo, Gupta: Fall of Empires, UAI 2019. arXiv 1903.03936.

    Args:
        attackers: Who attacks.
        epsilon: Length of what is sent, in lengths of the honest mean; small ones hide, large ones turn a plain mean
            around.
        collude: Whether all attackers send the honest mean, turned around; else each the upload of its own victim.
    """
    _positive("epsilon", epsilon)

    def forge(known: Knowledge) -> Tree:
        return tree.scale(-epsilon, known.means() if collude else known.victim)

    return attack("ipm", attackers, forge, collude=collude)


@channel(title="Attack: mimic", tags=("attack",), paper="arXiv:2006.09365")
def mimic(*, attackers: Attackers = Attackers(), collude: bool = True) -> Attack:
    """A copy of one honest victim's upload, which then counts too often; each for itself, of its own victim.

    The victim is drawn from the seed and stays the same for as long as it takes part. (In the paper it is the one whose
    upload stands out most along the direction in which the honest ones differ most.)

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022. arXiv 2006.09365.

    Args:
        attackers: Who attacks.
        collude: Whether all attackers copy the same victim; else each its own.
    """

    def forge(known: Knowledge) -> Tree:
        return known.victim

    return attack("mimic", attackers, forge, collude=collude)


@channel(title="Attack: edge of the ball", tags=("attack",))
def edge(
    *,
    attackers: Attackers = Attackers(),
    radius: float | None = None,
    num_near: int | None = None,
    factor: float = 0.9,
    direction: str = "lasting",
    collude: bool = True,
) -> Attack:
    """A point in the ball of honest clients, ``factor`` times its radius from their mean.

    With a ``radius`` the honest clients are those within it of a victim, that is, its cluster: b attackers among n of
    them shift the mean of the ball by b / (n + b) * factor * radius. With ``num_near`` they are so many, those nearest
    to the victim, itself among them; without either they are all honest clients. The radius is then the distance of
    the farthest of them from their mean.

    Args:
        attackers: Who attacks.
        radius: Radius of the ball around an honest victim, in the unit of uploads; not together with ``num_near``.
        num_near: How many honest clients the ball holds, those nearest to the victim, itself among them; None is all.
        factor: Distance from their mean, in radii; just below 1 is the most that still lies in the ball.
        direction: The side they go to: one for the whole run ("lasting"), or away from where the mean points
            ("against").
        collude: Whether all attackers have one victim and one side; else each its own.
    """
    if radius is not None:
        _positive("radius", radius)
    if num_near is not None:
        _positive("num_near", num_near)
    require(radius is None or num_near is None, "num_near", num_near, "left out where a radius is given")
    _positive("factor", factor)
    require_choice("direction", direction, DIRECTIONS)

    def forge(known: Knowledge) -> Tree:
        centers, length = _balls(known, radius, num_near)
        if direction == "against":
            sides = jax.vmap(lambda one: _unit(tree.scale(-1.0, one)))(centers)
        else:
            sides = _each(_direction, known.lasting, known.uploads)
        return jax.tree.map(lambda a, b: a + factor * tree.along(length, b) * b, centers, sides)

    return attack("edge", attackers, forge, collude=collude)


@channel(title="Attack: not a number", name="nan", tags=("attack",))
def not_a_number(*, attackers: Attackers = Attackers(), value: str = "nan") -> Attack:
    """Uploads of nothing but "nan", "inf" or "-inf".

    Args:
        attackers: Who attacks.
        value: What every number is: "nan", "inf" or "-inf".
    """
    require_choice("value", value, VALUES)

    def forge(known: Knowledge) -> Tree:
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, VALUES[value]), known.uploads)

    return attack("nan", attackers, forge)


def _balls(known: Knowledge, radius: float | None, num_near: int | None) -> tuple[Tree, Array]:
    """The mean of the honest uploads that each attacker aims at, and the radius it aims within."""
    if radius is None and num_near is None:
        centers = known.means()
        far = jnp.sqrt(jax.vmap(tree.squared_norm)(tree.subtract(known.clean, centers)))
        return centers, jnp.where(known.known, far, 0.0).max(1)
    pairs = squared_distances(known.clean, known.known.any(0))
    apart = jnp.where(known.known, jnp.sqrt(pairs)[known.victims], jnp.inf)
    if radius is not None:
        near = known.known & (apart <= radius)
    else:
        near = known.known & (apart <= jnp.sort(apart, axis=1)[:, [min(num_near or 1, len(pairs)) - 1]])
    share = near / jnp.maximum(near.sum(1, keepdims=True), 1)
    centers = combine(share, known.clean)
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
    require(given > 0, name, given, "a positive number")
