"""Tuning a model on a client's own rows for as many epochs as folds of these rows say.

    e    minimizes  the mean loss of held-out rows after e epochs on the other folds,  e = 0 .. epochs
    own  =  the model after e epochs on all rows,  if that gain is above a quarter of its standard error

Folds are of training rows alone: valid rows stay clean for whoever chooses among methods by them, and a client without
any is tuned like the others. A client has as many folds as rows at most; with one row or none it keeps the model it has.
Where that model has seen the rows in training, held-out rows speak a little too well for no tuning at all.

Steps are half of the plan's unless said. A client's own rows are fewer and more alike than all rows, and after a whole step
the loss on others jumps from epoch to epoch (0.47, 0.69, 0.57, 0.49 on digits with steps of 0.3; 0.47, 0.50, 0.49, 0.48 with
half of them), so that folds choose by luck; with a third or a tenth five epochs do not get far enough. On digits and
digits dealt by Dirichlet 0.3 half was best or next to best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from plures.errors import require_least
from plures.local import Descent, Loss, begin, descend, num_steps, outputs_of, steps_per_epoch
from plures.registry import OptionGroup
from plures.types import Key, Model, Plan, Rows, Weights
from plures.wrap.cross_validation import folds_of

SMALLER = 2.0
"""By how much steps of tuning are smaller than the plan's."""

NOISE = 0.25
"""Standard errors of a gain that pass for noise: with a whole one clients with few rows are not tuned that would gain."""

Tune = Callable[[Key, Weights, Rows], Weights]
"""(key, model, the client's training rows) -> the model tuned on them."""


@dataclass(frozen=True, kw_only=True)
class FoldTuning(OptionGroup):
    """How a client tunes a model on its own rows.

    Args:
        epochs: Epochs of tuning at most; 0 serves the model as it is.
        lr: Step size of tuning; None is half of the plan's.
        select: Whether folds of the client's training rows choose after which epoch to stop (none at all included);
            else all epochs are made.
        folds: Folds of a client's training rows, 2 or more; a client with fewer rows has one for each.
    """

    epochs: int = 5
    lr: float | None = None
    select: bool = True
    folds: int = 5

    def __post_init__(self) -> None:
        require_least(0, epochs=self.epochs)
        require_least(2, folds=self.folds)

    @property
    def lanes(self) -> int:
        """Models that a client trains side by side."""
        return self.folds if self.select and self.epochs else 1

    def tuner(self, model: Model, plan: Plan, loss: Loss) -> Tune:
        """What tunes a model: ``loss`` is what it descends, the model's own loss is what folds judge by."""
        each = replace(plan, epochs=1, steps=None, lr=plan.lr / SMALLER if self.lr is None else self.lr)

        def tune(key: Key, first: Weights, rows: Rows) -> Weights:
            number: Array | int = self.epochs
            if self.select and self.epochs:
                number = epochs_by_folds(key, model, first, rows, each, self.epochs, self.folds, loss)
            stop = number * num_steps(rows, each)
            return descend(key, begin(first, each), rows, each, loss, stop=stop).weights

        return tune


def epochs_by_folds(
    key: Key, model: Model, first: Weights, rows: Rows, plan: Plan, epochs: int, folds: int, loss: Loss
) -> Array:
    """After how many epochs of ``plan`` from ``first`` rows that are held out have the least mean loss; 0 within noise."""
    losses, mask = losses_by_epoch(key, model, first, rows, plan, epochs, folds, loss)
    number = jnp.asarray(rows.count)
    gains = jnp.where(mask, losses[0] - losses, 0.0)  # (epochs + 1, held-out rows)
    mean = gains.sum(1) / jnp.maximum(number, 1)
    best = jnp.where(jnp.isnan(mean), -jnp.inf, mean).argmax()
    spread = jnp.where(mask, (gains[best] - mean[best]) ** 2, 0.0).sum() / jnp.maximum(number, 1)
    error = jnp.sqrt(spread / jnp.maximum(number - 1, 1))
    return jnp.where((mean[best] > NOISE * error) & (number > 1), best, 0)


def losses_by_epoch(
    key: Key, model: Model, first: Weights, rows: Rows, plan: Plan, epochs: int, folds: int, loss: Loss
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
            after = descend(key_rows, now, fit, plan, loss, start=start, stop=start + length)
            return after, loss_of(after)

        begun = begin(first, plan)
        _, losses = jax.lax.scan(epoch, begun, jnp.arange(epochs))
        return jnp.concatenate([loss_of(begun)[None], losses]), batch.mask

    losses, mask = jax.vmap(one)(jnp.arange(folds))  # (folds, epochs + 1, held), (folds, held)
    return jnp.moveaxis(losses, 0, 1).reshape(epochs + 1, -1), mask.ravel()
