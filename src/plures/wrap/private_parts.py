"""Named parts of a model that stay with their client: what leaves it, what it keeps, and a method so parted.

    shared parts   move as in the base (averaged)
    private parts  are trained by their client alone

Messages of a method may hold one model or several, at any depth: every ``Weights`` of the model's structure in them is
parted. What stays private is absent from a message (None), so that it is neither sent nor counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import Unsupported, require_least
from plures.local import Loss, begin, descend, num_steps, objective
from plures.method import Method
from plures.models.parts import Parting, parting
from plures.registry import Limit
from plures.types import Batch, Data, Info, Key, Model, Plan, Tree, Weights

ONE_CLIENT = Limit("a single client shares with nobody anyway", same_served_as="fedavg", world="one_client")

Welcome: TypeAlias = Callable[[Key, Weights, Data, Array], Weights]
"""(key, the model offered, data, new) -> the model of a client that never trained; unchanged for one that is not new."""


class Kept(NamedTuple):
    """What a client keeps: the base's private state, its own parts, and whether they have been trained."""

    base: Tree
    own: list[Array]
    trained: Array


def only(part: Parting, loss: Loss, *, private: bool) -> Loss:
    """The loss as a function of the private leaves alone, or of the shared ones alone; statistics of the others stay."""
    moves = [kept == private for kept in part.private]

    def chosen(free: Tree, held: Tree, moves: list[bool]) -> Tree:
        leaves, structure = jax.tree.flatten(held)
        pairs = zip(jax.tree.leaves(free), leaves, moves, strict=True)
        return jax.tree.unflatten(structure, [new if moving else old for new, old, moving in pairs])

    def held(key: Key, weights: Weights, batch: Batch) -> tuple[Array, Tree]:
        still = jax.tree.map(jax.lax.stop_gradient, weights)
        value, stats = loss(key, chosen(weights, still, moves), batch)
        return value, chosen(stats, weights.stats, moves[len(moves) - len(jax.tree.leaves(stats)) :])

    return held


def fitted_part(base: Method, part: Parting, epochs: int) -> Welcome | None:
    """How a newcomer gets its private part: some epochs on its own rows, the shared part held."""
    require_least(0, newcomer_epochs=epochs)
    plan: Plan = replace(base.plan, epochs=epochs, steps=None)

    def welcome(key: Key, weights: Weights, data: Data, new: Array) -> Weights:
        loss, steps = only(part, objective(base.model), private=True), num_steps(data.train, plan)
        return descend(key, begin(weights, plan), data.train, plan, loss, stop=jnp.where(new, steps, 0)).weights

    return welcome if epochs else None


def in_models(model: Model, served: Tree, change: Callable[[Weights], Weights]) -> Tree:
    """What is served, with ``change`` made to every model in it."""
    structure: Any = jax.tree.structure(jax.eval_shape(model.init, jax.random.key(0)))

    def one(node: Any) -> Any:
        return change(node) if isinstance(node, Weights) and jax.tree.structure(node) == structure else node

    return jax.tree.map(one, served, is_leaf=lambda node: isinstance(node, Weights))


def parted(base: Method, keep: str, *, welcome: Welcome | None = None) -> Method:
    """The base with the named part of the model private to each client.

    Clients start from one common initialization of the part. A server that averages updates leaves it there, so
    that newcomers find it; what is served to a client that never trained is changed by ``welcome``.
    """
    if base.views.trained is None or base.settle is not None:
        raise Unsupported(f"a private {keep} needs a base that averages updates of models, such as fedavg or ditto")
    if len(base.phases) > 1:
        raise Unsupported(
            f"a private {keep} would leave its client in the rounds before this method's own; use a base without such "
            "rounds (hypcluster has none with init=random)"
        )
    trained, part = base.views.trained, parting(base.model, keep)

    def join(key: Key, first: Tree) -> Kept:
        return Kept(base.join(key, first), part.own(_first_model(part, first)), jnp.asarray(False))

    def train(key: Key, shared: Tree, kept: Kept, data: Data) -> tuple[Tree, Kept, Info]:
        whole = part.filled(shared, kept.own)
        upload, private, info = base.train(key, whole, kept.base, data)
        own = part.own(trained(whole, private, upload))
        some = jnp.asarray(data.train.count) > 0
        return part.sent(upload), Kept(private, own, kept.trained | some), info

    def serve(key: Key, first: Tree, kept: Kept, data: Data) -> Tree:
        served = base.serve(key, part.filled(first, kept.own), kept.base, data)
        if welcome is None:
            return served
        key_own = jax.random.fold_in(key, 1)
        return in_models(base.model, served, lambda one: welcome(key_own, one, data, ~kept.trained))

    def of_base(first: Tree, kept: Kept) -> tuple[Tree, Tree]:
        return part.filled(first, kept.own), kept.base

    def model_after(shared: Tree, kept: Kept, upload: Tree) -> Weights:
        return trained(*of_base(shared, kept), part.unmoved(upload))

    return replace(
        base,
        offer=base.offered,
        send=lambda server, uid: part.sent(base.send(server, uid)),
        join=join,
        train=train,
        merge=lambda server, uploads, weights, uids: base.merge(server, part.unmoved(uploads), weights, uids),
        serve=serve,
        views=replace(base.views.through(client=of_base), trained=model_after),
    )


def _first_model(part: Parting, message: Tree) -> Weights:
    """The first model in a message, alone where there are several."""
    nodes = jax.tree.leaves(message, is_leaf=lambda node: isinstance(node, Weights))
    found = [node for node in nodes if isinstance(node, Weights)]
    if not found:
        raise Unsupported("a private part needs a base that sends models, such as fedavg")
    extra = jax.tree.leaves(found[0])[0].ndim - jax.tree.leaves(part.shape)[0].ndim
    return tree.at(found[0], (0,) * extra) if extra else found[0]
