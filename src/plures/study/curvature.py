"""How long a step may be, from the curvature of the training loss where training starts.

    L    the largest eigenvalue of the Hessian, by power iteration:  v  <-  H v / |H v|,   L = |H v|
    lr   1 / (L m),  m how far the optimizer goes for a step size of 1, in gradients, over a few steps of one gradient
         (1 for gradient descent, about 4 with momentum 0.9 in its first ten steps, sqrt(n) / |g| for Adam)

Gradient descent on a quadratic diverges from 2 / L on. Networks curve less or more away from their start, and steps on few
rows see larger curvatures than all rows: this is where a search begins, not where it ends.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.data import Federation
from plures.keys import Purpose, derive, root
from plures.local import objective
from plures.types import Batch, Key, Model, Plan, Tree

MOST_ROWS = 2000
ITERATIONS = 10
STEPS = 10


def curvature_step(model: Model, plan: Plan, federation: Federation, *, seed: int = 0) -> float | None:
    """1 / (L m) on training rows of the federation; None where the loss has no curvature there, or no finite one."""
    batch = sample_of(federation)
    if not len(batch.mask):
        return None
    key = derive(root(seed), Purpose.START)
    curvature, size, reach = (float(one) for one in _measured(model, plan, key, batch))
    found = 1.0 / (curvature * reach / size) if curvature > 0 and size > 0 and reach > 0 else math.nan
    return found if math.isfinite(found) else None


def loss_at_start(model: Model, federation: Federation, *, seed: int = 0) -> float:
    """The mean training loss before any training, on the rows of ``sample_of``; NaN without any."""
    batch, key = sample_of(federation), derive(root(seed), Purpose.START)
    return float(objective(model)(key, model.init(key), batch)[0]) if len(batch.mask) else math.nan


def sample_of(federation: Federation) -> Batch:
    """All training rows of clients spread evenly over the uids, as many clients as have about ``MOST_ROWS`` rows together."""
    order = np.argsort(federation.uid)
    order = order[federation.count[order, 0] > 0]
    total = int(federation.count[order, 0].sum())
    number = len(order) if total <= MOST_ROWS else max(1, len(order) * MOST_ROWS // total)
    chosen = order[np.arange(number) * len(order) // max(number, 1)]
    parts = [federation.start[one, 0] + np.arange(federation.count[one, 0]) for one in chosen]
    index = np.concatenate(parts).astype(np.int64)[: 2 * MOST_ROWS] if parts else np.zeros(0, np.int64)
    x, y = federation.x[index], federation.y[index]
    return Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(len(index), bool))


def _measured(model: Model, plan: Plan, key: Key, batch: Batch) -> tuple[Array, Array, Array]:
    """The curvature at the start, the length of the gradient, and how far the optimizer goes with a step size of 1."""

    def measure(key: Key, batch: Batch) -> tuple[Array, Array, Array]:
        weights, loss = model.init(key), objective(model)

        def gradient(params: Tree) -> Tree:
            return jax.grad(lambda now: loss(key, weights._replace(params=now), batch)[0])(params)

        def improve(_: Array, now: tuple[Tree, Array]) -> tuple[Tree, Array]:
            image = jax.jvp(gradient, (weights.params,), (now[0],))[1]
            length = jnp.sqrt(tree.squared_norm(image))
            return tree.scale(1.0 / jnp.maximum(length, 1e-30), image), length

        first = _random_like(jax.random.fold_in(key, 1), weights.params)
        _, curvature = jax.lax.fori_loop(0, ITERATIONS, improve, (first, jnp.zeros(())))
        start = gradient(weights.params)
        return curvature, jnp.sqrt(tree.squared_norm(start)), _reach(plan, weights.params, start)

    found: tuple[Array, Array, Array] = measure(key, batch)
    return found


def _random_like(key: Key, params: Tree) -> Tree:
    """A random direction of length 1."""
    leaves, structure = jax.tree.flatten(params)
    drawn = [
        jax.random.normal(jax.random.fold_in(key, index), leaf.shape, leaf.dtype)
        for index, leaf in enumerate(leaves)
    ]
    found = jax.tree.unflatten(structure, drawn)
    return tree.scale(1.0 / jnp.sqrt(tree.squared_norm(found)), found)


def _reach(plan: Plan, params: Tree, gradient: Tree) -> Array:
    """How far the optimizer goes in a step, on average over a few steps of one gradient, with a step size of 1."""
    optimizer = plan.optimizer(1.0)
    memory, moved = optimizer.init(params), tree.zeros_like(params)
    for _ in range(STEPS):
        change, memory = optimizer.update(gradient, memory, params)
        moved = tree.add(moved, change)
    return jnp.sqrt(tree.squared_norm(moved)) / STEPS
