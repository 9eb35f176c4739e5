"""FedBABU: the body is trained jointly under a head that nobody trains, then every client fine-tunes.

    client  theta_k  =  theta after local SGD on L_k(., h_0);  the head h_0 stays as it was drawn
    server  theta   <-  mean of the clients' theta_k
    served  the model (theta, h_0) tuned on the client's own rows, all of it or its head alone

The paper tunes for a fixed number of epochs with the steps of training (``select=false`` and ``lr``). What suits training is too
long there: on digits of 4 rotations, with the step that FedAvg is best with, five such epochs lead to an accuracy of 0.69; half of
the step and an end chosen by folds of the client's rows, as ours are, to 0.86.

Oh, Kim, Yun: FedBABU, ICLR 2022. arXiv 2106.06042.
"""

from __future__ import annotations

from dataclasses import replace

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.errors import require_choice
from plures.local import objective, sgd
from plures.method import Method
from plures.methods.fedavg import fedavg
from plures.models.parts import parting
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights
from plures.wrap.fold_tuning import FoldTuning
from plures.wrap.private_parts import only, parted

TUNED = ("all", "head")


@method(
    title="FedBABU",
    paper="arXiv:2106.06042",
    tags=("parts",),
    degree="epochs",
    limits=[
        Limit(
            "no fine-tuning: FedRep whose heads never train",
            {"epochs": 0},
            same_served_as="fedrep",
            its_options={"head_epochs": 0, "newcomer_epochs": 0},
        )
    ],
)
def fedbabu(
    model: Model,
    *,
    plan: Plan = Plan(),
    keep: str = "head",
    tune: str = "all",
    tuning: FoldTuning = FoldTuning(),
    averaging: Averaging = Averaging(),
) -> Method:
    """A body trained under a fixed random head; clients fine-tune ``all`` of the model, or its ``head``.

    Args:
        plan: How clients train the body, and how they fine-tune.
        keep: The part that nobody trains jointly.
        tune: What is fine-tuned: "all" of the model or the "head" (what ``keep`` names) alone.
    """
    require_choice("part to tune", tune, TUNED)
    base = fedavg(model, plan=plan, averaging=averaging)
    part, loss = parting(model, keep), objective(model)
    tuned = tuning.tuner(model, plan, loss if tune == "all" else only(part, loss, private=True))

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[Weights, Tree, Info]:
        moved, info = sgd(key, shared, data, plan, only(part, loss, private=False))
        return tree.subtract(moved, shared), private, info

    def serve(key: Key, shared: Weights, private: Tree, data: Data) -> Weights:
        return tuned(key, shared, data.train)

    lanes = replace(base.traits, lanes=tuning.lanes)
    return parted(replace(base, train=train, serve=serve, traits=lanes), keep)
