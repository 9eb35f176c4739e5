"""Training alone: every client on its own rows, nothing crosses the network.

    own  w_k  minimizes  L_k(w_k)

Clients start from one common random model, which is the only thing they ever receive.
"""

from __future__ import annotations

from jax import Array

from plures.local import objective, sgd
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Method, Model, Plan, Tree, Weights, keep_download


@method(
    title="Local only",
    tags=("baseline",),
    limits=[Limit("a single client: FedAvg is training alone", same_served_as="fedavg", world="one_client")],
)
def local_only(model: Model, *, plan: Plan = Plan()) -> Method:
    """Each client's own model, trained on its own rows alone."""

    def start(key: Key, num_clients: int) -> Weights:
        return model.init(key)

    def train(key: Key, download: Tree, own: Weights, data: Data) -> tuple[Tree, Weights, Info]:
        own, info = sgd(key, own, data, plan, objective(model))
        return (), own, info

    def merge(server: Weights, uploads: Tree, weights: Array, uids: Array) -> Weights:
        return server

    def serve(key: Key, first: Weights, own: Weights, data: Data) -> Weights:
        return own

    return Method(
        model=model,
        start=start,
        offer=lambda server, uid: server,
        send=lambda server, uid: (),
        join=keep_download,
        train=train,
        merge=merge,
        serve=serve,
        predict=model.apply,
    )
