"""FedCLUP: personal models tied to a shared one, and a server step made for their envelope.

    min over w_g, w_1 .. w_m   sum_i p_i ( L_i(w_i) + (lam / 2) |w_g - w_i|^2 )

    client   w_i  <-  w_i - alpha ( grad L_i(w_i) + lam (w_i - w_g) )          K times, from its own last w_i
    server   w_g  <-  w_g - gamma lam sum_i p_i (w_g - w_i)

lam is the degree of collaboration: 0 is training alone, infinity one model for all. With gamma = 1 / lam + 1 / L
the number of rounds grows with lam up to that of one global model; with gamma = 1 / lam, plain averaging, it grows
without bound. At the optimum w_g is the weighted mean of the w_i.

Yu, He, Sun, Xue, Li: Understanding the Statistical Accuracy-Communication Trade-off in Personalized Federated
Learning with Minimax Guarantees, ICML 2025, arXiv 2410.08934. The automatic lam, the number K of steps, and what a
partial cohort stands for are ours.
"""

from __future__ import annotations

from plures.aggregate.averaging import Aggregation
from plures.method import Method
from plures.methods.penalized.descent import TRAINS_ALONE, Penalty, PenaltySettings, PersonalDescent
from plures.methods.penalized.rounds import PenalizedMethod
from plures.registry import method
from plures.types import Model, Plan


@method(title="FedCLUP", paper="arXiv:2410.08934", degree="lam", limits=[TRAINS_ALONE])
def fedclup(
    model: Model,
    *,
    plan: Plan = Plan(),
    penalty: Penalty = Penalty(),
    gamma: float | str = "auto",
    num_lams: int = 5,
    newcomer_epochs: int = 20,
    aggregation: Aggregation = Aggregation(weighting="uniform"),
) -> Method:
    """Personal models tied to a shared one by a penalty of strength ``lam``, chosen from statistics.

    With attackers about, give ``lam`` as a number: statistics are not robust. A newcomer goes from the shared model to
    its own best one.

    Args:
        plan: How clients train locally where they do so by SGD; full-batch steps do not read it.
        gamma: Server step: "auto" is 1 / lam + 1 / L (for SGD averaging, a bit faster where lam is automatic), "mean" is
            1 / lam, plain averaging, or a number.
        num_lams: How many lams are trained side by side for lam="valid" and "valid-own", each four times the last.
        newcomer_epochs: Epochs of a newcomer's own training where clients train by SGD; 0 serves the shared model.
    """
    settings = PenaltySettings(
        penalty=penalty, aggregation=aggregation, gamma=gamma, num_lams=num_lams, newcomer_epochs=newcomer_epochs
    )
    return PenalizedMethod(descent=PersonalDescent.of(model, plan, settings), name="fedclup").build()
