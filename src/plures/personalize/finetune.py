"""Fine-tuning: from the model served, some epochs on the client's own rows, their number chosen by folds of these rows.

    e    minimizes  the mean loss of held-out rows after e epochs on the other folds,  e = 0 .. epochs
    own  =  the model served after e epochs on all rows,  if that gain is above a quarter of its standard error

Folds are of training rows alone: valid rows stay clean for whoever chooses among methods by them, and a client without
any is tuned like the others. A client has as many folds as rows at most; with one row or none it keeps the model served.
Where the base has seen the rows in training, held-out rows speak a little too well for no tuning at all.

Steps are half of the base's unless said. A client's own rows are fewer and more alike than all rows, and after a whole step
the loss on others jumps from epoch to epoch (0.47, 0.69, 0.57, 0.49 on digits with steps of 0.3; 0.47, 0.50, 0.49, 0.48 with
half of them), so that folds choose by luck; with a third or a tenth five epochs do not get far enough. On digits and
digits dealt by Dirichlet 0.3 half was best or next to best.

The protocol of looking after every epoch, with no tuning at all as a candidate: Wu et al., Motley, arXiv 2206.09262;
there valid rows choose.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from plures.errors import require_least
from plures.local import Descent, begin, descend, num_steps, objective, outputs_of, steps_per_epoch
from plures.method import Method
from plures.personalize.base_checks import needs_weights
from plures.personalize.cross_validation import folds_of
from plures.registry import Limit, personalizer
from plures.types import Data, Key, Model, Plan, Rows, Tree, Weights

SMALLER = 2.0
"""By how much steps of tuning are smaller than the base's."""

NOISE = 0.25
"""Standard errors of a gain that pass for noise: with a whole one clients with few rows are not tuned that would gain."""


@personalizer(
    title="Fine-tuning",
    paper="arXiv:2206.09262",
    degree="epochs",
    limits=[Limit("no epochs: the base itself", {"epochs": 0}, same_served_as="fedavg")],
)
def finetune(
    base: Method,
    *,
    plan: Plan | None = None,
    epochs: int = 5,
    lr: float | None = None,
    select: bool = True,
    folds: int = 5,
) -> Method:
    """The base's model trained on for up to ``epochs`` epochs, their number chosen by folds of the training rows.

    Args:
        plan: How clients tune; None is the base's plan.
        epochs: Epochs of tuning at most; 0 is the base itself.
        lr: Step size of tuning; None is half of the plan's.
        select: Whether folds of the client's training rows choose after which epoch to stop (none at all included);
            else all epochs are made.
        folds: Folds of a client's training rows, 2 or more; a client with fewer rows has one for each.
    """
    needs_weights("finetune", base)
    require_least(0, epochs=epochs)
    require_least(2, folds=folds)
    model, own = base.model, plan or base.plan
    tuned = replace(own, epochs=1, steps=None, lr=own.lr / SMALLER if lr is None else lr)

    def serve(key: Key, download: Tree, private: Tree, data: Data) -> Weights:
        key_base, key_own = jax.random.split(key)
        first = base.serve(key_base, download, private, data)
        number = epochs_by_folds(key_own, model, first, data.train, tuned, epochs, folds) if select else epochs
        stop = number * num_steps(data.train, tuned)
        return descend(key_own, begin(first, tuned), data.train, tuned, objective(model), stop=stop).weights

    lanes = max(base.traits.lanes, folds if select and epochs else 1)
    return replace(base, serve=serve, traits=replace(base.traits, lanes=lanes))


def epochs_by_folds(
    key: Key, model: Model, first: Weights, rows: Rows, plan: Plan, epochs: int, folds: int
) -> Array | int:
    """After how many epochs of ``plan`` from ``first`` rows that are held out have the least mean loss; 0 within noise."""
    if not epochs:
        return 0
    losses, mask = losses_by_epoch(key, model, first, rows, plan, epochs, folds)
    number = jnp.asarray(rows.count)
    gains = jnp.where(mask, losses[0] - losses, 0.0)  # (epochs + 1, held-out rows)
    mean = gains.sum(1) / jnp.maximum(number, 1)
    best = jnp.where(jnp.isnan(mean), -jnp.inf, mean).argmax()
    spread = jnp.where(mask, (gains[best] - mean[best]) ** 2, 0.0).sum() / jnp.maximum(number, 1)
    error = jnp.sqrt(spread / jnp.maximum(number - 1, 1))
    return jnp.where((mean[best] > NOISE * error) & (number > 1), best, 0)


def losses_by_epoch(
    key: Key, model: Model, first: Weights, rows: Rows, plan: Plan, epochs: int, folds: int
) -> tuple[Array, Array]:
    """(epochs + 1, held-out rows) the loss of every row after 0, 1, .. epochs on the folds without it; which rows count."""
    key_folds, key_rows = jax.random.split(jax.random.fold_in(key, 1))
    parts = folds_of(key_folds, rows, folds)

    def one(fold: Array) -> tuple[Array, Array]:
        fit, held = parts.fit(fold), parts.held(fold)
        batch, length = held.all(), steps_per_epoch(fit, plan)

        def loss_of(now: Descent) -> Array:
            return model.loss(outputs_of(model.apply, now.weights, held), batch.y)

        def epoch(now: Descent, number: Array) -> tuple[Descent, Array]:
            start = number * length
            after = descend(key_rows, now, fit, plan, objective(model), start=start, stop=start + length)
            return after, loss_of(after)

        begun = begin(first, plan)
        _, losses = jax.lax.scan(epoch, begun, jnp.arange(epochs))
        return jnp.concatenate([loss_of(begun)[None], losses]), batch.mask

    losses, mask = jax.vmap(one)(jnp.arange(folds))  # (folds, epochs + 1, held), (folds, held)
    return jnp.moveaxis(losses, 0, 1).reshape(epochs + 1, -1), mask.ravel()
