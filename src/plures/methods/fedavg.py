"""FedAvg: one model for all, the mean of what clients make of it.

    client  w_k  =  w after local SGD on L_k
    server  w   <-  w + step of the server optimizer along  sum_k p_k (w_k - w)

with p_k proportional to the client's training rows (or equal), and the server optimizer that of ``Averaging``:
heavy-ball momentum, or a robust aggregator in the mean's place.

McMahan et al.: Communication-Efficient Learning of Deep Networks, AISTATS 2017. arXiv 1602.05629.
Server momentum: Hsu, Qi, Brown, arXiv 1909.06335.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax
from jax import Array

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.aggregate.variances import keep_variances_positive
from plures.local import objective, sgd
from plures.method import Method, Traits, Views
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights


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
def fedavg(model: Model, *, plan: Plan = Plan(), averaging: Averaging = Averaging()) -> Method:
    """One global model by averaging local updates.

    Args:
        plan: How clients train locally.
    """
    optimizer, average = averaging.optimizer, averaging.aggregator

    def start(key: Key, num_clients: int) -> Server:
        weights = model.init(key)
        return Server(weights, optimizer.init(weights.params), jax.random.fold_in(key, 1) if average.random else ())

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[Weights, Tree, Info]:
        own, info = sgd(key, shared, data, plan, objective(model))
        return tree.subtract(own, shared), private, info

    def merge(server: Server, uploads: Weights, weights: Array, uids: Array) -> Server:
        later = jax.random.split(server.key)[1] if average.random else ()
        return step_server(optimizer, server._replace(key=later), average(uploads, weights, uids, key_now(server)))

    return Method(
        model=model,
        start=start,
        send=lambda server, uid: server.weights,
        train=train,
        merge=merge,
        serve=lambda key, shared, private, data: shared,
        predict=model.apply,
        plan=plan,
        views=Views(common=lambda shared: shared, trained=lambda shared, private, update: tree.add(shared, update)),
        traits=Traits(tolerates=averaging.tolerates),
    )


def key_now(server: Server) -> Key | None:
    """The key for what the aggregator draws in this round, if it does."""
    return None if isinstance(server.key, tuple) else jax.random.split(server.key)[0]


def step_server(optimizer: optax.GradientTransformation, server: Server, update: Weights) -> Server:
    """The server after one step along the mean update; batch-norm statistics are averaged as they are."""
    descent = tree.scale(-1.0, update.params)
    change, memory = optimizer.update(descent, server.optimizer, server.weights.params)
    params = optax.apply_updates(server.weights.params, change)
    weights = keep_variances_positive(server.weights, Weights(params, tree.add(server.weights.stats, update.stats)))
    return server._replace(weights=weights, optimizer=memory)
