"""MR-MTL: multi-task learning with models drawn to their mean.

    min over w_1 .. w_m   sum_i p_i ( L_i(w_i) + (lam / 2) |w_i - mean|^2 ),       mean = sum_j p_j w_j

    client   w_i   =   some steps on  L_i(w_i) + (lam / 2) |w_i - w_g|^2,  from its own last w_i
    server   w_g  <-  sum_i p_i w_i

The problem is FedCLUP's with w_g minimized out, and the algorithm is FedCLUP's with gamma = 1 / lam.

Liu, Hu, Wu, Smith: On Privacy and Personalization in Cross-Silo Federated Learning, NeurIPS 2022, arXiv 2206.07902.
"""

from __future__ import annotations

from plures.methods._penalized import penalized
from plures.methods._pull import Descent, How
from plures.methods.fedclup import keeping
from plures.registry import Limit, method
from plures.types import Method, Model, Plan


@method(
    title="MR-MTL",
    paper="arXiv:2206.07902",
    degree="lam",
    limits=[
        Limit(
            "no pull: the own model trains alone",
            {"lam": 0.0, "local": "sgd"},
            "local_only",
            {"newcomer_epochs": 20},
        ),
        Limit("FedCLUP with plain averaging", {"lam": 0.5}, "fedclup", {"lam": 0.5, "gamma": "mean"}),
    ],
)
def mr_mtl(
    model: Model,
    *,
    plan: Plan = Plan(),
    lam: float | str = "auto",
    alpha: float | None = None,
    inner: int | str = "auto",
    local: str = "auto",
    absent: str = "sampled",
    weighting: str = "uniform",
    aggregate: str = "mean",
) -> Method:
    """Personal models drawn to their mean with strength ``lam``; the options are FedCLUP's."""
    how = How(
        lam=lam,
        gamma="mean",
        alpha=alpha,
        inner=inner,
        local=local,
        absent=absent,
        weighting=weighting,
        aggregate=aggregate,
    )
    descent = Descent.of(model, plan, how)
    return penalized(descent, "mr_mtl", keeping(descent))
