"""What comes before personal models: a global model, and one round of everyone's slopes at it.

For small parts the global model is found by Newton's method on the sum of all objectives: a client sends its loss, its
gradient and its Hessian, d + d (d + 1) / 2 + 1 numbers. Otherwise it is FedAvg's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.aggregate.points import cleaned, usable
from plures.methods._part import Part, downhill
from plures.methods._views import in_order
from plures.methods.fedavg import fedavg
from plures.types import Data, Info, Key, Method, Plan, Tree, Weights, then

NEWTON_ROUNDS = 6  # for a part that is solved exactly after rounds of FedAvg for the rest


class Facts(NamedTuple):
    """The global model, what clients said at it, and what the server made of that."""

    shared: Weights
    slopes: Array  # (N, d)
    steepness: Array  # (N,)
    heard: Array  # (N,)
    found: Tree


class Said(NamedTuple):
    """A client's gradient at the global model and its largest curvature there."""

    slope: Array
    steepness: Array


def statistics(part: Part, plan: Plan, conclude: Callable[[Array, Array], Tree]) -> Method:
    """One round in which clients send slope and curvature; ``found`` is conclude(slopes, heard)."""

    def start(key: Key, num_clients: int) -> Facts:
        slopes, heard = jnp.zeros((num_clients, part.size)), jnp.zeros(num_clients, bool)
        shape = jax.eval_shape(conclude, slopes, heard)
        found = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        return Facts(part.model.init(key), slopes, jnp.zeros(num_clients), heard, found)

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[Said, Tree, Info]:
        return Said(part.slope(key, shared, data), part.steepness(key, shared, data)), private, {}

    def merge(server: Facts, uploads: Said, weights: Array, uids: Array) -> Facts:
        counts = usable(uploads, weights)
        sent = in_order(cleaned(uploads, counts), uids, len(server.heard))
        heard = jnp.zeros_like(server.heard).at[uids].set(counts)
        return Facts(server.shared, sent.slope, sent.steepness, heard, conclude(sent.slope, heard))

    return _plain(part, plan, start, train, merge)


def median_steepness(facts: Facts) -> Array:
    """The median L of the clients that were heard."""
    found = jnp.nanmedian(jnp.where(facts.heard, facts.steepness, jnp.nan))
    return jnp.where(found > 0, found, 1.0)


def with_model(facts: Facts, weights: Weights) -> Facts:
    """Statistics to be asked for at these weights."""
    return facts._replace(shared=weights)


def warmed(main: Method, part: Part, local: str, plan: Plan, rounds: int, hand_over: Callable[..., Tree]) -> Method:
    """``main`` after ``rounds`` rounds for the global model, which ``hand_over(fresh, weights)`` gives it."""
    exact = local == "newton" and part.convex
    if rounds and exact:
        number = rounds if part.whole else NEWTON_ROUNDS
        main = then(newton_rounds(part, plan), number, main, hand_over=_from("shared", hand_over), everyone=True)
    if rounds and not (exact and part.whole):
        base = fedavg(part.model, plan=plan, weighting="uniform")
        main = then(base, rounds, main, hand_over=_from("weights", _onwards if exact else hand_over))
    return main


def _from(name: str, hand_over: Callable[..., Tree]) -> Callable[[Key, Tree, Tree], Tree]:
    return lambda key, fresh, before: hand_over(fresh, getattr(before, name))


def _onwards(fresh: Climb, shared: Weights) -> Climb:
    return fresh._replace(shared=shared, best=shared)


class Climb(NamedTuple):
    """The model that is tried next, the best one so far, and what is known there."""

    shared: Weights
    best: Weights
    loss: Array
    slope: Array
    curvature: Array  # (d, d)
    damping: Array


class Local(NamedTuple):
    """A client's loss, gradient and the upper triangle of its Hessian."""

    loss: Array
    slope: Array
    curvature: Array


def newton_rounds(part: Part, plan: Plan) -> Method:
    """Newton's method on the mean of all objectives, damped where a step went up."""
    upper = np.triu_indices(part.size)

    def start(key: Key, num_clients: int) -> Climb:
        first = part.model.init(key)
        none = jnp.zeros(())
        return Climb(first, first, none + jnp.inf, jnp.zeros(part.size), jnp.zeros((part.size, part.size)), none)

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[Local, Tree, Info]:
        risk, here = part.risk(key, part.rest(shared), data.train.all()), part.vector(shared)
        loss, slope = jax.value_and_grad(risk)(here)
        return Local(loss, slope, jax.hessian(risk)(here)[upper]), private, {"loss": loss}

    def merge(server: Climb, uploads: Local, weights: Array, uids: Array) -> Climb:
        counts = usable(uploads, weights)
        told = tree.weighted_mean(cleaned(uploads, counts), counts.astype(jnp.float32))
        curvature = jnp.zeros((part.size, part.size)).at[upper].set(told.curvature)
        curvature = curvature + jnp.triu(curvature, 1).T
        tried = Climb(server.shared, server.shared, told.loss, told.slope, curvature, server.damping / 8)
        harder = jnp.maximum(8 * server.damping, 1e-3 * jnp.diagonal(server.curvature).mean())
        # The last steps change the loss by less than float32 can tell.
        better = told.loss <= server.loss + 1e-6 * jnp.abs(told.loss)
        known = tree.choose(better, tried, server._replace(damping=harder))
        step = downhill(known.curvature + known.damping * jnp.eye(part.size), known.slope)
        after = known._replace(shared=part.put(part.vector(known.best) + step, part.rest(known.best)))
        return tree.choose(counts.any(), after, server)

    return _plain(part, plan, start, train, merge)


def _plain(part: Part, plan: Plan, start: Callable, train: Callable, merge: Callable) -> Method:
    """A prelude that sends its shared model and serves it."""
    return Method(
        model=part.model,
        start=start,
        send=lambda server, uid: server.shared,
        train=train,
        merge=merge,
        serve=lambda key, shared, private, data: shared,
        predict=part.model.apply,
        plan=plan,
    )
