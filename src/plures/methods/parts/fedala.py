"""FedALA: local training starts from a mixture of the shared and the last local model, learned number by number.

    start   u_k   =  theta_k + W_k * (theta - theta_k)       in the top of the model; theta below it
    share   W_k  <-  clip(W_k - rate grad L_k(u_k) * (theta - theta_k), 0, 1),   W_k = 1 at first
    client  theta_k  =  u_k after local SGD on L_k
    server  theta   <-  mean of the theta_k, as FedAvg

``*`` is by element. W_k and the top of theta_k stay with the client. W_k is learned on a random ``share`` of the client's rows,
for ``first_epochs`` the first time there is something to choose (its second round), and for one epoch every later time. Served
is u_k for the current theta; a client that never trained gets theta. Batch-norm statistics are the shared ones.

Zhang et al.: FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023. arXiv 2212.01197. The paper
learns W_k the first time until the loss settles, and copies of the published code on a random stretch of rows rather than random rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.errors import require, require_choice, require_least
from plures.keys import permute
from plures.local import draw, objective, sgd, steps_per_epoch
from plures.method import Method
from plures.methods.fedavg import fedavg
from plures.models.parts import Parting
from plures.registry import Limit, method
from plures.types import Batch, Data, Info, Key, Model, Plan, Rows, Weights


class FedalaState(NamedTuple):
    """What a client keeps: the top of its last local model, how much of the shared one to take, rounds it trained."""

    top: list[Array]
    mix: list[Array]
    visits: Array


@method(
    title="FedALA",
    paper="arXiv:2212.01197",
    tags=("parts",),
    limits=[Limit("shares that never move: plain FedAvg", {"rate": 0.0}, same_served_as="fedavg")],
)
def fedala(
    model: Model,
    *,
    plan: Plan = Plan(),
    adapt: str | None = None,
    rate: float = 1.0,
    share: float = 0.8,
    first_epochs: int = 10,
    averaging: Averaging = Averaging(),
) -> Method:
    """FedAvg's model mixed with the client's last local one before every training and when served.

    Args:
        plan: How clients train locally; its batches also learn the mixture.
        adapt: The part of the model that is mixed, by name, or "all"; None is its head, or all where it has none.
        rate: Step size of the mixture's shares; 0 is plain FedAvg.
        share: Share of the client's rows, in (0, 1], that the mixture is learned on.
        first_epochs: Epochs for the mixture the first time there is something to choose; later it is one.
    """
    require(0 <= rate < float("inf"), "rate", rate, "0 or more")
    require(0 < share <= 1, "share", share, "a number in (0, 1]")
    require_least(0, first_epochs=first_epochs)
    base = fedavg(model, plan=plan, averaging=averaging)
    part, loss = top_of(model, adapt), objective(model)

    def join(key: Key, first: Weights) -> FedalaState:
        top = part.own(first)
        return FedalaState(top, [jnp.ones_like(leaf) for leaf in top], jnp.zeros((), jnp.int32))

    def start(shared: Weights, own: FedalaState, mix: list[Array]) -> Weights:
        return part.filled(shared, blend(own.top, part.own(shared), mix))

    def learn_mix(key: Key, shared: Weights, own: FedalaState, data: Data) -> tuple[list[Array], Array]:
        key_some, key_rows, key_model = jax.random.split(key, 3)
        rows, gaps = some_of(key_some, data.train, share), tree.subtract(part.own(shared), own.top)
        epochs = jnp.where(own.visits > 1, 1, jnp.where(own.visits > 0, first_epochs, 0))
        total = epochs * steps_per_epoch(rows, plan)

        def step(index: Array, mix: list[Array]) -> list[Array]:
            def risk(top: list[Array]) -> Array:
                batch, key_now = draw(key_rows, rows, plan, index), jax.random.fold_in(key_model, index)
                return loss(key_now, part.filled(shared, top), batch)[0]

            grads = jax.grad(risk)(part.own(start(shared, own, mix)))
            moves = zip(mix, grads, gaps, strict=True)
            return [jnp.clip(one - rate * grad * gap, 0.0, 1.0) for one, grad, gap in moves]

        return jax.lax.fori_loop(0, total, step, own.mix), total

    def train(key: Key, shared: Weights, own: FedalaState, data: Data) -> tuple[Weights, FedalaState, Info]:
        key_mix, key_local = jax.random.split(key)
        mix, steps = learn_mix(key_mix, shared, own, data)
        local, info = sgd(key_local, start(shared, own, mix), data, plan, loss)
        told = {**info, "steps": info["steps"] + steps, "global_share": mean_of(mix)}
        return tree.subtract(local, shared), FedalaState(part.own(local), mix, own.visits + 1), told

    def serve(key: Key, shared: Weights, own: FedalaState, data: Data) -> Weights:
        return start(shared, own, learn_mix(key, shared, own, data)[0])

    return replace(base, join=join, train=train, serve=serve)


def top_of(model: Model, adapt: str | None) -> Parting:
    """The params that are mixed; refuses a part the model lacks."""
    shape = jax.eval_shape(model.init, jax.random.key(0))
    patterns = {"all": ("params/*",), **model.parts}
    found = {name: tree.matches(Weights(shape.params), wanted) for name, wanted in patterns.items()}
    there = {name: leaves for name, leaves in found.items() if any(leaves)}
    wanted = adapt or ("head" if "head" in there else "all")
    require_choice("part of this model", wanted, there)
    return Parting(shape, (*there[wanted], *(False for _ in jax.tree.leaves(shape.stats))))


def blend(own: list[Array], shared: list[Array], mix: list[Array]) -> list[Array]:
    """own + mix * (shared - own), exactly the shared or the own number where the mix is 1 or 0."""
    return [(1 - one) * left + one * right for left, right, one in zip(own, shared, mix, strict=True)]


def mean_of(mix: list[Array]) -> Array:
    """The mean over all numbers."""
    return jnp.concatenate([leaf.ravel() for leaf in mix]).mean()


@dataclass(frozen=True)
class RandomRows:
    """``count`` rows of a client, drawn at random without repetition."""

    rows: Rows
    key: Key
    count: Array | int

    @property
    def capacity(self) -> int:
        """A static bound on the count of any client."""
        return self.rows.capacity

    def take(self, index: Array) -> Batch:
        """The rows at ``index``."""
        kept = jnp.minimum(index, jnp.maximum(self.count - 1, 0))
        return self.rows.take(permute(self.key, kept, self.rows.count))._replace(mask=index < self.count)

    def all(self) -> Batch:
        """Every row, padded to ``capacity``."""
        return self.take(jnp.arange(max(self.capacity, 1)))


def some_of(key: Key, rows: Rows, share: float) -> RandomRows:
    """A random share of the rows, rounded up; in whole thousandths, so that rounding does not depend on types."""
    return RandomRows(rows, key, (rows.count * round(1000 * share) + 999) // 1000)
