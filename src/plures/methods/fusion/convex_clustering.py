"""Convex clustering: a model for every client, and a sum of norms that fuses those who agree.

    min_x  sum_i f_i(x_i)  +  alpha sum_(i<j) w_ij |x_i - x_j|

A norm that is not squared makes models of a cluster exactly equal; nobody says how many clusters there are. Whatever its
data, a client moves the others with a force of at most alpha times the sum of its weights, for a given alpha; with ``t`` a
client's gradient also moves alpha_hat, so against attackers set ``alpha``. From alpha_hat on, a number that
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

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
from jax import Array

from plures.aggregate.graph import cluster_means, numbered
from plures.aggregate.norm_fusion import fuse
from plures.errors import require_choice, require_least
from plures.method import Method, Report, Views, then
from plures.methods.fusion.norm_penalty import (
    DualEvidence,
    NormFusion,
    NormPenalty,
    PenaltyState,
    new_penalty,
    offer_clusters,
    summary,
)
from plures.methods.fusion.splitting import SplitTable, Splitting, residual, start_at
from plures.methods.fusion.warm_start import GradientSurvey, LocalProblem, median_curvature
from plures.methods.penalized.vector import NORMS, PartVector
from plures.registry import Limit, method
from plures.types import Key, Model, Plan

REFITS = ("none", "cluster")


@method(
    title="Convex clustering",
    paper="arXiv:2202.00718",
    degree="t",
    limits=[
        Limit(
            "no penalty, no proximal term: everybody trains alone",
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
    penalty: NormPenalty = NormPenalty(),
    problem: LocalProblem = LocalProblem(),
    norm: str = "whole",
    refit: str = "none",
    fit_rounds: int = 30,
    max_iter: int = 1000,
    num_offered: int = 8,
) -> Method:
    """A model for every client, equal within clusters that a sum of norms finds.

    Args:
        plan: How clients train locally where their problem is not solved exactly, and in FedAvg's rounds before.
        penalty: The sum of norms, and its graph.
        problem: What a client solves in a round, and the rounds before.
        norm: "whole" is the length of a difference of models; "layers" adds up |x^l_i - x^l_j| / sqrt(dim_l) over
            layers, so that some layers may be equal where others are not.
        refit: "cluster" holds the clusters that ``fit_rounds`` rounds found, and trains a model of every one, free of
            the force of others; "none" goes on to the end.
        fit_rounds: Rounds until clusters are held, with a refit.
        max_iter: Steps of the server in a round at most.
        num_offered: How many models, of the largest clusters, newcomers choose from; smaller ones are not told to them.
    """
    require_choice("norm", norm, NORMS)
    require_choice("refit", refit, REFITS)
    require_least(1, fit_rounds=fit_rounds, num_offered=num_offered, max_iter=max_iter)
    solver = problem.solver(model, plan)
    fusion = NormFusion(penalty, solver, norm, num_offered)
    fit = Splitting(
        solver=solver,
        penalty=partial(fuse_anchors, solver.part, norm, max_iter),
        memory=partial(new_penalty, solver.part, penalty),
        extra=lambda server, uid: offer_clusters(server.own, server.memory, uid, num_offered),
        newcomer=fusion.newcomer,
        rho=1.0 if problem.rho is None else problem.rho,
    )
    views = Views(assign=fusion.assign, report=partial(report, fusion), forecast=fusion.forecast)
    main = fit.method(views=views, num_clusters=0)
    begin = fusion.after_survey(main, problem.warm, partial(hand_over, fusion, problem.rho))
    if refit == "none":
        return begin
    free = replace(fit, penalty=hold_clusters)
    held = replace(main, merge=free.merge, views=replace(views, report=_report_refit))
    return then(begin, fit_rounds, held, hand_over=_start_refit)


def hand_over(
    fusion: NormFusion, rho: float | None, key: Key, fresh: SplitTable, before: GradientSurvey
) -> SplitTable:
    """The server after the graph and alpha_hat were found."""
    return start_at(fusion.solver.part, fresh, before.shared)._replace(
        rho=0.2 * median_curvature(before) if rho is None else fresh.rho,
        heard=before.heard,
        gradients=before.gradients,
        memory=fusion.found(fresh.memory, before.concluded),
    )


def fuse_anchors(
    part: PartVector, norm: str, max_iter: int, anchors: Array, rho: Array, memory: PenaltyState
) -> tuple[Array, PenaltyState]:
    """The server's proximal map: convex clustering of the anchors, layer by layer where norms are those of layers."""
    points, duals, labels = [], [], []
    for at, factor in part.blocks(norm):
        gamma = memory.alpha * factor / rho
        found = fuse(anchors[:, at], memory.edges, gamma, duals=memory.duals[:, at] / rho, max_iter=max_iter)
        points.append(found.points)
        duals.append(rho * found.duals)
        labels.append(found.labels)
    return jnp.concatenate(points, 1), memory._replace(duals=jnp.concatenate(duals, 1), labels=_joint(labels))


def _joint(labels: list[Array]) -> Array:
    """0, 1, ... for those who are together in every layer."""
    if len(labels) == 1:
        return numbered(labels[0])
    same = jnp.stack([each[:, None] == each[None] for each in labels]).all(0)
    return numbered(same.argmax(1))


def hold_clusters(anchors: Array, rho: Array, memory: PenaltyState) -> tuple[Array, PenaltyState]:
    """The proximal map of a refit: models are equal within the clusters there are, and free otherwise."""
    return cluster_means(anchors, memory.labels)[0][memory.labels], memory


def _start_refit(key: Key, fresh: SplitTable, before: SplitTable) -> SplitTable:
    """A refit begins where clustering ended."""
    return before._replace(anchors=before.own, rounds=fresh.rounds)


def report(fusion: NormFusion, server: SplitTable) -> Report:
    """The clustering in a line, with a certificate of the models that clients sent last where there is one."""
    gap = None
    if fusion.solver.exact:
        models = jnp.where(server.heard[:, None], server.trained, server.own)
        evidence = DualEvidence(models, server.gradients, server.memory.duals, server.heard)
        gap = fusion.certificate(server.memory, evidence)
    return Report(findings=[summary(server.memory, int(server.rounds), residual(server), gap)])


def _report_refit(server: SplitTable) -> Report:
    also = ["these rounds fitted a model to every cluster alone"]
    return Report(findings=[summary(server.memory, int(server.rounds), residual(server), None, also=also)])
