"""FedAvg: one model for all, the mean of what clients make of it.

    client  w_k  =  w after local SGD on L_k
    server  w   <-  w + step of the server optimizer along  sum_k p_k (w_k - w)

with p_k proportional to the client's training rows (or equal). The server optimizer is heavy-ball momentum:
v <- momentum v + mean update, w <- w + server_lr v. ``aggregate`` puts a robust aggregator in the mean's place, by
name: "median", "krum:num_byzantine=2".

McMahan et al.: Communication-Efficient Learning of Deep Networks, AISTATS 2017. arXiv 1602.05629.
Server momentum: Hsu, Qi, Brown, arXiv 1909.06335.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import optax
from jax import Array

from plures import tree
from plures.aggregate import averaging, check_weighting, num_tolerated
from plures.errors import BadValue
from plures.local import objective, sgd
from plures.norms import guarded
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Method, Model, Plan, Tree, Weights


class Server(NamedTuple):
    """The shared model and the server optimizer's memory; a key only where the aggregator draws."""

    weights: Weights
    optimizer: Any
    key: Tree = ()


@method(
    title="FedAvg",
    paper="arXiv:1602.05629",
    limits=[Limit("a single client trains alone", same_served_as="local_only", world="one_client")],
)
def fedavg(
    model: Model,
    *,
    plan: Plan = Plan(),
    server_lr: float = 1.0,
    momentum: float = 0.0,
    weighting: str = "examples",
    aggregate: str = "mean",
) -> Method:
    """One global model by averaging local updates."""
    check_weighting(weighting)
    if not server_lr > 0:
        raise BadValue("server_lr", server_lr, "a positive number")
    if not 0 <= momentum < 1:
        raise BadValue("momentum", momentum, "a number in [0, 1)")
    optimizer = optax.sgd(server_lr, momentum or None)
    average = averaging(aggregate, weighting)

    def start(key: Key, num_clients: int) -> Server:
        weights = model.init(key)
        return Server(weights, optimizer.init(weights.params), jax.random.fold_in(key, 1) if average.random else ())

    def send(server: Server, uid: Array) -> Weights:
        return server.weights

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[Weights, Tree, Info]:
        own, info = sgd(key, shared, data, plan, objective(model))
        return tree.subtract(own, shared), private, info

    def merge(server: Server, uploads: Weights, weights: Array, uids: Array) -> Server:
        later = jax.random.split(server.key)[1] if average.random else ()
        return stepped(optimizer, server._replace(key=later), average(uploads, weights, uids, key_now(server)))

    def serve(key: Key, shared: Weights, private: Tree, data: Data) -> Weights:
        return shared

    return Method(
        model=model,
        start=start,
        send=send,
        train=train,
        merge=merge,
        serve=serve,
        predict=model.apply,
        plan=plan,
        common=lambda shared: shared,
        trained=lambda shared, private, update: tree.add(shared, update),
        tolerates=partial(num_tolerated, aggregate) if average.robust else None,
    )


def key_now(server: Server) -> Key | None:
    """The key for what the aggregator draws in this round, if it does."""
    return None if isinstance(server.key, tuple) else jax.random.split(server.key)[0]


def stepped(optimizer: optax.GradientTransformation, server: Server, update: Weights) -> Server:
    """The server after one step along the mean update; batch-norm statistics are averaged as they are."""
    descent = tree.scale(-1.0, update.params)
    change, memory = optimizer.update(descent, server.optimizer, server.weights.params)
    params = optax.apply_updates(server.weights.params, change)
    weights = guarded(server.weights, Weights(params, tree.add(server.weights.stats, update.stats)))
    return server._replace(weights=weights, optimizer=memory)
