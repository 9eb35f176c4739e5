"""Douglas-Rachford splitting, round by round: one prox per client and round, then the server clusters.

Every round's models and feasible duals go to ``watch(round, x, u)``, so that gaps can be followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from plures.errors import BadValue
from plures.solvers.clients import Clients
from plures.solvers.graph import Graph, Ints
from plures.solvers.point_fusion import fuse
from plures.solvers.prox import own_best
from plures.types import Floats

Watch = Callable[[int, Floats, Floats], bool]
"""(round, models, duals) -> whether to stop."""


@dataclass(frozen=True, eq=False)
class SplittingRun:
    """Models (N, dim), feasible duals (edges, dim), labels of fused models, and the rounds made."""

    x: Floats
    u: Floats
    label: Ints
    rounds: int


def good_strength(clients: Clients) -> float:
    """A strength of the proximal term that serves Douglas-Rachford: a fifth of the median smoothness."""
    smooth = float(np.median(clients.lipschitz))
    return 0.2 * smooth if np.isfinite(smooth) else 1.0


def douglas_rachford(
    clients: Clients,
    graph: Graph,
    alpha: float,
    *,
    start: Floats | None = None,
    rho: float | None = None,
    rounds: int = 100,
    tol: float = 0.0,
    cohorts: Iterable[np.ndarray] | None = None,
    watch: Watch | None = None,
) -> SplittingRun:
    """Rounds of Douglas-Rachford: the server clusters s, clients answer with their prox of the reflected point.

    ``cohorts`` are the clients that take part in each round; only their s moves. It stops at ``rounds``, after the last
    cohort, when ``watch`` says so, or when models and clustered points differ by at most ``tol``.
    """
    rho = good_strength(clients) if rho is None else rho
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
        if watch is not None and watch(count, found.points, rho * u):
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
    return SplittingRun(found.points, rho * found.u, found.label, count)
