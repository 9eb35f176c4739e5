"""What comes before personal models: a global model, and one round of everyone's gradients at it.

For small parts the global model is found by Newton's method on the sum of all objectives: a client sends its loss, its
gradient and its Hessian, d + d (d + 1) / 2 + 1 numbers. Otherwise it is FedAvg's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.aggregate.averaging import Averaging
from plures.aggregate.points import counted, rows_by_uid
from plures.errors import require, require_choice
from plures.local import objective, sgd
from plures.method import Method, then
from plures.methods.fedavg import fedavg
from plures.methods.penalized.vector import NEWTON_MOST, PartVector, Rest, downhill, make_part, newton
from plures.registry import OptionGroup
from plures.types import Batch, Data, Info, Key, Model, Plan, Tree, Weights

LOCALS = ("auto", "newton", "sgd")
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
        fine = self.rho is None or 0 < self.rho < float("inf")
        require(fine, "rho", self.rho, "a positive number (or None to choose one)")
        require(self.warm >= 0, "warm", self.warm, "0 or more rounds")
        require_choice("local", self.local, LOCALS)
        part = make_part(model, self.part, self.ridge)
        small = "newton" if part.size <= NEWTON_MOST else "sgd"
        return ProximalSolver(part, small if self.local == "auto" else self.local, plan)


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
        """The optimum by Newton's method, or the plan's steps towards it, from ``aim`` on.

        A client without rows stays at ``aim``.
        """
        if self.local == "sgd":
            return self._by_steps(key, rest, data, aim, weight)
        risk = self.part.risk(key, rest, data.train.all())
        found, steps = newton(lambda x: risk(x) + 0.5 * weight * jnp.square(x - aim).sum(), aim)
        some = jnp.asarray(data.train.count) > 0
        found = jnp.where(some, found, aim)
        return found, {"loss": risk(found), "steps": jnp.where(some, steps, 0.0)}

    def _by_steps(self, key: Key, rest: Rest, data: Data, aim: Array, weight: Array | float) -> tuple[Array, Info]:
        part, base = self.part, objective(self.part.model)

        def loss(key: Key, weights: Weights, batch: Batch) -> tuple[Array, Tree]:
            value, stats = base(key, weights, batch)
            x = part.vector(weights)
            return value + 0.5 * weight * jnp.square(x - aim).sum() + 0.5 * part.ridge * x @ x, stats

        def mine(grads: Tree, params: Tree) -> Tree:
            leaves, structure = jax.tree.flatten(grads)
            kept = [leaf if own else jnp.zeros_like(leaf) for leaf, own in zip(leaves, part.chosen, strict=True)]
            return jax.tree.unflatten(structure, kept)

        after, info = sgd(key, part.put(aim, rest), data, self.plan, loss, adjust=mine)
        return part.vector(after), info


class ProximalClient(NamedTuple):
    """What a client keeps: the weights around its part, and the weight of its proximal term."""

    rest: Rest
    weight: Array


class ProximalOffer(NamedTuple):
    """What a client needs to join and to be served; ``extra`` is for newcomers."""

    rest: Rest
    weight: Array
    own: Array
    known: Array
    extra: Tree


def proximal_method(
    solver: ProximalSolver,
    *,
    aim: Callable[[Any, Array], Array],
    weight: Callable[[Any, Array], Array],
    extra: Callable[[Any, Array], Tree],
    newcomer: Callable[[Key, ProximalOffer, Data], Array],
    **parts: Any,
) -> Method:
    """A method whose clients solve their problem near an aim that the server sends, and return the step from there.

    The server's table has a row per client: ``own``, what it is served, and ``heard``. ``aim(server, row)`` and
    ``weight(server, row)`` are those of its proximal term; ``extra(server, uid)`` is what a newcomer needs, and
    ``newcomer(key, offer, data)`` its vector. ``parts`` are what else the method consists of.
    """
    model = solver.part.model

    def row(server: Any, uid: Array) -> Array:
        return jnp.minimum(uid, len(server.heard) - 1)

    def offer(server: Any, uid: Array) -> ProximalOffer:
        index, known = row(server, uid), uid < len(server.heard)
        return ProximalOffer(server.rest, weight(server, index), server.own[index], known, extra(server, uid))

    def train(key: Key, aim: Array, own: ProximalClient, data: Data) -> tuple[Array, ProximalClient, Info]:
        found, info = solver.solve(key, own.rest, data, aim, own.weight)
        return found - aim, own, info

    def serve(key: Key, offer: ProximalOffer, own: ProximalClient, data: Data) -> Weights:
        return solver.part.put(jnp.where(offer.known, offer.own, newcomer(key, offer, data)), offer.rest)

    return Method(
        model=model,
        send=lambda server, uid: aim(server, row(server, uid)),
        offer=offer,
        join=lambda key, offer: ProximalClient(offer.rest, offer.weight),
        train=train,
        serve=serve,
        predict=model.apply,
        plan=solver.plan,
        **parts,
    )


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
        counts, clean = counted(uploads, weights)
        sent = rows_by_uid(clean, uids, len(server.heard))
        heard = jnp.zeros_like(server.heard).at[uids].set(counts)
        return GradientSurvey(server.shared, sent.gradient, sent.curvature, heard, conclude(sent.gradient, heard))

    return _serve_shared(part, plan, start, train, merge)


def after_survey(
    main: Method,
    solver: ProximalSolver,
    warm: int,
    conclude: Callable[[Array, Array], Tree],
    hand_over: Callable[[Key, Any, GradientSurvey], Tree],
) -> Method:
    """``main`` after ``warm`` rounds for the global model, and the one of gradients there, which is handed over."""
    survey = survey_gradients(solver.part, solver.plan, conclude)
    return start_from_global(then(survey, 1, main, hand_over=hand_over, everyone=True), solver, warm)


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
        number, searched = rounds if part.whole else NEWTON_ROUNDS, newton_rounds(part, solver.plan)
        main = then(searched, number, main, hand_over=_hand_over("shared", hand_over), everyone=True)
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
        told = {"loss": loss, "steps": jnp.ones(())}
        return NewtonUpload(loss, gradient, jax.hessian(risk)(here)[upper]), private, told

    def merge(server: NewtonSearch, uploads: NewtonUpload, weights: Array, uids: Array) -> NewtonSearch:
        counts, clean = counted(uploads, weights)
        mean = tree.weighted_mean(clean, counts.astype(jnp.float32))
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
