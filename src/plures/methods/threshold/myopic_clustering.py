"""Myopic-Clustering: every client's gradient at its own model, clustered. A strawman, for teaching and tests.

    v_i   =  Threshold-Clustering of g_1(x_1) .. g_N(x_N), from g_i(x_i)
    x_i  <-  x_i - lr v_i

Gradients are compared at different models. Near their own optima all are about 0, so different clusters merge; everybody
in a cluster makes the same step, so that an early mistake never shrinks; and two clients of one cluster who drifted
apart look different for ever. It is Momentum-Clustering without memory in which everybody is its own center.

Werner, He, Jordan, Jaggi, Karimireddy: Provably Personalized and Robust Federated Learning, arXiv 2306.08393.
"""

from __future__ import annotations

from plures.method import Method
from plures.methods.threshold.gradients import ThresholdOptions
from plures.methods.threshold.momentum_clustering import MomentumOptions, momentum_clustering
from plures.registry import Limit, method
from plures.types import Model, Plan


@method(
    title="Myopic-Clustering",
    paper="arXiv:2306.08393",
    degree="radius",
    tags=("baseline",),
    limits=[
        Limit("the nearest alone is the client itself", {"radius": "k_nearest:k=1"}, same_served_as="local_only")
    ],
)
def myopic_clustering(
    model: Model, *, plan: Plan = Plan(), clustering: ThresholdOptions = ThresholdOptions(), num_offered: int = 8
) -> Method:
    """A model for every client, moved by gradients that are taken at different models: a strawman, for teaching.

    Args:
        plan: How clients train locally; a client's gradient at a model is what the plan moves it by, over ``lr``.
        clustering: Whose gradients a client keeps.
        num_offered: How many models, of the largest clusters, newcomers choose from by their training rows.
    """
    options = MomentumOptions(alpha=1.0, audit=0, num_offered=num_offered)
    return momentum_clustering(model, num_clusters=0, plan=plan, clustering=clustering, options=options)
