"""Ditto: a personal model held near a jointly trained one.

    shared  w    minimizes  sum_k m_k L_k(w)                     (as FedAvg)
    own     v_k  minimizes  L_k(v_k) + (lam / 2) |v_k - w|^2,   by steps on L_k and proximal steps towards w

The paper takes gradient steps on the sum. What suits L_k alone is then too long, and the own model swings around w: on digits
of 4 rotations, with lam = 1 and the step that FedAvg is best with, 29 % are right; with proximal steps 89 %.

A client that took part in no round (one never seen, say) has no own model. When it is served it makes one of the shared
model by the same rule, for ``newcomer_epochs`` on the rows it brings; with none it gets the shared model.

Li, Hu, Beirami, Smith: Ditto, ICML 2021. arXiv 2012.04221.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from plures.aggregate.averaging import Averaging
from plures.errors import require, require_least
from plures.local import begin, descend, drawn_to, num_steps, objective, sgd
from plures.method import Method
from plures.methods.fedavg import fedavg
from plures.methods.local_only import OwnModel
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Weights, untraced


@method(
    title="Ditto",
    paper="arXiv:2012.04221",
    degree="lam",
    limits=[Limit("no proximal term: the own model trains alone", {"lam": 0.0}, same_served_as="local_only")],
)
def ditto(
    model: Model,
    *,
    plan: Plan = Plan(),
    lam: float = 0.1,
    newcomer_epochs: int = 10,
    averaging: Averaging = Averaging(),
) -> Method:
    """Personal models regularized towards FedAvg's shared model, made by ``aggregate``.

    Args:
        plan: How clients train locally, the copy of the shared model and the own one alike.
        lam: Strength of the proximal term that holds the own model near the shared one, in the unit of curvature: 0
            trains alone, a large one serves the shared model.
        newcomer_epochs: Epochs for which a client that never trained adapts the shared model to its own rows before it
            is served; 0 serves the shared model.
    """
    require(not untraced(lam) or lam >= 0, "lam", lam, "0 or more")
    require_least(0, newcomer_epochs=newcomer_epochs)
    base = fedavg(model, plan=plan, averaging=averaging)
    welcome = replace(plan, epochs=newcomer_epochs, steps=None)

    def join(key: Key, first: Weights) -> OwnModel:
        return OwnModel(first, jnp.asarray(False))

    def train(key: Key, shared: Weights, own: OwnModel, data: Data) -> tuple[Weights, OwnModel, Info]:
        key_shared, key_own = jax.random.split(key)
        upload, _, info = base.train(key_shared, shared, (), data)
        weights, more = sgd(
            key_own, own.weights, data, plan, objective(model), then=drawn_to(shared, plan.lr * lam)
        )
        return upload, OwnModel(weights, jnp.asarray(True)), {**info, "steps": info["steps"] + more["steps"]}

    def serve(key: Key, shared: Weights, own: OwnModel, data: Data) -> Weights:
        steps, near = jnp.where(own.trained, 0, num_steps(data.train, welcome)), drawn_to(shared, plan.lr * lam)
        first = begin(own.weights, welcome)
        return descend(key, first, data.train, welcome, objective(model), then=near, stop=steps).weights

    return replace(base, train=train, join=join, serve=serve)
