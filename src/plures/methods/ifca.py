"""IFCA: the loop of HypCluster with clients weighing the same and a start from a random division of the clients.

    cluster  f(k)  =  argmin_i  L_k(h_i)
    model    h_i  <-  h_i + mean over the clients of cluster i of their updates

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, arXiv 2006.04088.
"""

from __future__ import annotations

from plures.methods.hypcluster import hypcluster
from plures.registry import Limit, method
from plures.types import Method, Model, Plan


@method(
    title="IFCA",
    paper="arXiv:2006.04088",
    degree="num_clusters",
    limits=[
        Limit(
            "one cluster: FedAvg with equal weights",
            {"num_clusters": 1},
            same_served_as="fedavg",
            its_options={"weighting": "uniform"},
        )
    ],
)
def ifca(
    model: Model,
    *,
    num_clusters: int = 2,
    plan: Plan = Plan(),
    server_lr: float = 1.0,
    init: str = "partition",
    warm: int = 5,
    aggregate: str = "mean",
) -> Method:
    """One of ``num_clusters`` models for every client, all clients weighing the same."""
    return hypcluster(
        model,
        num_clusters=num_clusters,
        plan=plan,
        server_lr=server_lr,
        weighting="uniform",
        init=init,
        warm=warm,
        aggregate=aggregate,
    )
