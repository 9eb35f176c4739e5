"""IFCA: the loop of HypCluster with clients weighing the same and a start from a random division of the clients.

    cluster  f(k)  =  argmin_i  L_k(h_i)
    model    h_i  <-  h_i + mean over the clients of cluster i of their updates

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, arXiv 2006.04088.
"""

from __future__ import annotations

from plures.aggregate.averaging import Averaging
from plures.method import Method
from plures.methods.clustering.hypcluster import hypcluster
from plures.methods.clustering.starting_centers import ClusterStart
from plures.registry import Limit, method
from plures.types import Model, Plan


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
    init: str = "partition",
    warm: int = 5,
    averaging: Averaging = Averaging(weighting="uniform"),
) -> Method:
    """One of ``num_clusters`` models for every client, all clients weighing the same.

    Args:
        num_clusters: How many models there are; 1 is FedAvg with equal weights.
        plan: How clients train locally.
        init: How the models come to start apart: "partition" as in the paper, or another of HypCluster's.
        warm: Rounds of that start.
    """
    return hypcluster(
        model, num_clusters=num_clusters, plan=plan, start=ClusterStart(init=init, warm=warm), averaging=averaging
    )
