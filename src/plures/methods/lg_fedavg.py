"""LG-FedAvg: a body for every client, a shared head.

    client  (b_k, h)   local SGD on L_k(b_k, h), both at once
    server  h  <-  mean of the clients' h;  the representation b_k never travels

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally, 2020. arXiv 2001.01523. The paper
starts from a jointly trained model; here clients start from one common random one. A client that never trained fits its body
to its own rows before it is served, the head held.
"""

from __future__ import annotations

from plures.methods.fedper import fedper
from plures.registry import Limit, method
from plures.types import Method, Model, Plan


@method(
    title="LG-FedAvg",
    paper="arXiv:2001.01523",
    tags=("parts",),
    limits=[
        Limit("a single client shares with nobody anyway", same_served_as="fedavg", world="one_client"),
        Limit("the head kept instead of the body: FedPer", {"keep": "head"}, same_served_as="fedper"),
    ],
)
def lg_fedavg(
    model: Model,
    *,
    plan: Plan = Plan(),
    keep: str = "body",
    newcomer_epochs: int = 5,
    weighting: str = "examples",
    aggregate: str = "mean",
) -> Method:
    """FedAvg with a private body: only the head is averaged."""
    return fedper(
        model, plan=plan, keep=keep, newcomer_epochs=newcomer_epochs, weighting=weighting, aggregate=aggregate
    )
