"""The options of the penalized family, and how a client's personal model descends under the proximal term.

    w_i <- w_i - alpha ( grad L_i(w_i) + lam (w_i - w_g) )          K times

For convex losses of few numbers these are full-batch steps with alpha = 1 / (L + lam) and K from ``plures.moreau``;
otherwise they are the plan's own steps with the proximal gradient lam (w_i - w_g) added to every gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.averaging import Aggregation
from plures.errors import BadValue, require, require_choice, require_least
from plures.local import begin, descend, num_steps, objective
from plures.methods.penalized.statistics import FLATTEST, PenaltyFacts, is_exact
from plures.methods.penalized.vector import POWER_STEPS, PartVector, make_part
from plures.moreau import Bounds, client_step, envelope, num_inner, server_step
from plures.registry import Limit, OptionGroup
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights

LAMS = ("auto", "own", "valid", "valid-own")
ABSENT = ("sampled", "stale", "unbiased")
LOCALS = ("auto", "steps", "sgd")
GAMMAS = ("auto", "mean")
SPACING = 4.0  # between the lams of a path
FULL = Plan(epochs=1, batch=None, lr=1.0)
TRAINS_ALONE = Limit(
    "no proximal term: the own model trains alone",
    {"lam": 0.0, "local": "sgd"},
    same_served_as="local_only",
    its_options={"newcomer_epochs": 20},
)
NEARLY = 1e-6  # how far a newcomer goes towards its best model


@dataclass(frozen=True, kw_only=True)
class Penalty(OptionGroup):
    """The options that FedCLUP and its relatives share.

    Args:
        lam: Strength of the proximal term, in the unit of curvature: 0 trains alone, infinity is one model for all. Or
            "auto" (one for all, from a few rounds of statistics), "own" (the same, lam / n for a client of n rows),
            "valid" (several side by side around the automatic one, chosen by the mean loss on valid rows) or
            "valid-own" (as "valid", but a client whose own valid rows clearly say otherwise leaves that choice).
        alpha: Size of a client's full-batch step; None is 1 / (L + lam), L the largest curvature of a loss. Larger
            than 2 / (L + lam) diverges and is refused.
        inner: Number of a client's full-batch steps per round; "auto" is the least with which rounds keep half
            of their rate, by a formula of curvature and lam.
        local: How clients train: "steps" (``inner`` full-batch steps of size ``alpha``; convex models only), "sgd"
            (the steps of the plan) or "auto" ("steps" for convex models of up to 200 numbers).
        absent: What a partial cohort stands for: "sampled" (those who are there), "stale" (everyone's last
            upload, kept by the server) or "unbiased" (right on average over cohorts).
    """

    lam: float | str = "auto"
    alpha: float | None = None
    inner: int | str = "auto"
    local: str = "auto"
    absent: str = "sampled"

    def __post_init__(self) -> None:
        _check_number("lam", self.lam, LAMS, least="0 or more", zero=True)
        require_choice("absent", self.absent, ABSENT)
        require_choice("local", self.local, LOCALS)
        fine = self.alpha is None or 0 < self.alpha < math.inf
        require(fine, "alpha", self.alpha, "a positive number (or None for 1 / (L + lam))")
        fine = self.inner == "auto" if isinstance(self.inner, str) else self.inner >= 1
        require(fine, "inner", self.inner, '"auto" or a number of steps, 1 or more')


def _check_number(name: str, value: float | str, words: tuple[str, ...], *, least: str, zero: bool = False) -> None:
    """Refuse what is neither a finite positive number (or 0) nor one of the words."""
    fine = value in words if isinstance(value, str) else 0 < value < math.inf or (zero and value == 0)
    require(fine, name, value, f"{least}, or one of {', '.join(words)}")


@dataclass(frozen=True, kw_only=True)
class PenaltySettings:
    """All settings of a method of the family; those that a method does not offer keep their defaults."""

    penalty: Penalty = field(default_factory=Penalty)
    aggregation: Aggregation = field(default_factory=lambda: Aggregation(weighting="uniform"))
    gamma: float | str = "auto"
    num_lams: int = 5
    newcomer_epochs: int = 20

    def __post_init__(self) -> None:
        _check_number("gamma", self.gamma, GAMMAS, least="a positive number")
        require_least(2, num_lams=self.num_lams)
        require_least(0, newcomer_epochs=self.newcomer_epochs)
        if self.aggregation.robust and (self.penalty.absent != "sampled" or self.lam == "own"):
            wanted = '"mean" unless absent is "sampled" and lam is one for all'
            raise BadValue("aggregate", self.aggregation.aggregate, wanted)

    @property
    def lam(self) -> float | str:
        """The strength, or where it comes from."""
        return self.penalty.lam

    @property
    def lanes(self) -> int:
        """How many lams are tried side by side."""
        return self.num_lams if self.lam in ("valid", "valid-own") else 1


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


@dataclass(frozen=True, eq=False)
class PersonalDescent:
    """How personal models descend: ``exact``, by K full-batch steps of size alpha, or by the plan's own steps."""

    model: Model
    plan: Plan
    settings: PenaltySettings
    exact: bool

    @staticmethod
    def of(model: Model, plan: Plan, settings: PenaltySettings) -> PersonalDescent:
        """By steps of known size where the options and the model allow."""
        penalty, part = settings.penalty, make_part(model, None, 0.0)
        if penalty.local == "steps" and not part.convex:
            wanted = '"auto" or "sgd": nothing bounds the curvature of a model that is not convex'
            raise BadValue("local", penalty.local, wanted)
        exact = is_exact(part) if penalty.local == "auto" else penalty.local == "steps"
        inner = None if penalty.inner == "auto" else penalty.inner
        for name, value in {"alpha": penalty.alpha, "inner": inner}.items():
            require(value is None or exact, name, value, 'left out: clients train by the plan here (local="sgd")')
        return PersonalDescent(model, plan, settings, exact)

    @cached_property
    def part(self) -> PartVector:
        """All of the model as a vector."""
        return make_part(self.model, None, 0.0)

    def steps(self, bounds: Bounds, lam: Array, known: Array) -> Steps:
        """What curvature says of the step size and the number of steps, where the user did not."""
        penalty, gamma = self.settings.penalty, self.settings.gamma
        alpha = jnp.full_like(lam, penalty.alpha) if penalty.alpha is not None else client_step(bounds, lam)
        if isinstance(penalty.inner, str):
            safe = jnp.maximum(lam, FLATTEST * bounds.most)  # without a proximal term there is no round to wait for
            inner = num_inner(bounds, safe, _gamma(gamma, bounds, safe), xp=jnp)
        else:
            inner = jnp.full_like(lam, penalty.inner)
        shrink = (bounds.most - bounds.least) / (bounds.most + lam)
        fresh = jnp.ceil(math.log(NEARLY) / jnp.log(jnp.clip(shrink, 1e-30, 1 - FLATTEST)))
        over = 1 + lam / bounds.most if self.exact and gamma == "auto" else jnp.ones_like(lam)
        counts = inner.astype(jnp.int32), fresh.astype(jnp.int32)
        return Steps(lam, over, alpha, *counts, jnp.broadcast_to(known, lam.shape))

    def train(self, key: Key, own: Weights, shared: Weights, steps: Steps, data: Data) -> tuple[Weights, Info]:
        """The personal model after a round's steps."""
        plan = FULL if self.exact else self.plan
        return self._descend(key, own, shared, steps, data, plan, self._total(steps.inner, data, plan))

    def train_newcomer(
        self, key: Key, first: Weights, shared: Weights, steps: Steps, data: Data, trained: Array
    ) -> Weights:
        """A newcomer's personal model; one that has trained keeps its own."""
        plan = FULL if self.exact else replace(self.plan, epochs=self.settings.newcomer_epochs, steps=None)
        total = jnp.where(trained, 0, self._total(steps.fresh, data, plan))
        return self._descend(key, first, shared, steps, data, plan, total)[0]

    def _total(self, exact_steps: Array, data: Data, plan: Plan) -> Array:
        """How many steps are made; none without rows."""
        if self.exact:
            return jnp.where(jnp.asarray(data.train.count) > 0, exact_steps, 0)
        return jnp.asarray(num_steps(data.train, plan))

    def _descend(
        self, key: Key, first: Weights, shared: Weights, steps: Steps, data: Data, plan: Plan, total: Array
    ) -> tuple[Weights, Info]:
        if self.exact:
            size = self._step_size(key, first, steps, data)
        else:  # A step longer than 1 / lam would go past the shared model: it is shortened.
            size = jnp.minimum(1.0, 1.0 / jnp.maximum(plan.lr * steps.lam, 1e-30))

        def adjust(grads: Tree, params: Tree) -> Tree:
            proximal = tree.scale(steps.lam, tree.subtract(params, shared.params))
            return tree.scale(size, tree.add(grads, proximal))

        state = begin(first, plan)
        done = descend(key, state, data.train, plan, objective(self.model), stop=total, adjust=adjust)
        made = total.astype(jnp.float32)
        return done.weights, {"loss": done.loss / jnp.maximum(made, 1), "steps": made}

    def _step_size(self, key: Key, first: Weights, steps: Steps, data: Data) -> Array:
        """alpha; a client whose curvature nobody knows looks at it first."""
        iterations = jnp.where(steps.known, 0, POWER_STEPS)
        most = 1.1 * self.part.largest_curvature(key, first, data, iterations=iterations)
        return jnp.where(steps.known, steps.alpha, jnp.minimum(steps.alpha, 1 / (most + steps.lam)))


def _gamma(gamma: float | str, bounds: Bounds, lam: Array) -> Array:
    """The server's step: that of the envelope, 1 / lam for plain averaging, or what the user says."""
    if isinstance(gamma, str):
        return server_step(bounds, lam) if gamma == "auto" else 1.0 / lam
    return jnp.full_like(lam, gamma)


def refusal(descent: PersonalDescent, name: str, facts: PenaltyFacts) -> str | None:
    """Why a run cannot go on from these statistics: none were had, or a step of the user's diverges."""
    settings, alpha = descent.settings, descent.settings.penalty.alpha
    if facts.heard < 1:
        wanted = f"lam={settings.lam!r}" if isinstance(settings.lam, str) else "automatic steps"
        return (
            f"{name}: {wanted} needs statistics, and no client could give any (no training rows, or numbers that are not "
            "finite); give lam as a number and local='sgd'"
        )
    if settings.lam in ("auto", "own") and facts.spare < 1:
        return (
            f"{name}: lam={settings.lam!r} needs statistics, and no client has more rows than its model has numbers, so noise cannot be "
            "told from signal; give lam as a number, or lam='valid'"
        )
    if not descent.exact:
        return None
    lam, most = largest_lam(settings, facts), float(facts.bounds.most)
    if alpha is not None and alpha >= 2 / (most + lam):
        return (
            f"{name}: client steps of alpha = {alpha:g} diverge: the loss curves by up to L = {most:.3g}, so alpha must be "
            f"below 2 / (L + lam) = {2 / (most + lam):.3g}; {1 / (most + lam):.3g} would do"
        )
    if not isinstance(settings.gamma, str):
        return step_refusal(name, "server steps of gamma", "gamma", settings.gamma, facts.bounds, lam)
    return None


def step_refusal(name: str, what: str, option: str, size: float, bounds: Bounds, lam: float) -> str | None:
    """Why a step on the envelope diverges, if it does."""
    steep = float(envelope(bounds, lam).most) if lam > 0 else 0.0
    if size * steep < 2:
        return None
    return (
        f"{name}: {what} = {size:g} diverge: {option} must be below 2 / L_g = {2 / steep:.3g} at lam = {lam:.3g}; "
        f"{1 / steep:.3g} would do"
    )


def largest_lam(settings: PenaltySettings, facts: PenaltyFacts) -> float:
    """The largest lam that any client will have."""
    lam = float(facts.lam) if isinstance(settings.lam, str) else settings.lam
    most = float(facts.factor.max()) if settings.lam == "own" else 1.0
    return lam * most * SPACING ** ((settings.lanes - 1) / 2)
