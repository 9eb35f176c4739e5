"""Per-FedAvg: a shared model from which one gradient step on a client's own rows leads far.

    shared  w    minimizes  sum_k p_k F_k(w),      F_k(w)  =  L_k(u),      u  =  w - a grad L_k(w)
    served  u    after ``steps`` such steps on all of the client's training rows

    grad F_k(w)  =  (I - a H_k(w)) grad L_k(u)                      H_k the Hessian of L_k

Clients descend F_k as FedAvg's clients descend L_k. Of the Hessian, ``variant`` takes

    first_order    nothing:  grad L_k(u)
    hessian_free   a difference:  H_k(w) g  ~  (grad L_k(w + delta g) - grad L_k(w - delta g)) / (2 delta)
    exact          the product H_k(w) g itself, by differentiating the gradient

with g = grad L_k(u). The gradients at w, at u and the Hessian are taken on three batches drawn independently. Batch-norm
statistics of the shared model are those of the passes at w.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning: A Meta-Learning Approach, NeurIPS 2020. arXiv 2002.07948.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.errors import BadValue, require, require_choice, require_least
from plures.local import Descent, Loss, begin, draw, num_steps, objective, sgd
from plures.method import Method
from plures.methods.fedavg import fedavg
from plures.registry import Limit, method
from plures.types import Batch, Data, Info, Key, Model, Plan, Tree, Weights, untraced

GRADIENTS = {"first_order": 2, "hessian_free": 4, "exact": 4}
"""The variants, and about how many gradients one step of each costs."""


@method(
    title="Per-FedAvg",
    paper="arXiv:2002.07948",
    degree="inner_lr",
    limits=[Limit("no step to look ahead to: plain FedAvg", {"inner_lr": 0.0}, same_served_as="fedavg")],
)
def per_fedavg(
    model: Model,
    *,
    plan: Plan = Plan(),
    inner_lr: float | None = None,
    variant: str = "hessian_free",
    delta: float = 1e-3,
    steps: int = 1,
    averaging: Averaging = Averaging(),
) -> Method:
    """A shared model trained to be adapted by a gradient step, and served after ``steps`` of them.

    Args:
        plan: How clients descend the loss after a step, the objective of the shared model.
        inner_lr: Size of that step; None is the plan's step size, 0 is plain FedAvg.
        variant: How the Hessian in the gradient is treated: "first_order" (left out; two gradients a step),
            "hessian_free" (by a difference of gradients; four) or "exact" (by differentiating twice; about four).
        delta: Length of that difference over that of the direction, for "hessian_free".
        steps: Full-batch steps a client makes before it is served; 0 serves the shared model.
    """
    rate = plan.lr if inner_lr is None else inner_lr
    if untraced(rate) and not 0 <= rate < float("inf"):
        raise BadValue("inner_lr", rate, "0 or more (or None for the plan's step size)")
    require_choice("variant of per_fedavg", variant, GRADIENTS)
    require(0 < delta < float("inf"), "delta", delta, "a positive number")
    require_least(0, steps=steps)
    base = fedavg(model, plan=plan, averaging=averaging)
    ahead, loss, optimizer = LookAhead(rate, variant, delta), objective(model), plan.optimizer(plan.lr)

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[Weights, Tree, Info]:
        *keys_rows, key_model = jax.random.split(key, 4)
        total = num_steps(data.train, plan)

        def step(index: Array, now: Descent) -> Descent:
            batches = [draw(one, data.train, plan, index) for one in keys_rows]
            value, stats, grads = ahead.gradient(loss, jax.random.fold_in(key_model, index), now.weights, batches)
            updates, state = optimizer.update(grads, now.optimizer, now.weights.params)
            params = optax.apply_updates(now.weights.params, updates)
            return Descent(Weights(params, stats), state, now.loss + value)

        last = jax.lax.fori_loop(0, total, step, begin(shared, plan))
        made = jnp.asarray(GRADIENTS[variant] * total, jnp.float32)
        info = {"loss": last.loss / jnp.maximum(total, 1), "steps": made}
        return tree.subtract(last.weights, shared), private, info

    def serve(key: Key, shared: Weights, private: Tree, data: Data) -> Weights:
        if untraced(rate) and rate == 0:
            return shared
        return sgd(key, shared, data, Plan(steps=steps, batch=None, lr=rate), loss)[0]

    return replace(base, train=train, serve=serve)


@dataclass(frozen=True)
class LookAhead:
    """The loss after a step of size ``rate``, and how the Hessian in its gradient is treated."""

    rate: float
    variant: str
    delta: float

    def gradient(self, loss: Loss, key: Key, weights: Weights, batches: list[Batch]) -> tuple[Array, Tree, Tree]:
        """The loss after the step, the statistics of the pass at ``weights``, and the gradient by its params.

        ``batches`` are those of the step, of the loss after it, and of the Hessian.
        """
        keys = jax.random.split(key, 3)

        def gradient_at(params: Tree, index: int) -> Any:
            def value(params: Tree) -> tuple[Array, Tree]:
                return loss(keys[index], weights._replace(params=params), batches[index])

            return jax.value_and_grad(value, has_aux=True)(params)

        def curve(along: Tree) -> Tree:
            """The Hessian times a direction."""
            here = weights.params
            if self.variant == "exact":
                return jax.vjp(lambda params: gradient_at(params, 2)[1], here)[1](along)[0]
            up, down = (gradient_at(tree.step(here, sign * self.delta, along), 2)[1] for sign in (1, -1))
            return tree.scale(0.5 / self.delta, tree.subtract(up, down))

        (_, stats), first = gradient_at(weights.params, 0)
        (value, _), after = gradient_at(tree.step(weights.params, -self.rate, first), 1)
        if self.variant == "first_order":
            return value, stats, after
        return value, stats, tree.step(after, -self.rate, curve(after))
