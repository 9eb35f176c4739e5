"""FedBN: FedAvg whose normalization layers stay with their clients.

    client  (theta, n_k)   local SGD on L_k(theta, n_k);  n_k are scales, shifts and running statistics
    server  theta  <-  mean of the clients' theta;  n_k never travels

Li, Jiang, Zhang, Kamp, Dou: FedBN, ICLR 2021. arXiv 2102.07623. A client that never trained is served with
the statistics of its own rows under the shared model, and with scales and shifts as they were drawn: nobody's travel.
"""

from __future__ import annotations

from plures.aggregate.averaging import Averaging
from plures.method import Method
from plures.methods.fedavg import fedavg
from plures.registry import method
from plures.types import Model, Plan
from plures.wrap.norms import normalized
from plures.wrap.private_parts import ONE_CLIENT


@method(title="FedBN", paper="arXiv:2102.07623", tags=("norm",), limits=[ONE_CLIENT])
def fedbn(model: Model, *, plan: Plan = Plan(), averaging: Averaging = Averaging()) -> Method:
    """FedAvg with private normalization layers.

    Args:
        plan: How clients train locally.
    """
    base = fedavg(model, plan=plan, averaging=averaging)
    return normalized(base, "local", who="fedbn")
