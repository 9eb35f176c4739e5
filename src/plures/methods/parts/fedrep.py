"""FedRep: a shared body and private heads, trained in turns.

    client  h_k    <-  ``head_epochs`` epochs on L_k(theta, .), the body held
            theta_k <-  the plan on L_k(., h_k), the head held
    server  theta  <-  mean of the clients' theta_k;  h_k never travels

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations, ICML 2021. arXiv 2102.07078. A client that never
trained fits its head to its own rows before it is served, as the paper has it for newcomers.
"""

from __future__ import annotations

from dataclasses import replace

import jax

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.errors import require_least
from plures.local import objective, sgd
from plures.method import Method
from plures.methods.fedavg import fedavg
from plures.models.parts import parting
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights
from plures.wrap.private_parts import fitted_part, only, parted


@method(
    title="FedRep",
    paper="arXiv:2102.07078",
    tags=("parts",),
    limits=[
        Limit(
            "heads that never train: FedBABU without fine-tuning",
            {"head_epochs": 0, "newcomer_epochs": 0},
            same_served_as="fedbabu",
            its_options={"epochs": 0},
        )
    ],
)
def fedrep(
    model: Model,
    *,
    plan: Plan = Plan(),
    keep: str = "head",
    head_epochs: int = 5,
    newcomer_epochs: int = 5,
    averaging: Averaging = Averaging(),
) -> Method:
    """A shared body under private heads: first the head is fitted, then the body moves.

    Args:
        plan: How clients train the body, the head held.
        keep: The part of the model that stays with the client.
        head_epochs: Epochs of a round for the private part, before the plan's; 0 never trains it.
        newcomer_epochs: Epochs for which a client that never trained fits its private part before it is served; 0 serves
            it as it was drawn.
    """
    require_least(0, head_epochs=head_epochs)
    base = fedavg(model, plan=plan, averaging=averaging)
    part, loss = parting(model, keep), objective(model)
    first = replace(plan, epochs=head_epochs, steps=None)

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[Weights, Tree, Info]:
        key_head, key_body = jax.random.split(key)
        fitted, info = sgd(key_head, shared, data, first, only(part, loss, private=True))
        moved, more = sgd(key_body, fitted, data, plan, only(part, loss, private=False))
        return tree.subtract(moved, shared), private, {**more, "steps": info["steps"] + more["steps"]}

    welcome = fitted_part(base, part, newcomer_epochs)
    return parted(replace(base, train=train), keep, welcome=welcome)
