"""LG-FedAvg: a body for every client, a shared head.

    client  (b_k, h)   local SGD on L_k(b_k, h), both at once
    server  h  <-  mean of the clients' h;  the representation b_k never travels

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally, 2020. arXiv 2001.01523. The paper
starts from a jointly trained model; here clients start from one common random one. A client that never trained fits its body
to its own rows before it is served, the head held.
"""

from __future__ import annotations

from plures.aggregate.averaging import Averaging
from plures.method import Method
from plures.methods.parts.fedper import fedper
from plures.registry import Limit, method
from plures.types import Model, Plan
from plures.wrap.private_parts import ONE_CLIENT


@method(
    title="LG-FedAvg",
    paper="arXiv:2001.01523",
    tags=("parts",),
    limits=[
        ONE_CLIENT,
        Limit("the head kept instead of the body: FedPer", {"keep": "head"}, same_served_as="fedper"),
    ],
)
def lg_fedavg(
    model: Model,
    *,
    plan: Plan = Plan(),
    keep: str = "body",
    newcomer_epochs: int = 5,
    averaging: Averaging = Averaging(),
) -> Method:
    """FedAvg with a private body: only the head is averaged.

    Args:
        plan: How clients train locally, body and head at once.
        keep: The part of the model that stays with the client; "head" is FedPer.
        newcomer_epochs: Epochs for which a client that never trained fits its private part before it is served; 0 serves
            it as it was drawn.
    """
    return fedper(model, plan=plan, keep=keep, newcomer_epochs=newcomer_epochs, averaging=averaging)
