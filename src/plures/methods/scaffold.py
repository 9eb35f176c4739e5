"""SCAFFOLD: local steps corrected by how a client's gradients differ from everyone's.

    client  y    <-  y - lr (g_k(y) - c_k + c)                       for K_k steps, from w
            c_k+  =  c_k - c + (w - y) / (K_k lr)                    (option II of the paper)
    server  w    <-  w + server_lr mean_k (y_k - w),   c <- c + (|S| / N) mean_k (c_k+ - c_k)

A client that makes no step keeps its c_k. Plain SGD only: the correction is of gradients.

Karimireddy et al.: SCAFFOLD, ICML 2020. arXiv 1910.06378.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from plures import tree
from plures.aggregate.averaging import Aggregation, Averaging
from plures.errors import Unsupported
from plures.local import num_steps, objective, sgd
from plures.method import Method
from plures.methods.fedavg import Server, fedavg, key_now
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights


class ScaffoldServer(NamedTuple):
    """FedAvg's server, everyone's mean control and the number of clients."""

    shared: Server
    control: Tree
    num_clients: Array


class ControlledModel(NamedTuple):
    """The shared model and everyone's control; or the changes of both."""

    weights: Weights
    control: Tree


@method(
    title="SCAFFOLD",
    paper="arXiv:1910.06378",
    limits=[Limit("a single client needs no correction", same_served_as="fedavg", world="one_client")],
)
def scaffold(model: Model, *, plan: Plan = Plan(), averaging: Averaging = Averaging(weighting="uniform")) -> Method:
    """One global model by SGD with control variates against client drift.

    ``aggregate`` takes the updates and the changes of the controls each by themselves: their scales differ.

    Args:
        plan: How clients train locally: by plain SGD, whose gradients are corrected.
    """
    if plan.optimizer is not optax.sgd:
        raise Unsupported("scaffold corrects plain SGD steps; use a plan with optimizer=optax.sgd")
    base = fedavg(model, plan=plan, averaging=averaging)
    average = Aggregation(weighting="uniform", aggregate=averaging.aggregate).aggregator

    def start(key: Key, num_clients: int) -> ScaffoldServer:
        shared = base.start(key, num_clients)
        return ScaffoldServer(shared, tree.zeros_like(shared.weights.params), jnp.asarray(float(num_clients)))

    def train(key: Key, download: ControlledModel, own: Tree, data: Data) -> tuple[ControlledModel, Tree, Info]:
        shared, control = download
        drift = tree.subtract(control, own)

        def correct(grads: Tree, params: Tree) -> Tree:
            return tree.add(grads, drift)

        moved, info = sgd(key, shared, data, plan, objective(model), adjust=correct)
        steps = jnp.asarray(num_steps(data.train, plan), jnp.float32)
        gradient = tree.scale(1 / (plan.lr * jnp.maximum(steps, 1)), tree.subtract(shared.params, moved.params))
        change = tree.choose(steps > 0, tree.subtract(gradient, control), tree.zeros_like(control))
        return ControlledModel(tree.subtract(moved, shared), change), tree.add(own, change), info

    def merge(server: ScaffoldServer, uploads: ControlledModel, weights: Array, uids: Array) -> ScaffoldServer:
        shared = base.merge(server.shared, uploads.weights, weights, uids)
        heard = (weights > 0).astype(weights.dtype)
        change = average(uploads.control, heard, uids, key_now(server.shared))
        step = tree.scale(heard.sum() / server.num_clients, change)
        return ScaffoldServer(shared, tree.add(server.control, step), server.num_clients)

    return replace(
        base,
        start=start,
        send=lambda server, uid: ControlledModel(server.shared.weights, server.control),
        join=lambda key, download: tree.zeros_like(download.control),
        train=train,
        merge=merge,
        serve=lambda key, download, own, data: download.weights,
        # Its controls are messages about all of the model, so no part of it can be kept private.
        views=replace(base.views, common=lambda download: download.weights, trained=None),
    )
