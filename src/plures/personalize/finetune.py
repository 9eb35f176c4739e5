"""Fine-tuning: from the model served, some epochs on the client's own rows.

The client's valid rows choose after which epoch to stop, and epoch 0 (no tuning at all) is a candidate. A client
without valid rows takes the last epoch.

The protocol of evaluating after every epoch with epoch 0 as a candidate: Wu et al., Motley, arXiv 2206.09262.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import require_least
from plures.local import begin, descend, mean_loss, objective, steps_per_epoch
from plures.method import Method
from plures.personalize.base_checks import needs_weights
from plures.registry import Limit, personalizer
from plures.types import Data, Key, Plan, Tree, Weights


@personalizer(
    title="Fine-tuning",
    paper="arXiv:2206.09262",
    degree="epochs",
    limits=[Limit("no epochs: the base itself", {"epochs": 0}, same_served_as="fedavg")],
)
def finetune(
    base: Method, *, plan: Plan | None = None, epochs: int = 5, lr: float | None = None, select: bool = True
) -> Method:
    """The base's model trained on for up to ``epochs`` epochs, the number chosen on valid rows.

    Args:
        plan: How clients tune; None is the base's plan.
        epochs: Epochs of tuning at most; 0 is the base itself.
        lr: Step size of tuning; None is the plan's.
        select: Whether valid rows choose after which epoch to stop (none at all included); else all epochs are made.
    """
    needs_weights("finetune", base)
    require_least(0, epochs=epochs)
    model, own = base.model, plan or base.plan
    tuned = replace(own, epochs=1, steps=None, lr=own.lr if lr is None else lr)

    def serve(key: Key, download: Tree, private: Tree, data: Data) -> Weights:
        key_base, key_own = jax.random.split(key)
        first = base.serve(key_base, download, private, data)
        length = steps_per_epoch(data.train, tuned)
        some = jnp.asarray(data.valid.count) > 0

        def risk(weights: Weights) -> Array:
            return mean_loss(model, model.apply, weights, data.valid)

        def epoch(number: Array, now: tuple) -> tuple:
            descent, best, least = now
            start, loss = number * length, objective(model)
            descent = descend(key_own, descent, data.train, tuned, loss, start=start, stop=start + length)
            value = risk(descent.weights)
            better = (value < least) | (not select) | ~some
            return descent, tree.choose(better, descent.weights, best), jnp.where(better, value, least)

        return jax.lax.fori_loop(0, epochs, epoch, (begin(first, tuned), first, risk(first)))[1]

    return replace(base, serve=serve)
