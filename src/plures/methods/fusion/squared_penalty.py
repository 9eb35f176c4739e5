"""Squared penalty: personal models held together by the squares of all their distances.

    min_x  sum_i f_i(x_i)  +  gamma sum_(i<j) |x_i - x_j|^2

    server   y_i  =   m + (s_i - m) / (1 + 2 N gamma / rho),   m = mean of all s_i
    client   x_i  =   argmin  f_i(x) + (rho / 2) |x - (2 y_i - s_i)|^2
    server   s_i <-   s_i + x_i - y_i

Models come near each other, and are never equal: it finds no clusters. Since sum_(i<j) |x_i - x_j|^2 = N sum_i |x_i -
mean|^2, it is the mixture problem of L2GD (Hanzely, Richtarik, arXiv 2002.05516) with lambda = 2 N gamma.

Armacki, Bajovic, Jakovetic, Kar: Personalized Federated Learning via Convex Clustering, arXiv 2202.00718, problem (4),
whose gamma is 1 / (2 N) of this one. The splitting is ours: it has no step size, and its fixed
points are the same for any cohort.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from plures.errors import require
from plures.method import Method, Report, Views
from plures.methods.fusion.splitting import SplitTable, Splitting, residual, start_at
from plures.methods.fusion.warm_start import (
    GradientSurvey,
    LocalProblem,
    ProximalOffer,
    after_survey,
    median_curvature,
    start_from_global,
)
from plures.registry import Limit, method
from plures.types import Data, Key, Model, Plan, Tree, Weights

UNSETTLED = 1e-2  # a relative residual above this is worth telling


class MeanModel(NamedTuple):
    """Everyone's mean model, and how many they are."""

    model: Array
    number: Array


@method(
    title="Squared penalty",
    paper="arXiv:2202.00718",
    degree="gamma",
    limits=[
        Limit(
            "no penalty, no proximal term: everybody trains alone",
            {"gamma": 0.0, "rho": 1e-9, "local": "sgd", "warm": 0, "ridge": 0.0},
            same_served_as="local_only",
        )
    ],
)
def squared_penalty(
    model: Model, *, plan: Plan = Plan(), gamma: float = 0.01, problem: LocalProblem = LocalProblem()
) -> Method:
    """Personal models near everyone's mean, by the squares of their distances.

    A newcomer minimizes its own objective + gamma N |x - mean|^2.

    Args:
        plan: How clients train locally where their problem is not solved exactly, and in FedAvg's rounds before.
        gamma: Penalty of every pair of clients, so with more clients it is stronger; 0 trains alone, a huge one is one
            model for all.
        problem: What a client solves in a round, and the rounds before.
    """
    require(0 <= gamma < float("inf"), "gamma", gamma, "0 or more")
    solver = problem.solver(model, plan)

    def penalty(anchors: Array, rho: Array, memory: Tree) -> tuple[Array, Tree]:
        middle = anchors.mean(0)
        return middle + (anchors - middle) / (1 + 2 * len(anchors) * gamma / rho), memory

    def newcomer(key: Key, offer: ProximalOffer, data: Data) -> Array:
        middle, number = offer.extra
        return solver.solve(key, offer.rest, data, middle, 2 * gamma * number)[0]

    def begin(fresh: SplitTable, weights: Weights) -> SplitTable:
        return start_at(solver.part, fresh, weights)

    def hand_over(key: Key, fresh: SplitTable, before: GradientSurvey) -> SplitTable:
        return begin(fresh, before.shared)._replace(rho=0.2 * median_curvature(before), heard=before.heard)

    splitting = Splitting(
        solver=solver,
        penalty=penalty,
        memory=lambda number: (),
        extra=lambda server, uid: MeanModel(server.own.mean(0), jnp.asarray(float(len(server.own)))),
        newcomer=newcomer,
        rho=1.0 if problem.rho is None else problem.rho,
    )
    main = splitting.method(views=Views(report=report), num_clusters=1)
    if problem.rho is not None:
        return start_from_global(main, solver, problem.warm, begin)
    return after_survey(main, solver, problem.warm, lambda gradients, heard: (), hand_over)


def report(server: SplitTable) -> Report:
    """A warning where more rounds would help."""
    apart = residual(server)
    if apart < UNSETTLED:
        return Report()
    said = f"squared penalty: fixed-point residual {apart:.2g} after {int(server.rounds)} rounds; more would help"
    return Report(warnings=[said])
