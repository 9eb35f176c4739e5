"""Fine-tuning: from the model served, some epochs on the client's own rows, their number chosen by folds of these rows.

    e    minimizes  the mean loss of held-out rows after e epochs on the other folds,  e = 0 .. epochs
    own  =  the model served after e epochs on all rows,  if that gain is above a quarter of its standard error

Steps are half of the base's unless said; ``plures.wrap.fold_tuning`` says why, and what becomes of clients with few rows.

The protocol of looking after every epoch, with no tuning at all as a candidate: Wu et al., Motley, arXiv 2206.09262;
there valid rows choose.
"""

from __future__ import annotations

from dataclasses import replace

import jax

from plures.local import objective
from plures.method import Method
from plures.personalize.base_checks import needs_weights
from plures.registry import Limit, personalizer
from plures.types import Data, Key, Plan, Tree, Weights
from plures.wrap.fold_tuning import FoldTuning


@personalizer(
    title="Fine-tuning",
    paper="arXiv:2206.09262",
    degree="epochs",
    limits=[Limit("no epochs: the base itself", {"epochs": 0}, same_served_as="fedavg")],
)
def finetune(base: Method, *, plan: Plan | None = None, tuning: FoldTuning = FoldTuning()) -> Method:
    """The base's model trained on for up to ``epochs`` epochs, their number chosen by folds of the training rows.

    Args:
        plan: How clients tune; None is the base's plan.
    """
    needs_weights("finetune", base)
    tune = tuning.tuner(base.model, plan or base.plan, objective(base.model))

    def serve(key: Key, download: Tree, private: Tree, data: Data) -> Weights:
        key_base, key_own = jax.random.split(key)
        return tune(key_own, base.serve(key_base, download, private, data), data.train)

    lanes = max(base.traits.lanes, tuning.lanes)
    return replace(base, serve=serve, traits=replace(base.traits, lanes=lanes))
