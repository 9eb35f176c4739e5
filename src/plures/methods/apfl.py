"""APFL: every client mixes a model of its own with the shared one, by a share that it learns.

    shared  w          as FedAvg
    mixed   u_k     =  alpha_k v_k + (1 - alpha_k) w                                  (served)
    own     v_k    <-  v_k - lr alpha_k grad L_k(u_k)                                 the gradient of L_k(u_k) by v_k
    share   alpha_k <- clip(alpha_k - alpha_lr <v_k - w, grad L_k(u_k)>, 0, 1)        the gradient of L_k(u_k) by alpha_k

In local training w is the client's copy, which moves beside v_k on the same batches; when served it is the server's.
alpha_k moves once per round, by the first batch. A client without rows is served w.

Batch norm: a running variance of a mixture is not the mixture of two running variances. So the statistics are those that
the mixed model had in its own training passes, and stay with the client. At alpha_k = 0 the mixed model is w, with w's.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, arXiv 2003.13461, Algorithm 1. Copies of the
published code mix two gradients for the step of alpha_k and draw it towards 0; here it is as the formula says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.errors import require
from plures.local import Descent, begin, draw, num_steps, objective, of_params
from plures.method import Method
from plures.methods.fedavg import fedavg
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights, untraced


class OwnAndShare(NamedTuple):
    """A client's own model, with the statistics of its mixed one, and its share in that."""

    weights: Weights
    alpha: Array


class ApflDescent(NamedTuple):
    """Where local training stands: the copy of the shared model, the own one, and the share of the latter."""

    shared: Descent
    own: Descent
    alpha: Array


@method(
    title="APFL",
    paper="arXiv:2003.13461",
    degree="alpha",
    limits=[
        Limit("nothing of its own: plain FedAvg", {"alpha": 0.0, "adaptive": False}, same_served_as="fedavg"),
        Limit("nothing shared: training alone", {"alpha": 1.0, "adaptive": False}, same_served_as="local_only"),
    ],
)
def apfl(
    model: Model,
    *,
    plan: Plan = Plan(),
    alpha: float = 0.5,
    adaptive: bool = True,
    alpha_lr: float | None = None,
    averaging: Averaging = Averaging(),
) -> Method:
    """A mixture of FedAvg's model and an own one, whose share starts at ``alpha`` and adapts.

    Args:
        plan: How clients train locally, the copy of the shared model and the own one alike.
        alpha: Share of the own model in the mixture at first: 0 is FedAvg's model, 1 the own one alone.
        adaptive: Whether the share moves, once per round, along its gradient; else it stays at ``alpha``.
        alpha_lr: Step size of the share; None is the plan's.
    """
    require(not untraced(alpha) or 0 <= alpha <= 1, "alpha", alpha, "a number in [0, 1]")
    fine = alpha_lr is None or 0 <= alpha_lr < float("inf")
    require(fine, "alpha_lr", alpha_lr, "0 or more (or None for the plan's step size)")
    base = fedavg(model, plan=plan, averaging=averaging)
    gradient = jax.value_and_grad(of_params(objective(model)), has_aux=True)
    optimizer, pace = plan.optimizer(plan.lr), plan.lr if alpha_lr is None else alpha_lr

    def train(key: Key, shared: Weights, own: OwnAndShare, data: Data) -> tuple[Weights, OwnAndShare, Info]:
        key_rows, key_model = jax.random.split(key)
        total = num_steps(data.train, plan)

        def step(index: Array, now: ApflDescent) -> ApflDescent:
            batch, key_now = draw(key_rows, data.train, plan, index), jax.random.fold_in(key_model, index)
            copy, mine = now.shared.weights, now.own.weights
            at_shared = gradient(copy.params, copy, key_now, batch)
            at_mixed = gradient(mix(now.alpha, mine, copy), mine, key_now, batch)
            push = tree.dot(tree.subtract(mine.params, copy.params), at_mixed[1])
            share = jnp.clip(now.alpha - pace * push, 0.0, 1.0) if adaptive else now.alpha
            return ApflDescent(
                _step(optimizer, now.shared, at_shared, 1.0),
                _step(optimizer, now.own, at_mixed, now.alpha),
                jnp.where(index == 0, share, now.alpha),
            )

        first = ApflDescent(begin(shared, plan), begin(own.weights, plan), own.alpha)
        last = jax.lax.fori_loop(0, total, step, first)
        share = jnp.where(jnp.asarray(data.train.count) > 0, last.alpha, 0.0)
        loss = last.shared.loss / jnp.maximum(total, 1)
        info = {"loss": loss, "steps": jnp.asarray(2 * total, jnp.float32), "alpha": share}
        return tree.subtract(last.shared.weights, shared), OwnAndShare(last.own.weights, share), info

    def serve(key: Key, shared: Weights, own: OwnAndShare, data: Data) -> Weights:
        stats = tree.choose(own.alpha > 0, own.weights.stats, shared.stats)
        return Weights(mix(own.alpha, own.weights, shared), stats)

    return replace(
        base,
        join=lambda key, first: OwnAndShare(first, jnp.asarray(alpha, jnp.float32)),
        train=train,
        serve=serve,
        views=replace(base.views, facts=lambda offer, own, served: {"alpha": own.alpha}),
    )


def mix(alpha: Array, own: Weights, shared: Weights) -> Tree:
    """alpha times the own params plus 1 - alpha times the shared ones."""
    return tree.add(tree.scale(alpha, own.params), tree.scale(1 - alpha, shared.params))


def _step(optimizer: optax.GradientTransformation, now: Descent, found: Tree, factor: Array | float) -> Descent:
    """A step along ``factor`` times the gradient found, with the statistics of the pass it was found in."""
    (value, stats), grads = found
    updates, state = optimizer.update(tree.scale(factor, grads), now.optimizer, now.weights.params)
    return Descent(Weights(optax.apply_updates(now.weights.params, updates), stats), state, now.loss + value)
