"""L2GD: a coin decides between a step on the own loss and a step towards the mean of all models.

    min over w_1 .. w_m   sum_i p_i ( L_i(w_i) + (lam / 2) |w_i - mean|^2 )

    tails (1 - p)   w_i  <-  w_i - alpha / (1 - p) grad L_i(w_i)
    heads (p)       w_i  <-  w_i - alpha lam / p (w_i - mean)

On average a step is one of gradient descent. Models travel only when heads follow tails: while heads last the mean
stays, so a round is a run of tails of random length, one exchange, and a run of heads. With a constant alpha it
ends in a neighborhood of the optimum, not at it. The problem is FedCLUP's with w_g minimized out.

Hanzely, Richtarik: Federated Learning of a Mixture of Global and Local Models, arXiv 2002.05516; their alpha is m
times ours. p = lam / (L + lam) and alpha = 1 / (2 max(L / (1 - p), lam / p)) are theirs too; we keep p in [0.02,
0.95] and runs below ten times their mean. ``coin="fixed"`` puts runs of the mean length in place of random ones. In
a partial cohort the mean is that of those who are there, and the others wait.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.averaging import Aggregation
from plures.errors import BadValue, require, require_choice
from plures.local import num_steps
from plures.method import Method, Report
from plures.methods.penalized.descent import TRAINS_ALONE, Penalty, PenaltySettings, PersonalDescent, Steps
from plures.methods.penalized.rounds import (
    PenalizedMethod,
    PenaltyServer,
    PenaltyUpload,
    PersonalModels,
    findings_of,
    has_rows,
    warn_of_divergence,
)
from plures.moreau import Bounds
from plures.registry import method
from plures.types import Data, Info, Key, Model, Plan, Weights

COINS = ("random", "fixed")
LEAST_P, MOST_P = 0.02, 0.95
LONGEST = 10  # times the mean: where a run of tails is cut off


class CoinAnswer(NamedTuple):
    """The mean of all models, and how many heads come now."""

    shared: Weights  # (G, ...)
    heads: Array  # (G,)


@method(title="L2GD", paper="arXiv:2002.05516", degree="lam", limits=[TRAINS_ALONE])
def l2gd(
    model: Model,
    *,
    plan: Plan = Plan(),
    lam: float | str = "auto",
    p: float | None = None,
    alpha: float | None = None,
    coin: str = "random",
    local: str = "auto",
    weighting: str = "uniform",
) -> Method:
    """Personal models by loopless local gradient descent: coin tosses between the own loss and the mean.

    Where clients train by the plan (``local="sgd"``, or models that are large or not convex) a run of tails is the plan,
    and one step towards the mean makes up for all of it.

    Args:
        plan: How clients train locally where they do so by SGD; full-batch steps do not read it.
        lam: Strength of the penalty on distances from the mean, in the unit of curvature: 0 trains alone; "auto" is found
            from a few rounds of statistics.
        p: Chance of a step towards the mean, in (0, 1); None is lam / (L + lam), kept in [0.02, 0.95].
        alpha: Size of an average step; None is 1 / (2 max(L / (1 - p), lam / p)), and four times that diverges.
        coin: "random" tosses, or "fixed": runs of the mean length.
        local: How clients train: "steps" (full-batch steps; convex models only), "sgd" (the steps of the plan) or "auto"
            ("steps" for convex models of up to 200 numbers).
        weighting: What a client counts for in the mean: "examples", its training rows, or "uniform", the same for every
            client that has any.
    """
    require(p is None or 0 < p < 1, "p", p, "a number in (0, 1) (or None for lam / (L + lam))")
    require(alpha is None or 0 < alpha < float("inf"), "alpha", alpha, "a positive number (or None to choose one)")
    require_choice("coin", coin, COINS)
    if isinstance(lam, str) and lam != "auto":
        raise BadValue("lam", lam, '0 or more, or "auto": all clients toss one coin, so they share one lam')
    settings = PenaltySettings(
        penalty=Penalty(lam=lam, local=local), aggregation=Aggregation(weighting=weighting), gamma="mean"
    )
    descent = PersonalDescent.of(model, plan, settings)
    for name, value in {"p": p, "alpha": alpha}.items():
        fine = descent.exact or value is None
        require(fine, name, value, 'left out: clients train by the plan here (local="sgd")')
    coin_ = Coin(descent, p, alpha, coin)
    base = PenalizedMethod(descent=descent, name="l2gd", check=coin_.check).build()

    def send(server: PenaltyServer, uid: Array) -> Array:
        return coin_.tails(server)

    def train(
        key: Key, tails: Array, own: PersonalModels, data: Data
    ) -> tuple[PenaltyUpload, PersonalModels, Info]:
        def lane(mine: Weights, steps: Steps, length: Array) -> tuple[Weights, Info]:
            return coin_.alone(key, mine, steps, length, data)

        after, info = jax.vmap(lane)(own.weights, own.steps, tails)
        told = {name: values.mean() for name, values in info.items()}
        return PenaltyUpload(after, ()), own._replace(weights=after, trained=has_rows(data)), told

    def answer(server: PenaltyServer, uid: Array) -> CoinAnswer:
        return CoinAnswer(server.shared, coin_.heads(server))

    def settle(key: Key, answer: CoinAnswer, own: PersonalModels, data: Data) -> PersonalModels:
        left = coin_.left(own.steps, data, answer.heads)

        def draw_near(mine: Array, mean: Array) -> Array:
            return mean + tree.along(left, mine) * (mine - mean)

        params = jax.tree.map(draw_near, own.weights.params, answer.shared.params)
        return own._replace(weights=Weights(params, own.weights.stats))

    def report(server: PenaltyServer) -> Report:
        chance = float(coin_.chance(server.lam, server.facts.bounds.most)[0])
        runs = f"; p {chance:.3g}: on average {1 / chance:.3g} steps alone, then {1 / (1 - chance):.3g} towards the mean"
        first, *more = findings_of(descent, server, None)
        warnings = warn_of_divergence(descent, "l2gd", server)
        return Report(warnings, [first + (runs if descent.exact else ""), *more])

    views = replace(base.views, report=report)
    return replace(base, send=send, train=train, answer=answer, settle=settle, views=views)


class Coin(NamedTuple):
    """The coin of a run: its chance of heads, and what either side does."""

    descent: PersonalDescent
    p: float | None
    alpha: float | None
    coin: str

    def chance(self, lam: Array, most: Array) -> Array:
        """p, of the best rate unless it is given."""
        return jnp.full_like(lam, self.p) if self.p is not None else jnp.clip(lam / (most + lam), LEAST_P, MOST_P)

    def check(self, lam: float, bounds: Bounds) -> str | None:
        """Why alpha diverges, if it does: either step must be less than 2 over its curvature."""
        chance = float(self.chance(jnp.asarray(lam, jnp.float32), jnp.asarray(bounds.most)))
        limit = 2 / max(float(bounds.most) / (1 - chance), lam / chance)
        if self.alpha is None or self.alpha < limit:
            return None
        return (
            f"l2gd: steps of alpha = {self.alpha:g} diverge: alpha must be below 2 / max(L / (1 - p), lam / p) = {limit:.3g} "
            f"with p = {chance:.3g}; {limit / 4:.3g} would do"
        )

    def tails(self, server: PenaltyServer) -> Array:
        """(G,) how many steps on their own loss all clients make in this round."""
        return self._run(server, self.chance(server.lam, server.facts.bounds.most), 0)

    def heads(self, server: PenaltyServer) -> Array:
        """(G,) how many steps towards the mean."""
        return self._run(server, 1 - self.chance(server.lam, server.facts.bounds.most), 1)

    def _run(self, server: PenaltyServer, end: Array, which: int) -> Array:
        """The length of a run that ends with this chance after every toss."""
        mean = jnp.maximum(jnp.round(1 / end), 1)
        if self.coin == "fixed":
            return mean.astype(jnp.int32)
        draw = jax.random.uniform(jax.random.fold_in(server.key, which), end.shape, minval=1e-7)
        length = jnp.floor(jnp.log(draw) / jnp.log(1 - end)) + 1
        return jnp.clip(length, 1, LONGEST * mean).astype(jnp.int32)

    def alone(self, key: Key, mine: Weights, steps: Steps, length: Array, data: Data) -> tuple[Weights, Info]:
        """A run of tails."""
        free = steps._replace(lam=jnp.zeros_like(steps.lam), inner=length, alpha=self._size(steps)[0])
        return self.descent.train(key, mine, mine, free, data)

    def left(self, steps: Steps, data: Data, heads: Array) -> Array:
        """(G,) what is left of the distance from the mean after a run of heads."""
        if self.descent.exact:
            return (1 - self._size(steps)[1]) ** heads
        made = jnp.asarray(num_steps(data.train, self.descent.plan))
        return 1 - jnp.minimum(self.descent.plan.lr * steps.lam * made, 1.0)

    def _size(self, steps: Steps) -> tuple[Array, Array]:
        """alpha / (1 - p) and alpha lam / p."""
        most = 1 / steps.alpha - steps.lam
        chance = self.chance(steps.lam, most)
        best = 0.5 / jnp.maximum(most / (1 - chance), steps.lam / chance)
        alpha = best if self.alpha is None else jnp.full_like(best, self.alpha)
        return alpha / (1 - chance), alpha * steps.lam / chance
