"""FedProx: FedAvg whose local steps are held near the shared model.

    client  w_k  =  local SGD on  L_k(w_k) + (lam / 2) |w_k - w|^2,  from w
    server  as FedAvg

Li et al.: Federated Optimization in Heterogeneous Networks, MLSys 2020. arXiv 1812.06127.
"""

from __future__ import annotations

from dataclasses import replace

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.errors import require
from plures.local import drawn_to, objective, sgd
from plures.method import Method
from plures.methods.fedavg import fedavg
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights, untraced


@method(
    title="FedProx",
    paper="arXiv:1812.06127",
    degree="lam",
    limits=[Limit("no proximal term: plain FedAvg", {"lam": 0.0}, same_served_as="fedavg")],
)
def fedprox(model: Model, *, plan: Plan = Plan(), lam: float = 0.1, averaging: Averaging = Averaging()) -> Method:
    """One global model, made by ``aggregate``; a proximal term holds local training near it.

    Args:
        plan: How clients train locally.
        lam: Strength of the proximal term, in the unit of curvature: 0 is plain FedAvg, a large one hardly lets
            clients move. Its steps are proximal ones, so that no strength makes them diverge.
    """
    require(not untraced(lam) or lam >= 0, "lam", lam, "0 or more")
    base = fedavg(model, plan=plan, averaging=averaging)

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[Weights, Tree, Info]:
        own, info = sgd(key, shared, data, plan, objective(model), then=drawn_to(shared, plan.lr * lam))
        return tree.subtract(own, shared), private, info

    return replace(base, train=train)
