"""What a client does with its own rows: minibatches, gradient descent, losses, per-example gradients.

Every example is used once per epoch, in batches of equal size give or take a row; a client smaller than a batch trains
too and a client with no rows does nothing. Batch-norm statistics and dropout keys are handled here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import Array

from plures import tree
from plures.keys import permute
from plures.types import Batch, Data, Drawable, Info, Key, Model, Plan, Rows, Tree, Weights

Loss: TypeAlias = Callable[[Key, Weights, Batch], tuple[Array, Tree]]
"""(key, weights, batch) -> mean loss over the batch, new batch-norm statistics."""

Adjust: TypeAlias = Callable[[Tree, Tree], Tree]
"""(gradients, params) -> gradients: a hook such as SCAFFOLD's correction."""


class Descent(NamedTuple):
    """Where a local optimization stands."""

    weights: Weights
    optimizer: Any
    loss: Array  # summed over steps


def sgd(
    key: Key,
    weights: Weights,
    data: Data,
    plan: Plan,
    loss: Loss,
    *,
    adjust: Adjust | None = None,
    then: Callable[[Tree], Tree] | None = None,
) -> tuple[Weights, Info]:
    """The weights after ``plan`` on the client's training rows, and the mean training loss on the way."""
    rows = data.train
    total = num_steps(rows, plan)
    done = descend(key, begin(weights, plan), rows, plan, loss, adjust=adjust, then=then, stop=total)
    return done.weights, {"loss": done.loss / jnp.maximum(total, 1), "steps": jnp.asarray(total, jnp.float32)}


def begin(weights: Weights, plan: Plan) -> Descent:
    """A local optimization that has made no step yet."""
    return Descent(weights, plan.optimizer(plan.lr).init(weights.params), jnp.zeros(()))


def descend(
    key: Key,
    descent: Descent,
    rows: Drawable,
    plan: Plan,
    loss: Loss,
    *,
    start: Array | int = 0,
    stop: Array | int,
    adjust: Adjust | None = None,
    then: Callable[[Tree], Tree] | None = None,
) -> Descent:
    """``descent`` after the steps ``start`` .. ``stop - 1`` of the plan; ``then`` moves the params after each."""
    optimizer = plan.optimizer(plan.lr)
    gradient = jax.value_and_grad(of_params(loss), has_aux=True)
    key_rows, key_model = jax.random.split(key)
    in_blocks = plan.batch is None and rows.capacity > BLOCK and not jax.tree.leaves(descent.weights.stats)

    def gradient_at(weights: Weights, index: Array) -> Any:
        key_now = jax.random.fold_in(key_model, index)
        if in_blocks:
            return _gradient_in_blocks(gradient, weights, key_now, rows)
        return gradient(weights.params, weights, key_now, draw(key_rows, rows, plan, index))

    def step(index: Array, now: Descent) -> Descent:
        (value, stats), grads = gradient_at(now.weights, index)
        if adjust is not None:
            grads = adjust(grads, now.weights.params)
        updates, state = optimizer.update(grads, now.optimizer, now.weights.params)
        params = optax.apply_updates(now.weights.params, updates)
        if then is not None:
            params = then(params)
        return Descent(Weights(params, stats), state, now.loss + value)

    return jax.lax.fori_loop(start, stop, step, descent)


def _gradient_in_blocks(gradient: Any, weights: Weights, key: Key, rows: Drawable) -> Any:
    """The loss and its gradient over all rows, block by block: work grows with the client's own rows.

    A mean over all rows is the mean of the blocks' means, weighted by their rows.
    """

    def add(block: Array, total: Any) -> Any:
        batch = rows.take(block * BLOCK + jnp.arange(BLOCK))
        (value, _), grads = gradient(weights.params, weights, jax.random.fold_in(key, block), batch)
        share = batch.mask.sum() / jnp.maximum(rows.count, 1)
        return tree.step(total, share, (value, grads))

    start = (jnp.zeros(()), tree.zeros_like(weights.params))
    value, grads = jax.lax.fori_loop(0, (rows.count + BLOCK - 1) // BLOCK, add, start)
    return (value, weights.stats), grads


def steps_per_epoch(rows: Drawable, plan: Plan) -> Array | int:
    """How many batches one pass over the rows takes; 0 for no rows."""
    size = batch_size(rows, plan)
    if isinstance(rows.count, int):
        return -(-rows.count // size)
    return (rows.count + size - 1) // size


def num_steps(rows: Drawable, plan: Plan) -> Array | int:
    """How many steps the plan makes on these rows; 0 for no rows."""
    if plan.steps is None:
        return plan.epochs * steps_per_epoch(rows, plan)
    if isinstance(rows.count, int):
        return plan.steps if rows.count else 0
    return jnp.where(rows.count > 0, plan.steps, 0)


def batch_size(rows: Drawable, plan: Plan) -> int:
    """Rows per step: never more than the largest client has."""
    largest = max(rows.capacity, 1)
    return largest if plan.batch is None else min(plan.batch, largest)


def draw(key: Key, rows: Drawable, plan: Plan, step: Array) -> Batch:
    """The batch of one step: epochs are shuffled anew, and their rows are spread evenly over their batches.

    Batches of an epoch differ by one row at most. Were all full but the last, 762 rows in batches of 10 would end every
    epoch with a step on two rows, of the same size as the others: what all rows have in common (the background of images)
    is not balanced by other classes there, and that step alone undid what five epochs had learned (accuracy 0.94 before
    it, 0.73 after; spread evenly, 0.94). Every row counts once, and the number of steps is the same.
    """
    if plan.batch is None:
        return rows.all()
    per_epoch = jnp.maximum(steps_per_epoch(rows, plan), 1)
    place, least, rest = step % per_epoch, rows.count // per_epoch, rows.count % per_epoch
    index = jnp.arange(batch_size(rows, plan))
    position = place * least + jnp.minimum(place, rest) + index
    batch = rows.take(permute(jax.random.fold_in(key, step // per_epoch), position, rows.count))
    return batch._replace(mask=index < least + (place < rest))


def objective(model: Model) -> Loss:
    """The model's mean training loss, its own penalty included."""

    def loss(key: Key, weights: Weights, batch: Batch) -> tuple[Array, Tree]:
        outputs, stats = model.forward(key, weights, batch.x, batch.mask)
        return training_loss(model, weights, outputs, batch), stats

    return loss


def training_loss(model: Model, weights: Weights, outputs: Array, batch: Batch) -> Array:
    """The mean loss of a batch's outputs, rows counted by their weights, with the model's own penalty."""
    losses = model.loss(outputs, batch.y)
    counted = losses if batch.weight is None else batch.weight * losses
    return masked_mean(counted, batch.mask) + penalty(model, weights)


def near(model: Model, anchor: Weights, lam: Array | float) -> Loss:
    """The objective plus (lam / 2) |params - anchor|^2."""
    base = objective(model)

    def loss(key: Key, weights: Weights, batch: Batch) -> tuple[Array, Tree]:
        value, stats = base(key, weights, batch)
        return value + 0.5 * lam * tree.squared_norm(tree.subtract(weights.params, anchor.params)), stats

    return loss


def drawn_to(anchor: Weights, strength: Array | float) -> Callable[[Tree], Tree]:
    """The proximal step of (lam / 2) |params - anchor|^2 with strength lr lam: (params + strength anchor) / (1 + strength).

    After a gradient step on the objective alone it comes to a gradient step of lr / (1 + lr lam) on the sum of both, so that no
    strength makes steps diverge that would not diverge without the term.
    """
    return lambda params: tree.scale(1.0 / (1.0 + strength), tree.step(params, strength, anchor.params))


def per_example_gradients(model: Model, key: Key, weights: Weights, batch: Batch) -> Tree:
    """The gradient of each row's own loss (no penalty), stacked on axis 0; zero for rows that do not count."""

    def risk(params: Tree, x: Array, y: Array, mask: Array) -> Array:
        outputs, _ = model.forward(key, weights._replace(params=params), x[None], mask[None])
        return masked_mean(model.loss(outputs, y[None]), mask[None])

    def one(x: Array, y: Array, mask: Array) -> Tree:
        return jax.grad(risk)(weights.params, x, y, mask)

    return jax.vmap(one)(batch.x, batch.y, batch.mask)


def mean_loss(model: Model, predict: Callable[[Tree, Array], Array], served: Tree, rows: Rows) -> Array:
    """The mean loss of a served model on some rows, in evaluation mode; 0 for no rows."""
    batch = rows.all()
    return masked_mean(model.loss(outputs_of(predict, served, rows), batch.y), batch.mask)


def losses_of(model: Model, models: Weights, data: Data) -> Array:
    """The client's mean training loss under each of several models, in evaluation mode.

    A model that broke down has an infinite loss: NaN would be the least of all.
    """
    losses = jax.vmap(lambda one: mean_loss(model, model.apply, one, data.train))(models)
    return jnp.where(jnp.isnan(losses), jnp.inf, losses)


def clearly_better(model: Model, models: Weights, usual: Array, rows: Rows) -> Array:
    """The model that does best on the rows, if it beats the usual one by more than a standard error of the gain."""
    batch = rows.all()
    losses = jax.vmap(lambda one: model.loss(outputs_of(model.apply, one, rows), batch.y))(models)  # (models, rows)
    gains = losses[usual] - losses
    mean = jax.vmap(lambda gain: masked_mean(gain, batch.mask))(gains)
    number = jnp.asarray(rows.count)
    spread = jax.vmap(lambda gain, middle: masked_mean((gain - middle) ** 2, batch.mask))(gains, mean)
    error = jnp.sqrt(spread / jnp.maximum(number - 1, 1))
    best = jnp.where(jnp.isnan(mean), -jnp.inf, mean).argmax()
    return jnp.where((mean[best] > error[best]) & (number > 1), best, usual)


BLOCK, SMALL_BLOCK = 128, 32


def outputs_of(predict: Callable[[Tree, Array], Array], served: Tree, rows: Rows) -> Array:
    """Predictions for all rows, padded to the capacity; work grows with the client's own rows."""
    size = max(rows.capacity, 1)
    # A CPU pays for padded rows; an accelerator, and clients of equal size, do not.
    step = SMALL_BLOCK if jax.default_backend() == "cpu" and not isinstance(rows.count, int) else BLOCK
    if size <= step:
        return predict(served, rows.all().x)
    num_blocks = -(-size // step)
    shape = jax.eval_shape(lambda: predict(served, rows.take(jnp.arange(step)).x))
    empty = jnp.zeros((num_blocks * step, *shape.shape[1:]), shape.dtype)

    def fill(block: Array, outputs: Array) -> Array:
        part = predict(served, rows.take(block * step + jnp.arange(step)).x)
        return jax.lax.dynamic_update_slice_in_dim(outputs, part, block * step, axis=0)

    return jax.lax.fori_loop(0, (rows.count + step - 1) // step, fill, empty)[:size]


def masked_mean(values: Array, mask: Array) -> Array:
    """The mean of the values whose mask is true; 0 where there are none."""
    return jnp.where(mask, values, 0.0).sum() / jnp.maximum(mask.sum(), 1)


def penalty(model: Model, weights: Weights) -> Array | float:
    """The model's own penalty on its params; 0 where it has none."""
    return 0.0 if model.penalty is None else model.penalty(weights.params)


def of_params(loss: Loss) -> Callable[[Tree, Weights, Key, Batch], tuple[Array, Tree]]:
    """The loss as a function of the trainable part alone."""

    def by_params(params: Tree, weights: Weights, key: Key, batch: Batch) -> tuple[Array, Tree]:
        return loss(key, weights._replace(params=params), batch)

    return by_params
