"""PDMM: convex clustering by the parallel direction method of multipliers, the algorithm of its paper, corrected.

    min  sum_i f_i(x_i) + alpha sum_e w_e |z_e|    with  x_i - x_j = z_e  for every edge e = (i, j), i < j

    client   x_i  =   argmin  f_i(x) + (omega_i / 2) |x - v_i|^2,     omega_i = rho deg_i + eta
             v_i  =   [ rho sum_e (x_other + s_ie z_e) - sum_e s_ie muhat_e + eta x_i ] / omega_i
    server   z_e  =   shrink([ rho (x_i - x_j) + muhat_e + eta z_e ] / (rho + eta),  alpha w_e / (rho + eta))
             r_e  =   x_i - x_j - z_e      (new values; z_e was made from the old x)
             mu_e <-  mu_e + tau rho r_e,   muhat_e = mu_e - nu rho r_e

with s_ie = 1 at the head of an edge and -1 at its tail. Of J = N + m blocks K take part in a round (the clients of its
cohort and a share of the edges): tau = K / (3 (2 J - K)), nu = 2/3. Edges and multipliers hold no client's data and
stay on the server, so each way d numbers travel.

The printed algorithm keeps a multiplier for both (i, j) and (j, i), and client i's update leaves out those of (j, i).
As soon as the two are not opposite, because one is updated and the other is not, it converges to models that obey all
constraints and are not optimal. ``printed=True`` is that algorithm, kept to show its defect: it is wrong.

``convex_clustering`` finds the same models in a fraction of the rounds.

Armacki, Bajovic, Jakovetic, Kar: Personalized Federated Learning via Convex Clustering, arXiv 2202.00718, Algorithm 1.
PDMM: Wang, Banerjee, Luo, arXiv 1406.4064.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.aggregate.graph import Edges, components, degrees, numbered
from plures.aggregate.norm_fusion import shorten
from plures.aggregate.points import counted
from plures.errors import require, require_least
from plures.method import Method, Report, Traits, Views
from plures.methods.fusion.norm_penalty import (
    DualEvidence,
    NormFusion,
    NormPenalty,
    PenaltyState,
    new_penalty,
    offer_clusters,
    summary,
)
from plures.methods.fusion.warm_start import GradientSurvey, LocalProblem, median_curvature, proximal_method
from plures.methods.penalized.vector import PartVector, Rest
from plures.registry import Limit, method
from plures.types import Key, Model, Plan, Weights

NU = 2 / 3


@method(
    title="PDMM for convex clustering",
    paper="arXiv:2202.00718",
    degree="t",
    limits=[
        Limit(
            "no penalty, no proximal term: everybody trains alone",
            {"alpha": 1e-9, "rho": 1e-12, "eta": 1e-6, "local": "sgd", "warm": 0, "ridge": 0.0},
            same_served_as="local_only",
        )
    ],
)
def pdmm(
    model: Model,
    *,
    plan: Plan = Plan(),
    penalty: NormPenalty = NormPenalty(graph="complete"),
    problem: LocalProblem = LocalProblem(),
    edges: float = 1.0,
    eta: float = 0.0,
    num_offered: int = 8,
    printed: bool = False,
) -> Method:
    """Models fused by a sum of norms, by multipliers on all pairs: the paper's algorithm, for reference.

    Args:
        plan: How clients train locally where their problem is not solved exactly, and in FedAvg's rounds before.
        penalty: The sum of norms, and its graph.
        problem: What a client solves in a round, and the rounds before. ``rho=None`` is half of the median client's
            largest curvature over the mean number of its edges.
        edges: Share of the edges that are updated in a round, in (0, 1].
        eta: Weight of the term that holds everything near its last value; 0 is none.
        num_offered: How many models, of the largest clusters, newcomers choose from; smaller ones are not told to them.
        printed: Whether the algorithm is as it was printed, which is wrong; kept to show its defect.
    """
    require(0 < edges <= 1, "edges", edges, "a number in (0, 1]: the share that is updated in a round")
    require(0 <= eta < float("inf"), "eta", eta, "0 or more")
    require_least(1, num_offered=num_offered)
    fusion = NormFusion(penalty, problem.solver(model, plan), "whole", num_offered)
    settings = Pdmm(fusion, rho=problem.rho, edges=edges, eta=eta, printed=printed)
    main = proximal_method(
        fusion.solver,
        aim=lambda server, row: server.aims[row],
        weight=lambda server, row: settings.omegas(server)[row],
        extra=lambda server, uid: offer_clusters(server.own, server.penalty, uid, num_offered),
        newcomer=fusion.newcomer,
        start=settings.start,
        merge=settings.merge,
        views=Views(assign=fusion.assign, report=settings.report, forecast=fusion.forecast),
        traits=Traits(num_clusters=0),
    )
    return fusion.after_survey(main, problem.warm, settings.hand_over)


class PdmmTable(NamedTuple):
    """The server's tables: a row per client, and a row per edge (two where multipliers are as printed)."""

    rest: Rest
    own: Array  # (N, d) x
    aims: Array  # (N, d) v
    gradients: Array  # (N, d)
    heard: Array  # (N,)
    differences: Array  # (m, d) z
    multipliers: Array  # (m, d) mu
    ahead: Array  # (m, d) muhat
    rho: Array
    key: Key
    rounds: Array
    moved: Array  # how far the last round moved the models
    penalty: PenaltyState


@dataclass(frozen=True, eq=False)
class Pdmm:
    """The server of PDMM."""

    fusion: NormFusion
    rho: float | None
    edges: float
    eta: float
    printed: bool

    def start(self, key: Key, num_clients: int) -> PdmmTable:
        """Everybody at the same model, and no edges yet."""
        part = self.fusion.solver.part
        penalty = new_penalty(part, self.fusion.penalty, num_clients)
        rows, shared = jnp.zeros((num_clients, part.size)), part.model.init(key)
        pairs = jnp.concatenate([penalty.duals] * (2 if self.printed else 1))
        table = PdmmTable(
            rest=part.rest(shared),
            own=rows,
            aims=rows,
            gradients=rows,
            heard=jnp.zeros(num_clients, bool),
            differences=pairs,
            multipliers=pairs,
            ahead=pairs,
            rho=jnp.asarray(1.0 if self.rho is None else self.rho),
            key=jax.random.fold_in(key, 1),
            rounds=jnp.zeros((), jnp.int32),
            moved=jnp.zeros(()),
            penalty=penalty,
        )
        return _start_at(part, table, shared)

    def hand_over(self, key: Key, fresh: PdmmTable, before: GradientSurvey) -> PdmmTable:
        """The server after the graph and alpha_hat were found."""
        penalty = self.fusion.found(fresh.penalty, before.concluded)
        mean_degree = 2 * (penalty.edges.weights > 0).sum() / len(before.heard)
        chosen = 0.5 * median_curvature(before) / jnp.maximum(mean_degree, 1.0)
        return _start_at(self.fusion.solver.part, fresh, before.shared)._replace(
            rho=chosen if self.rho is None else fresh.rho,
            heard=before.heard,
            gradients=before.gradients,
            penalty=penalty,
        )

    def merge(self, server: PdmmTable, uploads: Array, weights: Array, uids: Array) -> PdmmTable:
        """New models, edges and multipliers, and the aims that follow from them."""
        counts, steps = counted(uploads, weights)
        here = counts[:, None]
        own = server.own.at[uids].set(jnp.where(here, server.aims[uids] + steps, server.own[uids]))
        force = -self.omegas(server)[uids][:, None] * steps
        gradients = server.gradients.at[uids].set(jnp.where(here, force, server.gradients[uids]))
        heard = server.heard.at[uids].max(counts)
        own = jnp.where(heard[:, None], own, server.aims)  # who has no loss is at its aim
        now, later = jax.random.split(server.key)
        after = self.update_edges(server, own, now, counts.sum())
        after = after._replace(own=own, gradients=gradients, heard=heard, key=later)
        return after._replace(aims=self.aims_of(after), rounds=server.rounds + 1)

    def omegas(self, server: PdmmTable) -> Array:
        """(N,) omega_i; a client without edges is not held at all."""
        return server.rho * degrees(server.penalty.edges, len(server.own), weighted=False) + self.eta

    def links_of(self, server: PdmmTable) -> Edges:
        """The edges; both ways where multipliers are as printed."""
        heads, tails, weights = server.penalty.edges
        if not self.printed:
            return server.penalty.edges
        return Edges(jnp.append(heads, tails), jnp.append(tails, heads), jnp.append(weights, weights))

    def aims_of(self, server: PdmmTable) -> Array:
        """(N, d) v."""
        links = self.links_of(server)
        live = (links.weights > 0)[:, None]
        force = server.rho * server.differences - server.ahead
        there = jnp.where(live, server.rho * server.own[links.tails] + force, 0.0)
        back = jnp.where(live, server.rho * server.own[links.heads] - force, 0.0)
        total = (self.eta * server.own).at[links.heads].add(there)
        total = total if self.printed else total.at[links.tails].add(back)
        omega = self.omegas(server)[:, None]
        return jnp.where(omega > 0, total / jnp.maximum(omega, 1e-30), server.own)

    def update_edges(self, server: PdmmTable, own: Array, key: Key, num_present: Array) -> PdmmTable:
        """The server with new edges and multipliers, from old and new models."""
        links, eta = self.links_of(server), self.eta
        live = links.weights > 0
        drawn = live & _subset(key, live, self.edges)
        blocks, present = len(own) + live.sum(), num_present + drawn.sum()
        tau = present / (3 * (2 * blocks - present))
        old = server.own[links.heads] - server.own[links.tails]
        weight = server.rho + eta
        bound = server.penalty.alpha * links.weights / weight
        shrunk = _shrink((server.rho * old + server.ahead + eta * server.differences) / weight, bound)
        differences = jnp.where(drawn[:, None], shrunk, server.differences)
        gap = server.rho * (own[links.heads] - own[links.tails] - differences)
        updated = (drawn if self.printed else live)[:, None]
        multipliers = server.multipliers + jnp.where(updated, tau * gap, 0.0)
        labels = numbered(components(links, live & (differences == 0).all(1), len(own)))
        size = jnp.maximum(jnp.square(own).sum(), 1e-30)
        return server._replace(
            differences=differences,
            multipliers=multipliers,
            ahead=jnp.where(updated, multipliers - NU * gap, server.ahead),
            moved=jnp.sqrt(jnp.square(own - server.own).sum() / size),
            penalty=server.penalty._replace(labels=labels),
        )

    def report(self, server: PdmmTable) -> Report:
        """The clustering in a line, with a certificate where there is one."""
        gap, penalty = None, server.penalty
        if self.fusion.solver.exact and not self.printed:
            duals = shorten(server.multipliers, penalty.alpha * penalty.edges.weights)
            gap = self.fusion.certificate(penalty, DualEvidence(server.own, server.gradients, duals, server.heard))
        also = ["multipliers as printed in the paper: these models need not be optimal"] if self.printed else []
        what_moved = "models moved in the last round by"
        line = summary(penalty, int(server.rounds), float(server.moved), gap, what=what_moved, also=also)
        return Report(findings=[line])


def _start_at(part: PartVector, server: PdmmTable, shared: Weights) -> PdmmTable:
    """The server with everybody at the same weights."""
    same = jnp.broadcast_to(part.vector(shared), server.own.shape)
    return server._replace(rest=part.rest(shared), own=same, aims=same)


def _shrink(rows: Array, bound: Array) -> Array:
    """max(0, 1 - bound / |v|) v."""
    length = jnp.linalg.norm(rows, axis=1)
    return rows * jnp.maximum(0.0, 1 - bound / jnp.maximum(length, 1e-30))[:, None]


def _subset(key: Key, live: Array, share: float) -> Array:
    """A random share of the live edges."""
    if share == 1:
        return live
    rank = jnp.argsort(jnp.argsort(jnp.where(live, jax.random.uniform(key, live.shape), 2.0)))
    return rank < jnp.ceil(share * live.sum())
