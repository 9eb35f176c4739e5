"""MR-MTL: multi-task learning with models drawn to their mean.

    min over w_1 .. w_m   sum_i p_i ( L_i(w_i) + (lam / 2) |w_i - mean|^2 ),       mean = sum_j p_j w_j

    client   w_i   =   some steps on  L_i(w_i) + (lam / 2) |w_i - w_g|^2,  from its own last w_i
    server   w_g  <-  sum_i p_i w_i

The problem is FedCLUP's with w_g minimized out, and the algorithm is FedCLUP's with gamma = 1 / lam.

Liu, Hu, Wu, Smith: On Privacy and Personalization in Cross-Silo Federated Learning, NeurIPS 2022, arXiv 2206.07902.
"""

from __future__ import annotations

from plures.aggregate.averaging import Aggregation
from plures.method import Method
from plures.methods.penalized.descent import TRAINS_ALONE, Penalty, PenaltySettings, PersonalDescent
from plures.methods.penalized.rounds import PenalizedMethod
from plures.registry import Limit, method
from plures.types import Model, Plan


@method(
    title="MR-MTL",
    paper="arXiv:2206.07902",
    degree="lam",
    limits=[
        TRAINS_ALONE,
        Limit("FedCLUP with plain averaging", {"lam": 0.5}, "fedclup", {"lam": 0.5, "gamma": "mean"}),
    ],
)
def mr_mtl(
    model: Model,
    *,
    plan: Plan = Plan(),
    penalty: Penalty = Penalty(),
    aggregation: Aggregation = Aggregation(weighting="uniform"),
) -> Method:
    """Personal models drawn to their mean with strength ``lam``.

    Args:
        plan: How clients train locally where they do so by SGD; full-batch steps do not read it.
    """
    settings = PenaltySettings(penalty=penalty, aggregation=aggregation, gamma="mean")
    return PenalizedMethod(descent=PersonalDescent.of(model, plan, settings), name="mr_mtl").build()
