"""Convex clustering: a model for every client, and a sum of norms that fuses those who agree.

    min_x  sum_i f_i(x_i)  +  alpha sum_(i<j) w_ij |x_i - x_j|

A norm that is not squared makes models of a cluster exactly equal; nobody says how many clusters there are. Whatever its
data, a client pulls at the others with at most alpha times the sum of its weights, for a given alpha; with ``t`` a
client's slope also moves alpha_hat, so against liars set ``alpha``. From alpha_hat on, a number that
everyone's gradients at the global model tell, one model for all is the answer: ``t`` = alpha / alpha_hat is free of
units.

    server   y    =   argmin  alpha / rho sum_(i<j) w_ij |y_i - y_j| + 1/2 sum_i |y_i - s_i|^2
    client   x_i  =   argmin  f_i(x) + (rho / 2) |x - (2 y_i - s_i)|^2
    server   s_i <-   s_i + x_i - y_i

Before: rounds for the global model (for small convex models Newton's: a client then sends its gradient, its loss and its
curvature, a matrix of all pairs of parameters), and one in which everybody sends its gradient there. The graph w is that of the
nearest gradients, of N (N - 1) / 2 in total weight as the complete graph.

Armacki, Bajovic, Jakovetic, Kar: Personalized Federated Learning via Convex Clustering, arXiv 2202.00718. Their problem
(3) is alpha = 2 N lambda, theirs (14) alpha = 2 lambda; their theorems and Algorithm 1 have alpha = lambda. The
splitting, alpha_hat, the graph of gradients and the rule for newcomers are ours; ``pdmm`` is their algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from plures.aggregate.fuse import fuse
from plures.aggregate.graph import check_graph, numbered
from plures.errors import BadValue, UnknownChoice
from plures.methods._douglas_rachford import Kept, Offer, Split, begun, check_rho, douglas_rachford, residual
from plures.methods._fusion import (
    Evidence,
    Fusion,
    blank_fusion,
    certificate,
    check_strength,
    graph_finder,
    graph_forecast,
    nearest_cluster,
    offered,
    strength,
    summary,
)
from plures.methods._part import NORMS, Part, local_solver, make_part
from plures.methods._warm import Facts, median_steepness, statistics, warmed, with_model
from plures.registry import Limit, method
from plures.types import Data, Forecast, Info, Key, Method, Model, Plan, then

REFITS = ("none", "cluster")


@method(
    title="Convex clustering",
    paper="arXiv:2202.00718",
    degree="t",
    limits=[
        Limit(
            "no penalty, no pull: everybody trains alone",
            {"alpha": 1e-14, "rho": 1e-6, "local": "sgd", "warm": 0, "ridge": 0.0},
            same_served_as="local_only",
        ),
        Limit(
            "far above alpha_hat: one model for all, as with a huge squared penalty",
            {"t": 1e3, "rho": 0.1},
            "squared_penalty",
            {"gamma": 1e7, "rho": 0.1},
        ),
    ],
)
def convex_clustering(
    model: Model,
    *,
    plan: Plan = Plan(),
    t: float = 0.5,
    alpha: float | None = None,
    graph: str = "knn",
    num_neighbors: int = 5,
    share: float = 0.1,
    rho: float | None = None,
    local: str = "auto",
    part: str | None = None,
    norm: str = "whole",
    refit: str = "none",
    fit_rounds: int = 30,
    warm: int = 6,
    ridge: float = 1e-6,
    max_iter: int = 1000,
    num_offered: int = 8,
) -> Method:
    """A model for every client, equal within clusters that a sum of norms finds.

    ``t`` is the penalty in units of alpha_hat; ``alpha`` sets it absolutely. ``graph`` is "knn" (``num_neighbors``
    nearest gradients and a spanning tree), "complete", or "mixture" with a ``share`` of the complete graph. ``rho=None``
    is a fifth of the median client's largest curvature. ``local``: "newton" solves a client's problem exactly, "sgd"
    makes the plan's steps on it, "auto" is Newton up to 200 params. ``part`` names what is clustered, such as "head": all
    else is trained by FedAvg in the ``warm`` rounds and then stays. ``norm="layers"`` adds up |x^l_i - x^l_j| /
    sqrt(dim_l) over layers. ``refit="cluster"``: after ``fit_rounds`` rounds clusters stay as they are, and every one
    trains a model of its own, without the pull of others. ``ridge`` / 2 |x|^2 is added to every f_i, so that a client
    with one class has a finite optimum. ``max_iter`` bounds the steps of the server in a round; newcomers choose among
    the ``num_offered`` largest clusters, and smaller ones are not told to them.
    """
    check_strength(alpha, t)
    check_graph(graph, num_neighbors, share)
    check_rho(rho)
    _check(norm, refit, fit_rounds, warm, num_offered, max_iter)
    what = make_part(model, part, ridge)
    solver = local_solver(local, what)
    exact = solver == "newton" and what.convex
    build = partial(
        douglas_rachford,
        what,
        solver,
        plan,
        memory=lambda number: blank_fusion(what, graph, number, num_neighbors),
        extra=lambda server, uid: offered(server.own, server.memory, uid, num_offered),
        newcomer=lambda key, given, data: given.extra.models[chosen(key, given, data)],
    )

    def chosen(key: Key, given: Offer, data: Data) -> Array:
        return nearest_cluster(what, norm, graph, key, given.rest, given.extra, data)

    def assign(given: Offer, kept: Kept, data: Data) -> Info:
        place = chosen(jax.random.key(0), given, data)
        return {"cluster": jnp.where(given.known, given.extra.own, given.extra.labels[place])}

    def hand_over(key: Key, fresh: Split, before: Facts) -> Split:
        edges, threshold = before.found
        now = fresh.memory._replace(edges=edges, threshold=threshold, alpha=strength(alpha, t, threshold))
        weight = 0.2 * median_steepness(before) if rho is None else fresh.rho
        return begun(what, fresh, before.shared)._replace(
            rho=weight, heard=before.heard, slopes=before.slopes, memory=now
        )

    def tells(server: Split) -> list[str]:
        gap = _gap(what, norm, server) if exact else None
        return [summary(server.memory, int(server.rounds), residual(server), gap)]

    def forecast(num_clients: int, group_sizes: Sequence[int]) -> Forecast:
        return graph_forecast(what, graph, num_neighbors, num_clients)

    base = build(penalty=partial(fused, what, norm, max_iter), rho=1.0 if rho is None else rho)
    main = replace(base, assign=assign, tells=tells, forecast=forecast)
    asked = statistics(what, plan, graph_finder(what, graph, num_neighbors, share, norm))
    begin = warmed(then(asked, 1, main, hand_over=hand_over, everyone=True), what, solver, plan, warm, with_model)
    if refit == "none":
        return begin
    told = replace(main, merge=build(penalty=cluster_means).merge, tells=_told_of_refit)
    return then(begin, fit_rounds, told, hand_over=_settled)


def fused(part: Part, norm: str, max_iter: int, anchors: Array, rho: Array, memory: Fusion) -> tuple[Array, Fusion]:
    """The server's proximal map: convex clustering of the anchors, layer by layer where norms are those of layers."""
    points, duals, labels = [], [], []
    for at, factor in part.blocks(norm):
        gamma = memory.alpha * factor / rho
        found = fuse(anchors[:, at], memory.edges, gamma, duals=memory.duals[:, at] / rho, max_iter=max_iter)
        points.append(found.points)
        duals.append(rho * found.duals)
        labels.append(found.labels)
    return jnp.concatenate(points, 1), memory._replace(duals=jnp.concatenate(duals, 1), labels=_joint(labels))


def cluster_means(anchors: Array, rho: Array, memory: Fusion) -> tuple[Array, Fusion]:
    """The proximal map of a refit: models are equal within the clusters there are, and free otherwise."""
    sizes = jnp.zeros(len(anchors)).at[memory.labels].add(1.0)
    middle = jnp.zeros_like(anchors).at[memory.labels].add(anchors) / jnp.maximum(sizes, 1)[:, None]
    return middle[memory.labels], memory


def _joint(labels: list[Array]) -> Array:
    """0, 1, ... for those who are together in every layer."""
    if len(labels) == 1:
        return numbered(labels[0])
    same = jnp.stack([one[:, None] == one[None] for one in labels]).all(0)
    return numbered(same.argmax(1))


def _gap(part: Part, norm: str, server: Split) -> float:
    """The certificate of the models that clients sent last."""
    models = jnp.where(server.heard[:, None], server.trained, server.own)
    given = Evidence(models, server.slopes, server.memory.duals, server.heard)
    return certificate(part, norm, server.memory, given)


def _settled(key: Key, fresh: Split, before: Split) -> Split:
    """A refit begins where clustering ended."""
    return before._replace(anchors=before.own, rounds=fresh.rounds)


def _told_of_refit(server: Split) -> list[str]:
    also = ["these rounds fitted a model to every cluster alone"]
    return [summary(server.memory, int(server.rounds), residual(server), None, also=also)]


def _check(norm: str, refit: str, fit_rounds: int, warm: int, num_offered: int, max_iter: int) -> None:
    if norm not in NORMS:
        raise UnknownChoice("norm", norm, NORMS)
    if refit not in REFITS:
        raise UnknownChoice("refit", refit, REFITS)
    for name, value in {"fit_rounds": fit_rounds, "num_offered": num_offered, "max_iter": max_iter}.items():
        if value < 1:
            raise BadValue(name, value, "1 or more")
    if warm < 0:
        raise BadValue("warm", warm, "0 or more rounds")
