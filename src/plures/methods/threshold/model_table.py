"""The server's table of all clients' models: who is in which group, whose models are the same, who shares a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import median
from plures.aggregate.variances import keep_variances_positive
from plures.types import Key, Tree, Weights


class ModelTable(NamedTuple):
    """Everybody's model, and what is known of who goes with whom; N clients in G groups of at most S members."""

    models: Weights  # (N, ...)
    memory: Tree  # (N, ...) momentum of the params; nothing without momentum
    steps: Array  # (N,) steps a model has made
    collaboration: Array  # (N, N) the weights of all gradients in a client's last step
    kept: Array  # (N, N) who was in its ball
    label: Array  # (N,) the least uid of its cluster
    noise: Array  # (N,) sigma^2
    gap: Array  # (N,) Delta^2
    spread: Array  # (N,) A^2
    members: Array  # (G, S) uids; N for nobody
    alike: Array  # (N,) the client of the same group whose model it shares
    queue: Array  # (G, S) whose models travel, in this order
    exchange: Array
    round: Array
    key: Key


def new_table(key: Key, models: Weights, groups: int, *, momentum: bool) -> ModelTable:
    """Everybody in a cluster of its own, before the first round."""
    number = jax.tree.leaves(models)[0].shape[0]
    own, nothing = jnp.arange(number, dtype=jnp.int32), jnp.zeros(number)
    grouped = jnp.zeros((groups, -(-number // groups)), jnp.int32)
    table = ModelTable(
        models=models,
        memory=tree.zeros_like(models.params) if momentum else (),
        steps=jnp.zeros(number, jnp.int32),
        collaboration=jnp.eye(number),
        kept=jnp.eye(number, dtype=bool),
        label=own,
        noise=nothing,
        gap=nothing,
        spread=nothing,
        members=grouped,
        alike=own,
        queue=grouped,
        exchange=jnp.zeros((), jnp.int32),
        round=jnp.zeros((), jnp.int32),
        key=key,
    )
    return draw_groups(table)


def draw_groups(table: ModelTable) -> ModelTable:
    """The table before a round: groups are drawn, and equal models found, which travel once."""
    number, (groups, size) = len(table.label), table.members.shape
    now, later = jax.random.split(table.key)
    order = jnp.arange(number, dtype=jnp.int32)
    if groups > 1:
        order = jax.random.permutation(now, order)
    # Spread over groups one by one, so that their sizes differ by one at most.
    padded = jnp.append(order, jnp.full(groups * size - number, number, jnp.int32))
    members = padded.reshape(size, groups).T
    table = table._replace(members=members, key=later)
    table = table._replace(alike=first_alike(table.models, group_of(table)).astype(jnp.int32))
    queue = jnp.take_along_axis(members, jnp.argsort(~_travels(table), axis=1, stable=True), axis=1)
    return table._replace(queue=jnp.minimum(queue, number - 1))


def group_of(table: ModelTable) -> Array:
    """(clients,) the group of each."""
    number, (groups, size) = len(table.label), table.members.shape
    rows = jnp.broadcast_to(jnp.arange(groups, dtype=jnp.int32)[:, None], (groups, size))
    return jnp.zeros(number, jnp.int32).at[table.members].set(rows, mode="drop")


def num_distinct(table: ModelTable) -> Array:
    """(groups,) how many different models there are to compare."""
    return _travels(table).sum(1)


def _travels(table: ModelTable) -> Array:
    """(groups, members) whether a member's model travels: it is the first of those that are the same."""
    number = len(table.label)
    first = table.alike[jnp.minimum(table.members, number - 1)] == table.members
    return first & (table.members < number)


def first_alike(models: Weights, group: Array) -> Array:
    """(clients,) the first client of the same group whose model is the same to the last bit.

    Candidates are found by a sum of bits, and then compared.
    """
    leaves = [leaf.reshape(len(group), -1) for leaf in jax.tree.leaves(models)]
    total = jnp.zeros(len(group), jnp.uint32)
    for number, leaf in enumerate(leaves):
        bits = jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)
        odd = (jnp.arange(leaf.shape[1], dtype=jnp.uint32) * jnp.uint32(2654435761) + jnp.uint32(2 * number)) | 1
        total = total * 31 + ((bits ^ (bits >> 15)) * odd).sum(1, dtype=jnp.uint32)
    same = (total[:, None] == total[None]) & (group[:, None] == group[None])
    first = same.argmax(1)
    equal = jnp.ones(len(group), bool)
    for leaf in leaves:
        equal &= (leaf == leaf[first]).all(1)
    return jnp.where(equal, first, jnp.arange(len(group)))


@dataclass(frozen=True)
class HeavyBall:
    """Steps of length ``lr`` with momentum; a ``dampened`` one is a running mean of the steps, else it is their sum."""

    lr: float
    momentum: float = 0.0
    dampened: bool = False


def move_models(
    descent: HeavyBall, table: ModelTable, steps: Weights, moved: Array, *, raw: bool = False
) -> ModelTable:
    """The table after the steps of those who ``moved``; a ``raw`` step leaves momentum out, but feeds it."""
    memory, params = (), steps.params
    if descent.momentum:
        fresh = (table.steps == 0) | (not descent.dampened)
        share = jnp.where(fresh, 1.0, 1.0 - descent.momentum)
        memory = tree.add(tree.scale(descent.momentum, table.memory), tree.scale_rows(share, steps.params))
        params = params if raw else memory
    step = Weights(params, steps.stats)
    after = keep_variances_positive(table.models, tree.subtract(table.models, tree.scale(descent.lr, step)))
    models, memory = tree.choose_rows(moved, (after, memory), (table.models, table.memory))
    return table._replace(models=models, memory=memory, steps=table.steps + moved)


def unite_clusters(table: ModelTable) -> ModelTable:
    """The table after the models and momenta of every cluster became their median, coordinate by coordinate.

    Not their mean: an attacker may have led its own model astray and then joined the cluster.
    """
    # Who has made no step yet has nothing to give, and takes nothing.
    moved = table.steps > 0
    same = (table.label[:, None] == table.label[None]) & moved[:, None] & moved[None]
    first = jnp.where(moved, same.argmax(1), jnp.arange(len(moved)))
    both = table.models, table.memory

    def unite(job: tuple[Array, Array, Array]) -> Tree:
        index, leads, members = job
        return jax.lax.cond(leads, lambda: median(both, members * 1.0), lambda: tree.at(both, index))

    leads = moved & (first == jnp.arange(len(moved)))
    united = jax.lax.map(unite, (jnp.arange(len(moved)), leads, same))
    # All take what the first of them gets: equal to the last bit.
    models, memory = jax.tree.map(lambda leaf: leaf[first], united)
    return table._replace(models=models, memory=memory)
