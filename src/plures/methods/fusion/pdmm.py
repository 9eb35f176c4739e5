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
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.aggregate.graph import Edges, components, degrees, numbered
from plures.aggregate.points import cleaned, usable
from plures.errors import require, require_least
from plures.method import Method, Report, Traits, Views, then
from plures.methods.fusion.norm_penalty import (
    DualEvidence,
    FusedClusters,
    NormPenalty,
    PenaltyState,
    certificate,
    find_graph,
    forecast_graph,
    nearest_cluster,
    new_penalty,
    offer_clusters,
    summary,
)
from plures.methods.fusion.warm_start import (
    GradientSurvey,
    LocalProblem,
    ProximalSolver,
    median_curvature,
    start_from_global,
    survey_gradients,
)
from plures.methods.penalized.vector import PartVector, Rest
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Weights

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
    penalty.check()
    require(0 < edges <= 1, "edges", edges, "a number in (0, 1]: the share that is updated in a round")
    require(0 <= eta < float("inf"), "eta", eta, "0 or more")
    require_least(1, num_offered=num_offered)
    solver = problem.solver(model, plan)
    settings = Pdmm(
        penalty=penalty,
        solver=solver,
        rho=problem.rho,
        edges=edges,
        eta=eta,
        num_offered=num_offered,
        printed=printed,
    )
    main = Method(
        model=model,
        start=partial(start, settings),
        send=send,
        offer=partial(offer, settings),
        join=lambda key, offer: PdmmClient(offer.rest, offer.omega),
        train=partial(train, settings),
        merge=partial(merge, settings),
        serve=partial(serve, settings),
        predict=model.apply,
        plan=plan,
        views=Views(
            assign=partial(assign, settings),
            report=partial(report, settings),
            forecast=partial(forecast_graph, solver.part, penalty),
        ),
        traits=Traits(num_clusters=0),
    )
    survey = survey_gradients(solver.part, plan, partial(find_graph, solver.part, penalty, "whole"))
    begin = then(survey, 1, main, hand_over=partial(hand_over, settings), everyone=True)
    return start_from_global(begin, solver, problem.warm)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pdmm:
    """The options of PDMM, checked."""

    penalty: NormPenalty
    solver: ProximalSolver
    rho: float | None
    edges: float
    eta: float
    num_offered: int
    printed: bool


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


class PdmmOffer(NamedTuple):
    """What a client needs to join and to be served."""

    rest: Rest
    omega: Array
    own: Array
    known: Array
    clusters: FusedClusters


class PdmmClient(NamedTuple):
    """The weights around a client's part, and the weight of its proximal term."""

    rest: Rest
    omega: Array


def start(settings: Pdmm, key: Key, num_clients: int) -> PdmmTable:
    """Everybody at the same model, and no edges yet."""
    part = settings.solver.part
    penalty = new_penalty(part, settings.penalty, num_clients)
    rows, shared = jnp.zeros((num_clients, part.size)), part.model.init(key)
    pairs = jnp.concatenate([penalty.duals] * (2 if settings.printed else 1))
    table = PdmmTable(
        rest=part.rest(shared),
        own=rows,
        aims=rows,
        gradients=rows,
        heard=jnp.zeros(num_clients, bool),
        differences=pairs,
        multipliers=pairs,
        ahead=pairs,
        rho=jnp.asarray(1.0 if settings.rho is None else settings.rho),
        key=jax.random.fold_in(key, 1),
        rounds=jnp.zeros((), jnp.int32),
        moved=jnp.zeros(()),
        penalty=penalty,
    )
    return _start_at(part, table, shared)


def _start_at(part: PartVector, server: PdmmTable, shared: Weights) -> PdmmTable:
    """The server with everybody at the same weights."""
    same = jnp.broadcast_to(part.vector(shared), server.own.shape)
    return server._replace(rest=part.rest(shared), own=same, aims=same)


def hand_over(settings: Pdmm, key: Key, fresh: PdmmTable, before: GradientSurvey) -> PdmmTable:
    """The server after the graph and alpha_hat were found."""
    edges, threshold = before.concluded
    penalty = fresh.penalty._replace(edges=edges, threshold=threshold, alpha=settings.penalty.strength(threshold))
    mean_degree = 2 * (edges.weights > 0).sum() / len(before.heard)
    chosen = 0.5 * median_curvature(before) / jnp.maximum(mean_degree, 1.0)
    return _start_at(settings.solver.part, fresh, before.shared)._replace(
        rho=chosen if settings.rho is None else fresh.rho,
        heard=before.heard,
        gradients=before.gradients,
        penalty=penalty,
    )


def send(server: PdmmTable, uid: Array) -> Array:
    """v_i, the client's aim."""
    return server.aims[jnp.minimum(uid, len(server.heard) - 1)]


def train(settings: Pdmm, key: Key, aim: Array, private: PdmmClient, data: Data) -> tuple[Array, PdmmClient, Info]:
    """x_i, as the step from the aim."""
    found, info = settings.solver.solve(key, private.rest, data, aim, private.omega)
    return found - aim, private, info


def merge(settings: Pdmm, server: PdmmTable, uploads: Array, weights: Array, uids: Array) -> PdmmTable:
    """New models, edges and multipliers, and the aims that follow from them."""
    counts = usable(uploads, weights)
    steps, here = cleaned(uploads, counts), counts[:, None]
    own = server.own.at[uids].set(jnp.where(here, server.aims[uids] + steps, server.own[uids]))
    force = -omegas(settings, server)[uids][:, None] * steps
    gradients = server.gradients.at[uids].set(jnp.where(here, force, server.gradients[uids]))
    heard = server.heard.at[uids].max(counts)
    own = jnp.where(heard[:, None], own, server.aims)  # who has no loss is at its aim
    now, later = jax.random.split(server.key)
    after = update_edges(settings, server, own, now, counts.sum())
    after = after._replace(own=own, gradients=gradients, heard=heard, key=later)
    return after._replace(aims=aims_of(settings, after), rounds=server.rounds + 1)


def omegas(settings: Pdmm, server: PdmmTable) -> Array:
    """(N,) omega_i; a client without edges is not held at all."""
    return server.rho * degrees(server.penalty.edges, len(server.own), weighted=False) + settings.eta


def links_of(settings: Pdmm, server: PdmmTable) -> Edges:
    """The edges; both ways where multipliers are as printed."""
    heads, tails, weights = server.penalty.edges
    if not settings.printed:
        return server.penalty.edges
    return Edges(jnp.append(heads, tails), jnp.append(tails, heads), jnp.append(weights, weights))


def aims_of(settings: Pdmm, server: PdmmTable) -> Array:
    """(N, d) v."""
    links = links_of(settings, server)
    live = (links.weights > 0)[:, None]
    force = server.rho * server.differences - server.ahead
    there = jnp.where(live, server.rho * server.own[links.tails] + force, 0.0)
    back = jnp.where(live, server.rho * server.own[links.heads] - force, 0.0)
    total = (settings.eta * server.own).at[links.heads].add(there)
    total = total if settings.printed else total.at[links.tails].add(back)
    omega = omegas(settings, server)[:, None]
    return jnp.where(omega > 0, total / jnp.maximum(omega, 1e-30), server.own)


def update_edges(settings: Pdmm, server: PdmmTable, own: Array, key: Key, num_present: Array) -> PdmmTable:
    """The server with new edges and multipliers, from old and new models."""
    links, eta = links_of(settings, server), settings.eta
    live = links.weights > 0
    drawn = live & _subset(key, live, settings.edges)
    blocks, present = len(own) + live.sum(), num_present + drawn.sum()
    tau = present / (3 * (2 * blocks - present))
    old = server.own[links.heads] - server.own[links.tails]
    weight = server.rho + eta
    bound = server.penalty.alpha * links.weights / weight
    shrunk = _shrink((server.rho * old + server.ahead + eta * server.differences) / weight, bound)
    differences = jnp.where(drawn[:, None], shrunk, server.differences)
    gap = server.rho * (own[links.heads] - own[links.tails] - differences)
    updated = (drawn if settings.printed else live)[:, None]
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


def _shrink(rows: Array, bound: Array) -> Array:
    """max(0, 1 - bound / |v|) v."""
    length = jnp.linalg.norm(rows, axis=1)
    return rows * jnp.maximum(0.0, 1 - bound / jnp.maximum(length, 1e-30))[:, None]


def _clip(rows: Array, bound: Array) -> Array:
    """Rows no longer than their bounds."""
    length = jnp.linalg.norm(rows, axis=1)
    return rows * jnp.minimum(1.0, bound / jnp.maximum(length, 1e-30))[:, None]


def _subset(key: Key, live: Array, share: float) -> Array:
    """A random share of the live edges."""
    if share == 1:
        return live
    rank = jnp.argsort(jnp.argsort(jnp.where(live, jax.random.uniform(key, live.shape), 2.0)))
    return rank < jnp.ceil(share * live.sum())


def offer(settings: Pdmm, server: PdmmTable, uid: Array) -> PdmmOffer:
    """A client's own model, and the largest clusters for newcomers."""
    index = jnp.minimum(uid, len(server.heard) - 1)
    clusters = offer_clusters(server.own, server.penalty, uid, settings.num_offered)
    omega = omegas(settings, server)[index]
    return PdmmOffer(server.rest, omega, server.own[index], uid < len(server.heard), clusters)


def choose(settings: Pdmm, key: Key, offer: PdmmOffer, data: Data) -> Array:
    """Which of the offered clusters a newcomer belongs to."""
    graph = settings.penalty.graph
    return nearest_cluster(settings.solver.part, "whole", graph, key, offer.rest, offer.clusters, data)


def serve(settings: Pdmm, key: Key, offer: PdmmOffer, private: PdmmClient, data: Data) -> Weights:
    """A client's own model, or that of its cluster for a newcomer."""
    vector = jnp.where(offer.known, offer.own, offer.clusters.models[choose(settings, key, offer, data)])
    return settings.solver.part.put(vector, offer.rest)


def assign(settings: Pdmm, offer: PdmmOffer, private: PdmmClient, data: Data) -> Info:
    """A client's cluster."""
    index = choose(settings, jax.random.key(0), offer, data)
    return {"cluster": jnp.where(offer.known, offer.clusters.own, offer.clusters.labels[index])}


def report(settings: Pdmm, server: PdmmTable) -> Report:
    """The clustering in a line, with a certificate where there is one."""
    gap, penalty = None, server.penalty
    if settings.solver.exact and not settings.printed:
        duals = _clip(server.multipliers, penalty.alpha * penalty.edges.weights)
        evidence = DualEvidence(server.own, server.gradients, duals, server.heard)
        gap = certificate(settings.solver.part, "whole", penalty, evidence)
    also = ["multipliers as printed in the paper: these models need not be optimal"] if settings.printed else []
    what_moved = "models moved in the last round by"
    line = summary(penalty, int(server.rounds), float(server.moved), gap, what=what_moved, also=also)
    return Report(findings=[line])
