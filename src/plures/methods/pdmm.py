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

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.aggregate.graph import Edges, check_graph, components, degrees, numbered
from plures.aggregate.points import cleaned, usable
from plures.errors import BadValue
from plures.methods._douglas_rachford import check_rho
from plures.methods._fusion import (
    Evidence,
    Fusion,
    Offered,
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
from plures.methods._part import Rest, local_solver, make_part, proximal_step
from plures.methods._warm import Facts, median_steepness, statistics, warmed, with_model
from plures.registry import Limit, method
from plures.types import Data, Forecast, Info, Key, Method, Model, Plan, Weights, then

NU = 2 / 3


class Blocks(NamedTuple):
    """The server's tables: a row per client, and a row per edge (two where multipliers are as printed)."""

    rest: Rest
    own: Array  # (N, d) x
    aims: Array  # (N, d) v
    slopes: Array  # (N, d)
    heard: Array  # (N,)
    apart: Array  # (m, d) z
    multipliers: Array  # (m, d) mu
    ahead: Array  # (m, d) muhat
    rho: Array
    key: Key
    rounds: Array
    moved: Array  # how far the last round moved the models
    fusion: Fusion


class Offer(NamedTuple):
    """What a client needs to join and to be served."""

    rest: Rest
    omega: Array
    own: Array
    known: Array
    clusters: Offered


class Kept(NamedTuple):
    """The weights around a client's part, and the weight of its proximal term."""

    rest: Rest
    omega: Array


@method(
    title="PDMM for convex clustering",
    paper="arXiv:2202.00718",
    degree="t",
    limits=[
        Limit(
            "no penalty, no pull: everybody trains alone",
            {"alpha": 1e-9, "rho": 1e-12, "eta": 1e-6, "local": "sgd", "warm": 0, "ridge": 0.0},
            same_served_as="local_only",
        )
    ],
)
def pdmm(
    model: Model,
    *,
    plan: Plan = Plan(),
    t: float = 0.5,
    alpha: float | None = None,
    graph: str = "complete",
    num_neighbors: int = 5,
    share: float = 0.1,
    edges: float = 1.0,
    rho: float | None = None,
    eta: float = 0.0,
    local: str = "auto",
    part: str | None = None,
    warm: int = 6,
    ridge: float = 1e-6,
    num_offered: int = 8,
    printed: bool = False,
) -> Method:
    """Models fused by a sum of norms, by multipliers on all pairs: the paper's algorithm, for reference.

    ``edges`` is the share of edges that is updated in a round. ``rho=None`` is half of the median client's largest
    curvature over the mean number of its edges; ``eta`` holds everything near its last value. ``printed=True`` is the
    algorithm as it was printed, which is wrong. The other options are those of ``convex_clustering``.
    """
    check_strength(alpha, t)
    check_graph(graph, num_neighbors, share)
    check_rho(rho)
    _check(edges, eta, warm, num_offered)
    what = make_part(model, part, ridge)
    solver = local_solver(local, what)
    exact = solver == "newton" and what.convex

    def start(key: Key, num_clients: int) -> Blocks:
        fusion = blank_fusion(what, graph, num_clients, num_neighbors)
        rows = jnp.zeros((num_clients, what.size))
        pairs = jnp.concatenate([fusion.duals] * (2 if printed else 1))
        zero, count = jnp.zeros(()), jnp.zeros((), jnp.int32)
        shared, nobody = model.init(key), jnp.zeros(num_clients, bool)
        weight = jnp.asarray(1.0 if rho is None else rho)
        later = jax.random.fold_in(key, 1)
        blank = Blocks(
            what.rest(shared), rows, rows, rows, nobody, pairs, pairs, pairs, weight, later, count, zero, fusion
        )
        return begun(blank, shared)

    def begun(server: Blocks, shared: Weights) -> Blocks:
        same = jnp.broadcast_to(what.vector(shared), server.own.shape)
        return server._replace(rest=what.rest(shared), own=same, aims=same)

    def links_of(server: Blocks) -> Edges:
        """The edges; both ways where multipliers are as printed."""
        heads, tails, weights = server.fusion.edges
        if not printed:
            return server.fusion.edges
        return Edges(jnp.append(heads, tails), jnp.append(tails, heads), jnp.append(weights, weights))

    def omegas(server: Blocks) -> Array:
        """(N,) omega_i; a client without edges is not held at all."""
        return server.rho * degrees(server.fusion.edges, len(server.own), weighted=False) + eta

    def aims_of(server: Blocks) -> Array:
        """(N, d) v."""
        links = links_of(server)
        live = (links.weights > 0)[:, None]
        pull = server.rho * server.apart - server.ahead
        there = jnp.where(live, server.rho * server.own[links.tails] + pull, 0.0)
        back = jnp.where(live, server.rho * server.own[links.heads] - pull, 0.0)
        total = (eta * server.own).at[links.heads].add(there)
        total = total if printed else total.at[links.tails].add(back)
        omega = omegas(server)[:, None]
        return jnp.where(omega > 0, total / jnp.maximum(omega, 1e-30), server.own)

    def send(server: Blocks, uid: Array) -> Array:
        return server.aims[jnp.minimum(uid, len(server.heard) - 1)]

    def offer(server: Blocks, uid: Array) -> Offer:
        place = jnp.minimum(uid, len(server.heard) - 1)
        clusters = offered(server.own, server.fusion, uid, num_offered)
        return Offer(server.rest, omegas(server)[place], server.own[place], uid < len(server.heard), clusters)

    def join(key: Key, given: Offer) -> Kept:
        return Kept(given.rest, given.omega)

    def train(key: Key, aim: Array, kept: Kept, data: Data) -> tuple[Array, Kept, Info]:
        found, info = proximal_step(what, solver, plan, key, kept.rest, data, aim, kept.omega)
        return found - aim, kept, info

    def merge(server: Blocks, uploads: Array, weights: Array, uids: Array) -> Blocks:
        counts = usable(uploads, weights)
        steps, here = cleaned(uploads, counts), counts[:, None]
        own = server.own.at[uids].set(jnp.where(here, server.aims[uids] + steps, server.own[uids]))
        force = -omegas(server)[uids][:, None] * steps
        slopes = server.slopes.at[uids].set(jnp.where(here, force, server.slopes[uids]))
        heard = server.heard.at[uids].max(counts)
        own = jnp.where(heard[:, None], own, server.aims)  # who has no loss goes where it is pulled
        now, later = jax.random.split(server.key)
        after = _multiplied(server, own, now, counts.sum())._replace(own=own, slopes=slopes, heard=heard, key=later)
        return after._replace(aims=aims_of(after), rounds=server.rounds + 1)

    def _multiplied(server: Blocks, own: Array, key: Key, num_present: Array) -> Blocks:
        """The server with new edges and multipliers, from old and new models."""
        links = links_of(server)
        live = links.weights > 0
        drawn = live & _subset(key, live, edges)
        blocks, present = len(own) + live.sum(), num_present + drawn.sum()
        tau = present / (3 * (2 * blocks - present))
        old = server.own[links.heads] - server.own[links.tails]
        weight = server.rho + eta
        bound = server.fusion.alpha * links.weights / weight
        shrunk = _shrink((server.rho * old + server.ahead + eta * server.apart) / weight, bound)
        apart = jnp.where(drawn[:, None], shrunk, server.apart)
        gap = server.rho * (own[links.heads] - own[links.tails] - apart)
        told = drawn if printed else live
        multipliers = server.multipliers + jnp.where(told[:, None], tau * gap, 0.0)
        ahead = jnp.where(told[:, None], multipliers - NU * gap, server.ahead)
        labels = numbered(components(links, live & (apart == 0).all(1), len(own)))
        size = jnp.maximum(jnp.square(own).sum(), 1e-30)
        return server._replace(
            apart=apart,
            multipliers=multipliers,
            ahead=ahead,
            moved=jnp.sqrt(jnp.square(own - server.own).sum() / size),
            fusion=server.fusion._replace(labels=labels),
        )

    def chosen(key: Key, given: Offer, data: Data) -> Array:
        return nearest_cluster(what, "whole", graph, key, given.rest, given.clusters, data)

    def serve(key: Key, given: Offer, kept: Kept, data: Data) -> Weights:
        vector = jnp.where(given.known, given.own, given.clusters.models[chosen(key, given, data)])
        return what.put(vector, given.rest)

    def assign(given: Offer, kept: Kept, data: Data) -> Info:
        place = chosen(jax.random.key(0), given, data)
        return {"cluster": jnp.where(given.known, given.clusters.own, given.clusters.labels[place])}

    def hand_over(key: Key, fresh: Blocks, before: Facts) -> Blocks:
        links, threshold = before.found
        fusion = fresh.fusion._replace(edges=links, threshold=threshold, alpha=strength(alpha, t, threshold))
        mean_degree = 2 * (links.weights > 0).sum() / len(before.heard)
        weight = 0.5 * median_steepness(before) / jnp.maximum(mean_degree, 1.0) if rho is None else fresh.rho
        return begun(fresh, before.shared)._replace(
            rho=weight, heard=before.heard, slopes=before.slopes, fusion=fusion
        )

    def tells(server: Blocks) -> list[str]:
        gap = None
        if exact and not printed:
            bound = server.fusion.alpha * server.fusion.edges.weights
            duals = _clipped(server.multipliers, bound)
            gap = certificate(
                what, "whole", server.fusion, Evidence(server.own, server.slopes, duals, server.heard)
            )
        also = ["multipliers as printed in the paper: these models need not be optimal"] if printed else []
        what_moved = "models moved in the last round by"
        return [summary(server.fusion, int(server.rounds), float(server.moved), gap, what=what_moved, also=also)]

    def forecast(num_clients: int, group_sizes: Sequence[int]) -> Forecast:
        return graph_forecast(what, graph, num_neighbors, num_clients)

    main = Method(
        model=model,
        start=start,
        send=send,
        offer=offer,
        join=join,
        train=train,
        merge=merge,
        serve=serve,
        predict=model.apply,
        plan=plan,
        assign=assign,
        tells=tells,
        forecast=forecast,
        num_clusters=0,
    )
    asked = statistics(what, plan, graph_finder(what, graph, num_neighbors, share, "whole"))
    begin = then(asked, 1, main, hand_over=hand_over, everyone=True)
    return warmed(begin, what, solver, plan, warm, with_model)


def _shrink(rows: Array, bound: Array) -> Array:
    """max(0, 1 - bound / |v|) v."""
    length = jnp.linalg.norm(rows, axis=1)
    return rows * jnp.maximum(0.0, 1 - bound / jnp.maximum(length, 1e-30))[:, None]


def _clipped(rows: Array, bound: Array) -> Array:
    """Rows no longer than their bounds."""
    length = jnp.linalg.norm(rows, axis=1)
    return rows * jnp.minimum(1.0, bound / jnp.maximum(length, 1e-30))[:, None]


def _subset(key: Key, live: Array, share: float) -> Array:
    """A random share of the live edges."""
    if share == 1:
        return live
    place = jnp.argsort(jnp.argsort(jnp.where(live, jax.random.uniform(key, live.shape), 2.0)))
    return place < jnp.ceil(share * live.sum())


def _check(edges: float, eta: float, warm: int, num_offered: int) -> None:
    if not 0 < edges <= 1:
        raise BadValue("edges", edges, "a number in (0, 1]: the share that is updated in a round")
    if not 0 <= eta < float("inf"):
        raise BadValue("eta", eta, "0 or more")
    if warm < 0:
        raise BadValue("warm", warm, "0 or more rounds")
    if num_offered < 1:
        raise BadValue("num_offered", num_offered, "1 or more")
