"""What comes before personal models: a global model, and one round of everyone's gradients at it.

For small parts the global model is found by Newton's method on the sum of all objectives: a client sends its loss, its
gradient and its Hessian, d + d (d + 1) / 2 + 1 numbers. Otherwise it is FedAvg's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.aggregate.points import cleaned, rows_by_uid, usable
from plures.errors import BadValue, require
from plures.method import Method, then
from plures.methods.fedavg import fedavg
from plures.methods.penalized.vector import PartVector, Rest, downhill, local_solver, make_part, proximal_step
from plures.registry import OptionGroup
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights

NEWTON_ROUNDS = 6  # for a part that is solved exactly after rounds of FedAvg for the rest


@dataclass(frozen=True)
class LocalProblem(OptionGroup):
    """The options of what a client solves in a round, and of the rounds before.

    Args:
        rho: Weight of the proximal term that holds a client near its aim; None takes it from the median client's
            largest curvature at the global model. It changes how fast models are found, not which.
        local: How a client solves its problem: "newton" exactly, "sgd" by the plan's steps, "auto" is Newton up to 200
            params.
        part: Part of the model that is personal, such as "head"; all else is trained by FedAvg in the ``warm`` rounds
            and then stays. None is the whole model.
        warm: Rounds for the global model that everything starts from; 0 starts from a random one.
        ridge: Every f_i has ridge / 2 |x|^2 added, so that a client with one class has a finite optimum.
    """

    rho: float | None = None
    local: str = "auto"
    part: str | None = None
    warm: int = 6
    ridge: float = 1e-6

    def solver(self, model: Model, plan: Plan) -> ProximalSolver:
        """How a client solves its problem; what cannot be is refused."""
        if self.rho is not None and not 0 < self.rho < float("inf"):
            raise BadValue("rho", self.rho, "a positive number (or None to choose one)")
        require(self.warm >= 0, "warm", self.warm, "0 or more rounds")
        part = make_part(model, self.part, self.ridge)
        return ProximalSolver(part, local_solver(self.local, part), plan)


@dataclass(frozen=True, eq=False)
class ProximalSolver:
    """How a client finds  argmin_x  f(x) + (weight / 2) |x - aim|^2,  x the vector of a part of its model."""

    part: PartVector
    local: str
    plan: Plan

    @property
    def exact(self) -> bool:
        """Whether it finds the optimum, and knows it."""
        return self.local == "newton" and self.part.convex

    def solve(self, key: Key, rest: Rest, data: Data, aim: Array, weight: Array | float) -> tuple[Array, Info]:
        """The optimum, or the plan's steps towards it, from ``aim`` on."""
        return proximal_step(self.part, self.local, self.plan, key, rest, data, aim, weight)


class GradientSurvey(NamedTuple):
    """The global model, what clients said at it, and what the server concluded."""

    shared: Weights
    gradients: Array  # (N, d)
    curvatures: Array  # (N,) the largest of each
    heard: Array  # (N,)
    concluded: Tree


class LocalGradient(NamedTuple):
    """A client's gradient at the global model and its largest curvature there."""

    gradient: Array
    curvature: Array


def survey_gradients(part: PartVector, plan: Plan, conclude: Callable[[Array, Array], Tree]) -> Method:
    """One round in which clients send gradient and curvature; the server makes conclude(gradients, heard) of them."""

    def start(key: Key, num_clients: int) -> GradientSurvey:
        gradients, heard = jnp.zeros((num_clients, part.size)), jnp.zeros(num_clients, bool)
        shape = jax.eval_shape(conclude, gradients, heard)
        concluded = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        return GradientSurvey(part.model.init(key), gradients, jnp.zeros(num_clients), heard, concluded)

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[LocalGradient, Tree, Info]:
        upload = LocalGradient(part.gradient(key, shared, data), part.largest_curvature(key, shared, data))
        return upload, private, {}

    def merge(server: GradientSurvey, uploads: LocalGradient, weights: Array, uids: Array) -> GradientSurvey:
        counts = usable(uploads, weights)
        sent = rows_by_uid(cleaned(uploads, counts), uids, len(server.heard))
        heard = jnp.zeros_like(server.heard).at[uids].set(counts)
        return GradientSurvey(server.shared, sent.gradient, sent.curvature, heard, conclude(sent.gradient, heard))

    return _serve_shared(part, plan, start, train, merge)


def median_curvature(survey: GradientSurvey) -> Array:
    """The median of the largest curvatures of the clients that were heard."""
    found = jnp.nanmedian(jnp.where(survey.heard, survey.curvatures, jnp.nan))
    return jnp.where(found > 0, found, 1.0)


def survey_at(survey: GradientSurvey, weights: Weights) -> GradientSurvey:
    """Gradients are to be asked for at these weights."""
    return survey._replace(shared=weights)


def start_from_global(
    main: Method, solver: ProximalSolver, rounds: int, hand_over: Callable[..., Tree] = survey_at
) -> Method:
    """``main`` after ``rounds`` rounds for the global model, which ``hand_over(fresh, weights)`` gives it."""
    part, exact = solver.part, solver.exact
    if rounds and exact:
        number = rounds if part.whole else NEWTON_ROUNDS
        newton = newton_rounds(part, solver.plan)
        main = then(newton, number, main, hand_over=_hand_over("shared", hand_over), everyone=True)
    if rounds and not (exact and part.whole):
        base = fedavg(part.model, plan=solver.plan, averaging=Averaging(weighting="uniform"))
        main = then(base, rounds, main, hand_over=_hand_over("weights", _search_from if exact else hand_over))
    return main


def _hand_over(name: str, take: Callable[..., Tree]) -> Callable[[Key, Tree, Tree], Tree]:
    return lambda key, fresh, before: take(fresh, getattr(before, name))


def _search_from(fresh: NewtonSearch, shared: Weights) -> NewtonSearch:
    return fresh._replace(shared=shared, best=shared)


class NewtonSearch(NamedTuple):
    """The model that is tried next, the best one so far, and what is known there."""

    shared: Weights
    best: Weights
    loss: Array
    gradient: Array
    curvature: Array  # (d, d)
    damping: Array


class NewtonUpload(NamedTuple):
    """A client's loss, gradient and the upper triangle of its Hessian."""

    loss: Array
    gradient: Array
    curvature: Array


def newton_rounds(part: PartVector, plan: Plan) -> Method:
    """Newton's method on the mean of all objectives, damped where a step went up."""
    upper = np.triu_indices(part.size)

    def start(key: Key, num_clients: int) -> NewtonSearch:
        first, size, none = part.model.init(key), part.size, jnp.zeros(())
        return NewtonSearch(first, first, none + jnp.inf, jnp.zeros(size), jnp.zeros((size, size)), none)

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[NewtonUpload, Tree, Info]:
        risk, here = part.risk(key, part.rest(shared), data.train.all()), part.vector(shared)
        loss, gradient = jax.value_and_grad(risk)(here)
        return NewtonUpload(loss, gradient, jax.hessian(risk)(here)[upper]), private, {"loss": loss}

    def merge(server: NewtonSearch, uploads: NewtonUpload, weights: Array, uids: Array) -> NewtonSearch:
        counts = usable(uploads, weights)
        mean = tree.weighted_mean(cleaned(uploads, counts), counts.astype(jnp.float32))
        curvature = jnp.zeros((part.size, part.size)).at[upper].set(mean.curvature)
        curvature = curvature + jnp.triu(curvature, 1).T
        tried = NewtonSearch(server.shared, server.shared, mean.loss, mean.gradient, curvature, server.damping / 8)
        harder = jnp.maximum(8 * server.damping, 1e-3 * jnp.diagonal(server.curvature).mean())
        # The last steps change the loss by less than float32 can tell.
        better = mean.loss <= server.loss + 1e-6 * jnp.abs(mean.loss)
        known = tree.choose(better, tried, server._replace(damping=harder))
        step = downhill(known.curvature + known.damping * jnp.eye(part.size), known.gradient)
        after = known._replace(shared=part.put(part.vector(known.best) + step, part.rest(known.best)))
        return tree.choose(counts.any(), after, server)

    return _serve_shared(part, plan, start, train, merge)


def _serve_shared(part: PartVector, plan: Plan, start: Callable, train: Callable, merge: Callable) -> Method:
    """A method that sends its shared model and serves it."""
    return Method(
        model=part.model,
        start=start,
        send=lambda server, uid: server.shared,
        train=train,
        merge=merge,
        serve=lambda key, shared, private, data: shared,
        predict=part.model.apply,
        plan=plan,
    )
