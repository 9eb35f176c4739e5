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

from plures.methods._penalized import Client, penalized
from plures.methods._pull import Descent, How, Steps
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Method, Model, Plan, Weights


@method(
    title="FedCLUP",
    paper="arXiv:2410.08934",
    degree="lam",
    limits=[
        Limit(
            "no pull: the own model trains alone",
            {"lam": 0.0, "local": "sgd"},
            "local_only",
            {"newcomer_epochs": 20},
        )
    ],
)
def fedclup(
    model: Model,
    *,
    plan: Plan = Plan(),
    lam: float | str = "auto",
    gamma: float | str = "auto",
    alpha: float | None = None,
    inner: int | str = "auto",
    local: str = "auto",
    absent: str = "sampled",
    weighting: str = "uniform",
    aggregate: str = "mean",
    num_lams: int = 5,
    newcomer_epochs: int = 20,
) -> Method:
    """Personal models tied to a shared one by a penalty of strength ``lam``, chosen from statistics.

    ``lam`` is a number in the unit of curvature, "auto" (one for all, from a few rounds of statistics), "own" (lam
    / n for a client of n rows), "valid" (``num_lams`` of them side by side, around the automatic one; valid rows
    choose) or "valid-own" (a client leaves that choice where its own valid rows clearly say so). ``gamma`` is
    "auto", "mean" (1 / lam) or a number. ``local="steps"``: ``inner`` full-batch steps of size ``alpha``, both
    found from curvature; "sgd": the plan's steps, with the pull added, and averaging, a bit faster where lam is
    automatic; "auto" is "steps" for convex models of up to 200 numbers. ``absent`` is what a partial cohort stands
    for: "sampled", "stale" or "unbiased". ``aggregate`` is a robust aggregator in the mean's place; with liars
    about, give ``lam`` as a number. A newcomer goes from the shared model to its own best one.
    """
    how = How(
        lam=lam,
        gamma=gamma,
        alpha=alpha,
        inner=inner,
        local=local,
        absent=absent,
        weighting=weighting,
        aggregate=aggregate,
        num_lams=num_lams,
        newcomer_epochs=newcomer_epochs,
    )
    descent = Descent.of(model, plan, how)
    return penalized(descent, "fedclup", keeping(descent))


def keeping(descent: Descent) -> Client:
    """A client that goes on from its own last model and sends it."""

    def act(key: Key, shared: Weights, own: Weights, steps: Steps, data: Data) -> tuple[Weights, Weights, Info]:
        after, info = descent.own(key, own, shared, steps, data)
        return after, after, info

    return act
