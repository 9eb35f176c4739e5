"""The table of all clients' models: who is in which group, and whose models travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import median
from plures.aggregate.points import combine
from plures.errors import BadValue, UnknownChoice
from plures.methods._views import check_look, first_alike
from plures.types import Key, Tree, Weights

BETWEEN = ("cached", "local")


class Views(NamedTuple):
    """Everybody's model, and what is known of who goes with whom; N clients in G groups of S places."""

    models: Weights  # (N, ...)
    memory: Tree  # (N, ...) momentum of the params; nothing without momentum
    steps: Array  # (N,) steps a model has made
    collaboration: Array  # (N, N) the weights of all slopes in a client's last step
    kept: Array  # (N, N) who was in its ball
    label: Array  # (N,) the least uid of its cluster
    noise: Array  # (N,) sigma^2
    gap: Array  # (N,) Delta^2
    spread: Array  # (N,) A^2
    members: Array  # (G, S) uids; N for nobody
    alike: Array  # (N,) the client of the same group whose model it shares
    slots: Array  # (G, S) whose models travel, in this order
    turn: Array
    round: Array
    key: Key


class Near(NamedTuple):
    """What the centers of a group find around them: collaboration weights, kept points, gap and spread."""

    mix: Array  # (S, S)
    kept: Array  # (S, S)
    gap: Array  # (S,)
    spread: Array  # (S,)


class View(NamedTuple):
    """What the members of a group find at one model; S members, of whom only ``who`` shares that model."""

    who: Array  # (S,) uids; N for the others
    place: Array  # (S,) the members
    mix: Array  # (S, S)
    kept: Array  # (S, S)
    gap: Array  # (S,)
    spread: Array  # (S,)


def group_of(server: Views) -> Array:
    """(clients,) the group of each."""
    number, (groups, places) = len(server.label), server.members.shape
    rows = jnp.broadcast_to(jnp.arange(groups, dtype=jnp.int32)[:, None], (groups, places))
    return jnp.zeros(number, jnp.int32).at[server.members].set(rows, mode="drop")


def distinct(server: Views) -> Array:
    """(groups,) how many models there are to compare."""
    number = len(server.label)
    inside = server.members < number
    first = server.alike[jnp.minimum(server.members, number - 1)] == server.members
    return (inside & first).sum(1)


def divided(server: Views) -> Views:
    """The server before a round: groups drawn, equal models found."""
    number, (groups, places) = len(server.label), server.members.shape
    now, later = jax.random.split(server.key)
    order = jnp.arange(number, dtype=jnp.int32)
    if groups > 1:
        order = jax.random.permutation(now, order)
    # Spread over groups one by one, so that their sizes differ by one at most.
    padded = jnp.append(order, jnp.full(groups * places - number, number, jnp.int32))
    members = padded.reshape(places, groups).T
    server = server._replace(members=members, key=later)
    alike = first_alike(server.models, group_of(server)).astype(jnp.int32)
    first = (alike[jnp.minimum(members, number - 1)] == members) & (members < number)
    slots = jnp.take_along_axis(members, jnp.argsort(~first, axis=1, stable=True), axis=1)
    return server._replace(alike=alike, slots=jnp.minimum(slots, number - 1))


def united(server: Views) -> Views:
    """The server after the models and momenta of every cluster became their median, coordinate by coordinate.

    Not their mean: a liar may have led its own model astray and then joined the cluster.
    """
    # Who has made no step yet has nothing to give, and takes nothing.
    moved = server.steps > 0
    same = (server.label[:, None] == server.label[None]) & moved[:, None] & moved[None]
    first = jnp.where(moved, same.argmax(1), jnp.arange(len(moved)))
    both = server.models, server.memory

    def one(job: tuple[Array, Array, Array]) -> Tree:
        place, leads, members = job
        return jax.lax.cond(leads, lambda: median(both, members * 1.0), lambda: tree.at(both, place))

    leads = moved & (first == jnp.arange(len(moved)))
    found = jax.lax.map(one, (jnp.arange(len(moved)), leads, same))
    # All take what the first of them gets: equal to the last bit.
    models, memory = jax.tree.map(lambda leaf: leaf[first], found)
    return server._replace(models=models, memory=memory)


def mixed(mix: Array, points: Tree) -> Tree:
    """The rows of ``mix`` applied to the points; mostly there is only one that is not zero."""
    used = mix.sum(1) > 0

    def single(mix: Array) -> Tree:
        row = used.argmax()
        one = combine(mix[row], points)
        return jax.tree.map(lambda leaf, made: jnp.zeros_like(leaf).at[row].set(made), points, one)

    return jax.lax.cond(used.sum() <= 1, single, lambda mix: combine(mix, points), mix)


def check(momentum: float, look: str, between: str, counts: Mapping[str, int]) -> None:
    """Refuse options that cannot be."""
    if not 0 <= momentum < 1:
        raise BadValue("momentum", momentum, "a number in [0, 1)")
    check_look(look)
    if between not in BETWEEN:
        raise UnknownChoice("between", between, BETWEEN)
    for name, given in counts.items():
        if given < 1:
            raise BadValue(name, given, "1 or more")
