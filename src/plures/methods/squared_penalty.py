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

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from plures.errors import BadValue
from plures.methods._douglas_rachford import Offer, Split, begun, check_rho, douglas_rachford, residual
from plures.methods._part import local_solver, make_part, proximal_step
from plures.methods._warm import Facts, median_steepness, statistics, warmed, with_model
from plures.registry import Limit, method
from plures.types import Data, Key, Method, Model, Plan, Tree, Weights, then

UNSETTLED = 1e-2  # a relative residual above this is worth telling


class Mean(NamedTuple):
    """Everyone's mean model, and how many they are."""

    model: Array
    number: Array


@method(
    title="Squared penalty",
    paper="arXiv:2202.00718",
    degree="gamma",
    limits=[
        Limit(
            "no penalty, no pull: everybody trains alone",
            {"gamma": 0.0, "rho": 1e-9, "local": "sgd", "warm": 0, "ridge": 0.0},
            same_served_as="local_only",
        )
    ],
)
def squared_penalty(
    model: Model,
    *,
    plan: Plan = Plan(),
    gamma: float = 0.01,
    rho: float | None = None,
    local: str = "auto",
    part: str | None = None,
    warm: int = 6,
    ridge: float = 1e-6,
) -> Method:
    """Personal models near everyone's mean, by the squares of their distances.

    ``gamma`` is per pair: with more clients it pulls harder. ``rho``, ``local``, ``part``, ``warm`` and ``ridge`` are
    those of ``convex_clustering``. A newcomer minimizes its own objective + gamma N |x - mean|^2.
    """
    if not 0 <= gamma < float("inf"):
        raise BadValue("gamma", gamma, "0 or more")
    if warm < 0:
        raise BadValue("warm", warm, "0 or more rounds")
    check_rho(rho)
    what = make_part(model, part, ridge)
    solver = local_solver(local, what)

    def penalty(anchors: Array, weight: Array, memory: Tree) -> tuple[Array, Tree]:
        middle = anchors.mean(0)
        return middle + (anchors - middle) / (1 + 2 * len(anchors) * gamma / weight), memory

    def extra(server: Split, uid: Array) -> Mean:
        return Mean(server.own.mean(0), jnp.asarray(float(len(server.own))))

    def newcomer(key: Key, given: Offer, data: Data) -> Array:
        middle, number = given.extra
        return proximal_step(what, solver, plan, key, given.rest, data, middle, 2 * gamma * number)[0]

    def notes(server: Split) -> list[str]:
        apart = residual(server)
        if apart < UNSETTLED:
            return []
        return [
            f"squared penalty: fixed-point residual {apart:.2g} after {int(server.rounds)} rounds; more would help"
        ]

    def begin(fresh: Split, weights: Weights) -> Split:
        return begun(what, fresh, weights)

    def hand_over(key: Key, fresh: Split, before: Facts) -> Split:
        return begin(fresh, before.shared)._replace(rho=0.2 * median_steepness(before), heard=before.heard)

    base = douglas_rachford(
        what,
        solver,
        plan,
        penalty=penalty,
        memory=lambda number: (),
        extra=extra,
        newcomer=newcomer,
        rho=1.0 if rho is None else rho,
    )
    main = replace(base, notes=notes, num_clusters=1)
    if rho is not None:
        return warmed(main, what, solver, plan, warm, begin)
    asked = statistics(what, plan, lambda slopes, heard: ())
    return warmed(then(asked, 1, main, hand_over=hand_over, everyone=True), what, solver, plan, warm, with_model)
