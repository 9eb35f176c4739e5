"""The rivals of Douglas-Rachford on the fused problem, round by round: what each reaches, and what it costs.

    FISTA             one gradient per client and round, the server clusters
    linearized ADMM   one prox per client and round, duals on the server

PDMM, the published algorithm, is in ``papers.convex_clustering.pdmm``. All give every round's models and feasible duals
to ``watch(round, x, u)``, so that gaps can be followed.
"""

from __future__ import annotations

import numpy as np

from plures.errors import Unsupported
from plures.solvers.clients import Clients
from plures.solvers.graph import Graph, lengths
from plures.solvers.point_fusion import fuse, within
from plures.solvers.prox import own_best
from plures.solvers.splitting import SplittingRun, Watch
from plures.types import Floats


def fista(
    clients: Clients,
    graph: Graph,
    alpha: float,
    *,
    start: Floats | None = None,
    rounds: int = 100,
    watch: Watch | None = None,
) -> SplittingRun:
    """Accelerated proximal gradients: a gradient from everybody, then the server clusters."""
    steep = float(clients.lipschitz.max())
    if not np.isfinite(steep):
        raise Unsupported(
            f"gradient steps need a smooth loss, and the gradient of {clients.loss.name} has no bound"
        )
    x = np.zeros((clients.num, clients.dim)) if start is None else start.copy()
    ahead, speed, u = x, 1.0, None
    for count in range(1, rounds + 1):
        found = fuse(
            ahead - clients.gradient(ahead) / steep, graph, alpha / steep, start=u, tol=1e-12, max_steps=3_000
        )
        u, new = found.u, found.points
        if np.vdot(ahead - new, new - x) > 0:
            ahead, speed = new, 1.0
        else:
            faster = 0.5 + np.sqrt(0.25 + speed * speed)
            ahead, speed = new + (speed - 1.0) / faster * (new - x), faster
        x = new
        if watch is not None and watch(count, x, steep * u):
            break
    return SplittingRun(x, steep * found.u, found.label, count)


def linearized_admm(
    clients: Clients,
    graph: Graph,
    alpha: float,
    *,
    rho: float,
    start: Floats | None = None,
    rounds: int = 200,
    watch: Watch | None = None,
) -> SplittingRun:
    """ADMM with one vector per edge on the server; clients see only their own center."""
    x = np.zeros((clients.num, clients.dim)) if start is None else start.copy()
    z, mu = graph.gaps(x), np.zeros((len(graph), clients.dim))
    eta = rho * float((graph.num_edges[graph.head] + graph.num_edges[graph.tail]).max())
    eta = min(eta, rho * clients.num) if graph.is_uniform else eta
    room = alpha * graph.weight
    for count in range(1, rounds + 1):
        center = x - graph.outflow(mu + rho * (graph.gaps(x) - z)) / eta
        x = own_best(clients, x, omega=eta, center=center).x
        apart = graph.gaps(x)
        z = shrunk(apart + mu / rho, room / rho)
        mu = mu + rho * (apart - z)
        if watch is not None and watch(count, x, within(mu, room)):
            break
    return SplittingRun(x, within(mu, room), np.arange(clients.num), count)


def shrunk(vectors: Floats, by: Floats) -> Floats:
    """Vectors shortened by so much, to zero at most."""
    size = lengths(vectors)
    return np.maximum(0.0, 1.0 - by / np.maximum(size, 1e-300))[:, None] * vectors
