"""FedBN: FedAvg whose normalization layers stay with their clients.

    client  (theta, n_k)   local SGD on L_k(theta, n_k);  n_k are scales, shifts and running statistics
    server  theta  <-  mean of the clients' theta;  n_k never travels

Li, Jiang, Zhang, Kamp, Dou: FedBN, ICLR 2021. arXiv 2102.07623. A client that never trained is served with
the statistics of its own rows under the shared model, and with scales and shifts as they were drawn: nobody's travel.
"""

from __future__ import annotations

from plures.methods.fedavg import fedavg
from plures.norms import normalized
from plures.registry import Limit, method
from plures.types import Method, Model, Plan


@method(
    title="FedBN",
    paper="arXiv:2102.07623",
    tags=("norm",),
    limits=[Limit("a single client shares with nobody anyway", same_served_as="fedavg", world="one_client")],
)
def fedbn(
    model: Model,
    *,
    plan: Plan = Plan(),
    server_lr: float = 1.0,
    weighting: str = "examples",
    aggregate: str = "mean",
) -> Method:
    """FedAvg with private normalization layers."""
    base = fedavg(model, plan=plan, server_lr=server_lr, weighting=weighting, aggregate=aggregate)
    return normalized(base, "local", who="fedbn")
