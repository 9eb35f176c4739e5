"""Training alone: every client on its own rows, nothing crosses the network.

    own  w_k  minimizes  L_k(w_k)

Every client trains in every round, whatever the cohort: it costs no message, and "alone" means without waiting to be
drawn. Clients start from one common random model, which is the only thing they ever receive. A client that took part in
no round (one never seen, say) trains when it is served, for ``newcomer_epochs``: what it would reach alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from plures.errors import require_least
from plures.local import begin, descend, num_steps, objective, sgd
from plures.method import Method, Traits
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights


class OwnModel(NamedTuple):
    """A client's model and whether it has been trained."""

    weights: Weights
    trained: Array


@method(
    title="Local only",
    tags=("baseline",),
    limits=[Limit("a single client: FedAvg is training alone", same_served_as="fedavg", world="one_client")],
)
def local_only(model: Model, *, plan: Plan = Plan(), newcomer_epochs: int = 100) -> Method:
    """Each client's own model, trained on its own rows alone.

    Args:
        plan: How clients train locally.
        newcomer_epochs: Epochs for which a client that never trained does so before it is served; 0 serves the model as
            it was drawn.
    """
    require_least(0, newcomer_epochs=newcomer_epochs)
    alone = replace(plan, epochs=newcomer_epochs, steps=None)

    def train(key: Key, download: Tree, own: OwnModel, data: Data) -> tuple[Tree, OwnModel, Info]:
        weights, info = sgd(key, own.weights, data, plan, objective(model))
        return (), OwnModel(weights, jnp.asarray(True)), info

    def serve(key: Key, first: Weights, own: OwnModel, data: Data) -> Weights:
        steps = jnp.where(own.trained, 0, num_steps(data.train, alone))
        done = descend(key, begin(own.weights, alone), data.train, alone, objective(model), stop=steps)
        return done.weights

    return Method(
        model=model,
        start=lambda key, num_clients: model.init(key),
        offer=lambda server, uid: server,
        send=lambda server, uid: (),
        join=lambda key, first: OwnModel(first, jnp.asarray(False)),
        train=train,
        merge=lambda server, uploads, weights, uids: server,
        serve=serve,
        predict=model.apply,
        plan=plan,
        traits=Traits(full_cohort=True, norm="local"),
    )
