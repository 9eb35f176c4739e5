"""FedPer: a shared body, a head for every client.

    client  (theta, h_k)   local SGD on L_k(theta, h_k), both at once
    server  theta  <-  mean of the clients' theta;  h_k never travels

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019. arXiv 1912.00818. A client that
never trained fits its head to its own rows before it is served, the body held.
"""

from __future__ import annotations

from plures.methods.fedavg import fedavg
from plures.parting import fitted_part, parted, parting
from plures.registry import Limit, method
from plures.types import Method, Model, Plan


@method(
    title="FedPer",
    paper="arXiv:1912.00818",
    tags=("parts",),
    limits=[Limit("a single client shares with nobody anyway", same_served_as="fedavg", world="one_client")],
)
def fedper(
    model: Model,
    *,
    plan: Plan = Plan(),
    keep: str = "head",
    newcomer_epochs: int = 5,
    weighting: str = "examples",
    aggregate: str = "mean",
) -> Method:
    """FedAvg with a private head, or another part named by ``keep``."""
    base = fedavg(model, plan=plan, weighting=weighting, aggregate=aggregate)
    return parted(base, keep, welcome=fitted_part(base, parting(model, keep), newcomer_epochs))
