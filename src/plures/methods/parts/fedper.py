"""FedPer: a shared body, a head for every client.

    client  (theta, h_k)   local SGD on L_k(theta, h_k), both at once
    server  theta  <-  mean of the clients' theta;  h_k never travels

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019. arXiv 1912.00818. A client that
never trained fits its head to its own rows before it is served, the body held.
"""

from __future__ import annotations

from plures.aggregate.averaging import Averaging
from plures.method import Method
from plures.methods.fedavg import fedavg
from plures.models.parts import parting
from plures.registry import method
from plures.types import Model, Plan
from plures.wrap.private_parts import ONE_CLIENT, fitted_part, parted


@method(title="FedPer", paper="arXiv:1912.00818", tags=("parts",), limits=[ONE_CLIENT])
def fedper(
    model: Model,
    *,
    plan: Plan = Plan(),
    keep: str = "head",
    newcomer_epochs: int = 5,
    averaging: Averaging = Averaging(),
) -> Method:
    """FedAvg with a private head, or another part named by ``keep``.

    Args:
        plan: How clients train locally, body and head at once.
        keep: The part of the model that stays with the client; a leaf outside of it is averaged.
        newcomer_epochs: Epochs for which a client that never trained fits its private part before it is served; 0 serves
            it as it was drawn.
    """
    base = fedavg(model, plan=plan, averaging=averaging)
    return parted(base, keep, welcome=fitted_part(base, parting(model, keep), newcomer_epochs))
