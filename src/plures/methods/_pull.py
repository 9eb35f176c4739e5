"""The options of the penalized family, and how a client's personal model goes down under a pull.

    w_i <- w_i - alpha ( grad L_i(w_i) + lam (w_i - w_g) )          K times

For convex losses of few numbers these are full-batch steps with alpha = 1 / (L + lam) and K from ``plures.envelope``;
otherwise they are the plan's own steps with the pull added to every gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import averaging, check_weighting
from plures.envelope import Bounds, client_step, envelope, num_inner, server_step
from plures.errors import BadValue, UnknownChoice
from plures.local import begin, descend, num_steps, objective
from plures.methods._degree import FLATTEST, Facts, is_exact
from plures.methods._part import POWER_STEPS, Part, make_part
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights

LAMS = ("auto", "own", "valid", "valid-own")
ABSENT = ("sampled", "stale", "unbiased")
LOCALS = ("auto", "steps", "sgd")
SPACING = 4.0  # between the lams of a path
FULL = Plan(epochs=1, batch=None, lr=1.0)
NEARLY = 1e-6  # how far a newcomer goes towards its best model


class Steps(NamedTuple):
    """A client's lam, the pace gamma lam that goes with it, its step size and how many steps it makes.

    ``fresh`` is how many it makes as a newcomer.
    """

    lam: Array
    pace: Array
    alpha: Array
    inner: Array
    fresh: Array
    known: Array  # whether the step size fits the client's own curvature


@dataclass(frozen=True, kw_only=True)
class How:
    """The options of the family: see ``fedclup``."""

    lam: float | str = "auto"
    gamma: float | str = "auto"
    alpha: float | None = None
    inner: int | str = "auto"
    local: str = "auto"
    absent: str = "sampled"
    weighting: str = "uniform"
    aggregate: str = "mean"
    num_lams: int = 5
    newcomer_epochs: int = 20

    def __post_init__(self) -> None:
        check_lam(self.lam)
        check_weighting(self.weighting)
        for name, value, known in (("absent", self.absent, ABSENT), ("local", self.local, LOCALS)):
            if value not in known:
                raise UnknownChoice(name, value, known)
        _check_step("gamma", self.gamma, ("auto", "mean"))
        if self.alpha is not None and not 0 < self.alpha < math.inf:
            raise BadValue("alpha", self.alpha, "a positive number (or None for 1 / (L + lam))")
        if isinstance(self.inner, str):
            if self.inner != "auto":
                raise BadValue("inner", self.inner, '"auto" or a number of steps, 1 or more')
        elif self.inner < 1:
            raise BadValue("inner", self.inner, '"auto" or a number of steps, 1 or more')
        if self.num_lams < 2:
            raise BadValue("num_lams", self.num_lams, "2 or more")
        if self.newcomer_epochs < 0:
            raise BadValue("newcomer_epochs", self.newcomer_epochs, "0 or more")
        if averaging(self.aggregate, self.weighting).robust and (self.absent != "sampled" or self.lam == "own"):
            raise BadValue("aggregate", self.aggregate, '"mean" unless absent is "sampled" and lam is one for all')

    @property
    def lanes(self) -> int:
        """How many lams are tried side by side."""
        return self.num_lams if self.lam in ("valid", "valid-own") else 1


def check_lam(lam: float | str) -> None:
    """Refuse what says no degree of collaboration."""
    wanted = f"0 or more, or one of {', '.join(LAMS)}"
    if isinstance(lam, str):
        if lam not in LAMS:
            raise BadValue("lam", lam, wanted)
    elif not 0 <= lam < math.inf:  # not a number is not at least 0
        raise BadValue("lam", lam, wanted)


def _check_step(name: str, value: float | str, words: tuple[str, ...]) -> None:
    fine = value in words if isinstance(value, str) else 0 < value < math.inf
    if not fine:
        raise BadValue(name, value, f"a positive number, or one of {', '.join(words)}")


@dataclass(frozen=True, eq=False)
class Descent:
    """How personal models go down: K full-batch steps of size alpha, or the plan's own steps with the pull added."""

    model: Model
    plan: Plan
    how: How
    exact: bool

    @staticmethod
    def of(model: Model, plan: Plan, how: How) -> Descent:
        """By steps of known size where the options and the model allow."""
        if how.local == "steps" and not make_part(model, None, 0.0).convex:
            raise BadValue(
                "local", how.local, '"auto" or "sgd": nothing bounds the curvature of a model that is not convex'
            )
        exact = is_exact(make_part(model, None, 0.0)) if how.local == "auto" else how.local == "steps"
        for name, given in (("alpha", how.alpha), ("inner", None if how.inner == "auto" else how.inner)):
            if given is not None and not exact:
                raise BadValue(name, given, 'left out: clients train by the plan here (local="sgd")')
        return Descent(model, plan, how, exact)

    @cached_property
    def part(self) -> Part:
        """All of the model as a vector."""
        return make_part(self.model, None, 0.0)

    def steps(self, bounds: Bounds, lam: Array, known: Array) -> Steps:
        """What curvature says of the step size and the number of steps, where the user did not."""
        alpha = jnp.full_like(lam, self.how.alpha) if self.how.alpha is not None else client_step(bounds, lam)
        if isinstance(self.how.inner, str):
            safe = jnp.maximum(lam, FLATTEST * bounds.most)  # without a pull there is no round to wait for
            inner = num_inner(bounds, safe, gamma_of(self.how, bounds, safe), xp=jnp)
        else:
            inner = jnp.full_like(lam, self.how.inner)
        shrink = (bounds.most - bounds.least) / (bounds.most + lam)
        fresh = jnp.ceil(math.log(NEARLY) / jnp.log(jnp.clip(shrink, 1e-30, 1 - FLATTEST)))
        relaxed = self.exact and self.how.gamma == "auto"
        over = 1 + lam / bounds.most if relaxed else jnp.ones_like(lam)
        return Steps(
            lam, over, alpha, inner.astype(jnp.int32), fresh.astype(jnp.int32), jnp.broadcast_to(known, lam.shape)
        )

    def own(self, key: Key, own: Weights, shared: Weights, steps: Steps, data: Data) -> tuple[Weights, Info]:
        """The personal model after a round's steps."""
        plan = FULL if self.exact else self.plan
        if self.exact:
            total = jnp.where(jnp.asarray(data.train.count) > 0, steps.inner, 0)
        else:
            total = jnp.asarray(num_steps(data.train, plan))
        return self._down(key, own, shared, steps, data, plan, total)

    def fresh(self, key: Key, first: Weights, shared: Weights, steps: Steps, data: Data, trained: Array) -> Weights:
        """A newcomer's personal model; one that has trained keeps its own."""
        plan = FULL if self.exact else replace(self.plan, epochs=self.how.newcomer_epochs, steps=None)
        total = jnp.where(jnp.asarray(data.train.count) > 0, steps.fresh, 0) if self.exact else None
        total = jnp.asarray(num_steps(data.train, plan)) if total is None else total
        return self._down(key, first, shared, steps, data, plan, jnp.where(trained, 0, total))[0]

    def _down(
        self, key: Key, first: Weights, shared: Weights, steps: Steps, data: Data, plan: Plan, total: Array
    ) -> tuple[Weights, Info]:
        # A step longer than 1 / lam would go past the shared model: it is shortened.
        size = (
            self._fitting(key, first, steps, data)
            if self.exact
            else jnp.minimum(1.0, 1.0 / jnp.maximum(plan.lr * steps.lam, 1e-30))
        )

        def adjust(grads: Tree, params: Tree) -> Tree:
            pull = tree.scale(steps.lam, tree.subtract(params, shared.params))
            return tree.scale(size, tree.add(grads, pull))

        state = begin(first, plan)
        done = descend(key, state, data.train, plan, objective(self.model), stop=total, adjust=adjust)
        made = total.astype(jnp.float32)
        return done.weights, {"loss": done.loss / jnp.maximum(made, 1), "steps": made}

    def _fitting(self, key: Key, first: Weights, steps: Steps, data: Data) -> Array:
        """The step size; a client whose curvature nobody knows looks at it first."""
        turns = jnp.where(steps.known, 0, POWER_STEPS)
        most = 1.1 * self.part.steepness(key, first, data, turns=turns)
        return jnp.where(steps.known, steps.alpha, jnp.minimum(steps.alpha, 1 / (most + steps.lam)))


def gamma_of(how: How, bounds: Bounds, lam: Array) -> Array:
    """The server's step: that of the envelope, 1 / lam for plain averaging, or what the user says."""
    if isinstance(how.gamma, str):
        return server_step(bounds, lam) if how.gamma == "auto" else 1.0 / lam
    return jnp.full_like(lam, how.gamma)


def refusal(how: How, name: str, exact: bool, facts: Facts) -> str | None:
    """Why a run cannot go on from these statistics: none were had, or a step of the user's diverges."""
    if facts.heard < 1:
        wanted = f"lam={how.lam!r}" if isinstance(how.lam, str) else "automatic steps"
        return (
            f"{name}: {wanted} needs statistics, and no client could give any (no training rows, or numbers that are not "
            "finite); give lam as a number and local='sgd'"
        )
    if how.lam in ("auto", "own") and facts.spare < 1:
        return (
            f"{name}: lam={how.lam!r} needs statistics, and no client has more rows than its model has numbers, so noise cannot be "
            "told from signal; give lam as a number, or lam='valid'"
        )
    if not exact:
        return None
    lam, most = top_lam(how, facts), float(facts.bounds.most)
    if how.alpha is not None and how.alpha >= 2 / (most + lam):
        return (
            f"{name}: client steps of alpha = {how.alpha:g} diverge: the loss curves by up to L = {most:.3g}, so alpha must be "
            f"below 2 / (L + lam) = {2 / (most + lam):.3g}; {1 / (most + lam):.3g} would do"
        )
    if not isinstance(how.gamma, str):
        return too_long(name, "server steps of gamma", "gamma", how.gamma, facts.bounds, lam)
    return None


def too_long(name: str, what: str, option: str, given: float, bounds: Bounds, lam: float) -> str | None:
    """Why a step on the envelope diverges, if it does."""
    steep = float(envelope(bounds, lam).most) if lam > 0 else 0.0
    if given * steep < 2:
        return None
    return (
        f"{name}: {what} = {given:g} diverge: {option} must be below 2 / L_g = {2 / steep:.3g} at lam = {lam:.3g}; "
        f"{1 / steep:.3g} would do"
    )


def top_lam(how: How, facts: Facts) -> float:
    """The largest lam that any client will have."""
    lam = float(facts.lam) if isinstance(how.lam, str) else how.lam
    most = float(facts.factor.max()) if how.lam == "own" else 1.0
    return lam * most * SPACING ** ((how.lanes - 1) / 2)
