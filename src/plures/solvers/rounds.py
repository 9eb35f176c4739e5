"""Federated algorithms for one problem, round by round: what each reaches, and what it costs.

    Douglas-Rachford  one prox per client and round, the server clusters (plures.solvers.kernel)
    FISTA             one gradient per client and round, the server clusters
    linearized ADMM   one prox per client and round, duals on the server

PDMM, the published algorithm, is in ``plures.solvers.pdmm``. All give every round's models and feasible duals to
``watch(round, x, u)``, so that gaps can be followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from plures.errors import BadValue, Unsupported
from plures.solvers.clients import Clients
from plures.solvers.graph import Graph, Ints, lengths
from plures.solvers.kernel import fuse, within
from plures.solvers.links import Floats
from plures.solvers.prox import own_best

Watch = Callable[[int, Floats, Floats], bool]
"""(round, models, duals) -> whether to stop."""


@dataclass(frozen=True, eq=False)
class Run:
    """Models (N, dim), feasible duals (edges, dim), labels of fused models, and the rounds made."""

    x: Floats
    u: Floats
    label: Ints
    rounds: int


def _never(count: int, x: Floats, u: Floats) -> bool:
    return False


def good_pull(clients: Clients) -> float:
    """A strength of the clients' pull that serves Douglas-Rachford: a fifth of the median smoothness."""
    smooth = float(np.median(clients.lipschitz))
    return 0.2 * smooth if np.isfinite(smooth) else 1.0


def douglas_rachford(
    clients: Clients,
    graph: Graph,
    alpha: float,
    *,
    start: Floats | None = None,
    pull: float | None = None,
    rounds: int = 100,
    tol: float = 0.0,
    cohorts: Iterable[np.ndarray] | None = None,
    watch: Watch = _never,
) -> Run:
    """Rounds of Douglas-Rachford: the server clusters s, clients answer with their prox of the reflected point.

    ``cohorts`` are the clients that take part in each round; only their s moves. It stops at ``rounds``, after the last
    cohort, when ``watch`` says so, or when models and clustered points differ by at most ``tol``.
    """
    rho = good_pull(clients) if pull is None else pull
    s = np.zeros((clients.num, clients.dim)) if start is None else start.copy()
    if rounds < 1:
        raise BadValue("rounds", rounds, "1 or more")
    x, u, off, drawn = s.copy(), None, 1.0, None if cohorts is None else iter(cohorts)
    for count in range(1, rounds + 1):
        # A gap of a tenth of |x - y|^2 is enough; near the end that is nearly nothing.
        found = fuse(
            s, graph, alpha / rho, start=u, tol=float(np.clip(0.1 * off * off, 1e-13, 1e-6)), max_steps=3_000
        )
        u = found.u
        if watch(count, found.points, rho * u):
            break
        who = np.arange(clients.num) if drawn is None else next(drawn, None)
        if who is None:
            break
        center = 2 * found.points[who] - s[who]
        some = clients if drawn is None else clients.take(who)
        x[who] = own_best(some, x[who], omega=rho, center=center).x
        s[who] += x[who] - found.points[who]
        off = float(np.abs(x[who] - found.points[who]).max())
        if tol and off <= tol * max(float(np.abs(x).max()), 1.0):
            break
    return Run(found.points, rho * found.u, found.label, count)


def fista(
    clients: Clients,
    graph: Graph,
    alpha: float,
    *,
    start: Floats | None = None,
    rounds: int = 100,
    watch: Watch = _never,
) -> Run:
    """Accelerated proximal gradients: a gradient from everybody, then the server clusters."""
    steep = float(clients.lipschitz.max())
    if not np.isfinite(steep):
        raise Unsupported(f"gradient steps need a smooth loss, and the slope of {clients.link.name} has no bound")
    x = np.zeros((clients.num, clients.dim)) if start is None else start.copy()
    ahead, speed, u = x, 1.0, None
    for count in range(1, rounds + 1):
        found = fuse(
            ahead - clients.slope(ahead) / steep, graph, alpha / steep, start=u, tol=1e-12, max_steps=3_000
        )
        u, new = found.u, found.points
        if np.vdot(ahead - new, new - x) > 0:
            ahead, speed = new, 1.0
        else:
            faster = 0.5 + np.sqrt(0.25 + speed * speed)
            ahead, speed = new + (speed - 1.0) / faster * (new - x), faster
        x = new
        if watch(count, x, steep * u):
            break
    return Run(x, steep * found.u, found.label, count)


def linearized_admm(
    clients: Clients,
    graph: Graph,
    alpha: float,
    *,
    rho: float,
    start: Floats | None = None,
    rounds: int = 200,
    watch: Watch = _never,
) -> Run:
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
        if watch(count, x, within(mu, room)):
            break
    return Run(x, within(mu, room), np.arange(clients.num), count)


def shrunk(vectors: Floats, by: Floats) -> Floats:
    """Vectors shortened by so much, to zero at most."""
    size = lengths(vectors)
    return np.maximum(0.0, 1.0 - by / np.maximum(size, 1e-300))[:, None] * vectors
