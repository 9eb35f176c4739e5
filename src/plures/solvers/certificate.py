"""What proves an answer: a feasible dual, the gap it leaves, and for every cluster the margin of its flow.

For any duals with |u_e| <= alpha w_e and any models x, with r_i = grad f_i(x_i) + outflow_i(u),

    Phi(x) - Phi*  <=  sum_e (alpha w_e |x_head - x_tail| - <u_e, x_head - x_tail>)  +  sum_i  r_i^T M_i^-1 r_i / 2     (G)

where M_i is curvature that f_i has everywhere. Where M_i is small the second sum says little; one number per client,
min_x f_i(x) + <outflow_i(u), x>, then gives the true gap between the two problems.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plures.solvers.clients import Clients
from plures.solvers.flow import HAIR, Flow, alternated, client_ratios, cut_test, flow_test, threshold
from plures.solvers.graph import Graph, Ints, lengths
from plures.solvers.laplacian_flow import corrected
from plures.solvers.partition import Partition
from plures.solvers.prox import lowest, shortfall
from plures.types import Floats

SOLVED, ROUNDING = 1e-6, 1e-12
"""What may be left of the gradients, as a share of what cancels in them and of what goes into them."""

QUICK = 30
"""Rounds of alternating projections for all clusters at once, before those that fail are looked at one by one."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """Duals ``u`` (edges, dim), the ``gap`` they leave, and per cluster the bracket of phi, low <= phi <= high.

    ``held`` says of every cluster whether a flow shows that it stays fused: margin alpha - high not below 0.
    """

    alpha: float
    u: Floats
    gap: float
    low: Floats
    high: Floats
    solved: bool

    @property
    def held(self) -> np.ndarray:
        """(K,) whether each cluster is shown to stay fused."""
        return self.high <= self.alpha * (1 + HAIR)

    @property
    def exact(self) -> bool:
        """Whether the partition is proved to be the solution's: every cluster held, at models that solve it and differ."""
        return bool(self.held.all()) and self.solved


def objective(clients: Clients, graph: Graph, alpha: float, x: Floats) -> float:
    """Phi at (N, dim) models."""
    return float(clients.value(x).sum()) + alpha * graph.penalty(x)


def gap_bound(clients: Clients, graph: Graph, alpha: float, x: Floats, u: Floats) -> float:
    """(G): how far Phi(x) is at most above the best, from x and duals alone; infinite where these are not allowed."""
    if not _allowed(graph, alpha, u):
        return np.inf
    apart = graph.gaps(x)
    loose = alpha * graph.weight @ lengths(apart) - np.vdot(u, apart)
    left = clients.gradient(x) + graph.outflow(u)
    return max(float(loose), 0.0) + float(shortfall(clients, left).sum())


def true_gap(clients: Clients, graph: Graph, alpha: float, x: Floats, u: Floats) -> float:
    """The gap between the two problems: every client says how low its tilted loss can get."""
    if not _allowed(graph, alpha, u):
        return np.inf
    dual = float(lowest(clients, graph.outflow(u), x).sum())
    return objective(clients, graph, alpha, x) - dual


def _allowed(graph: Graph, alpha: float, u: Floats) -> bool:
    return bool((lengths(u) <= alpha * graph.weight * (1 + HAIR)).all())


def forces(partition: Partition, alpha: float, w: Floats) -> tuple[Floats, Floats]:
    """(N, dim) what each client's cluster must hold, b_i, and the duals of the edges between clusters.

    b_i = -grad f_i(w_k) - alpha sum_{j outside} w_ij (w_k - w_l) / |w_k - w_l|, which sums to zero over a cluster at
    the solution of the partition's own problem.
    """
    graph, x = partition.graph, w[partition.label]
    apart = graph.gaps(x)
    size = np.where(partition.inside, np.inf, np.maximum(lengths(apart), 1e-300))
    u = (alpha * graph.weight / size)[:, None] * apart
    return -partition.clients.gradient(x) - graph.outflow(u), u


def certify(
    partition: Partition, alpha: float, w: Floats, *, start: Floats | None = None, search: int = 2_000
) -> tuple[Certificate, list[Flow | None]]:
    """Whether the partition with models ``w`` (K, dim) is the solution's, with the flows that show it.

    Flows start from the electrical one, or from ``start`` (duals of an earlier answer) after correction. Clusters without
    a flow are looked at one by one (not at all with ``search`` up to ``QUICK``); those that fall apart come with their
    test, whose ``split`` says how.
    """
    clients, inner, own, number = partition.clients, partition.inner, partition.own, partition.number
    b, u = forces(partition, alpha, w)
    low = _largest(client_ratios(b, inner), partition.label, number)
    tests: list[Flow | None] = [None] * number
    if search <= QUICK and low.max() > alpha * (1 + HAIR):
        return Certificate(alpha, u, np.inf, low, np.full(number, np.inf), False), tests
    first = np.zeros((len(inner), b.shape[1])) if start is None else start[partition.inside]
    found = corrected(inner, first, b)
    high = _strains(inner, found, own, number)
    if (high > alpha * (1 + HAIR)).any():
        found, _, _, v = alternated(b, inner, alpha, found, float(low.max()), most=min(search, QUICK))
        for k in np.flatnonzero(_strains(inner, found, own, number) > alpha * (1 + HAIR)) if search > QUICK else ():
            members, edges, group = partition.cluster(int(k))
            test = cut_test(b[members], v[members], group, alpha, found[edges]) or flow_test(
                b[members], group, alpha, start=found[edges], max_steps=search
            )
            found[edges], tests[k], low[k] = test.u, test, max(low[k], test.low)
        high = _strains(inner, found, own, number)
    u[partition.inside] = found
    gradients = clients.gradient(w[partition.label])
    left = gradients + partition.graph.outflow(u)
    residual = float(np.abs(left).max())
    gap = float(shortfall(clients, left).sum()) if (high <= alpha * (1 + HAIR)).all() else np.inf
    scale = SOLVED * max(float(np.abs(gradients).max()), float(np.abs(u).max(initial=0.0)))
    solved = np.isfinite(gap) and residual <= scale + ROUNDING * clients.steep * float(np.abs(w).max(initial=1.0))
    return Certificate(alpha, u, gap, low, high, solved and _apart(partition, w, gap)), tests


def flow_margins(partition: Partition, alpha: float, w: Floats, known: Floats) -> Floats:
    """(K,) alpha - phi_k by the best flow found for each cluster; ``known`` are strains of flows that were found before.

    Infinite for a cluster of one.
    """
    b, _ = forces(partition, alpha, w)
    found = np.full(partition.number, np.inf)
    for k in range(partition.number):
        members, _, group = partition.cluster(k)
        if len(members) > 1:
            found[k] = alpha - min(threshold(b[members], group, tol=1e-3, most=300).high, known[k])
    return found


def _strains(inner: Graph, u: Floats, own: Ints, number: int) -> Floats:
    """(K,) the largest |u_e| / w_e in each cluster."""
    return _largest(lengths(u) / inner.weight, own, number)


def _largest(values: Floats, label: Ints, number: int) -> Floats:
    """(K,) the largest value of each label, 0 at least."""
    found = np.zeros(number)
    np.maximum.at(found, label, values)
    return found


def _apart(partition: Partition, w: Floats, gap: float) -> bool:
    """Whether the models of different clusters are shown to differ.

    The gap is at least half the sum of n_k |w_k - w_k*|^2 in the norm of the curvature M, so that two clusters are apart
    where |w_k - w_l| is more than sqrt(2 gap / n_k) + sqrt(2 gap / n_l) in that norm.
    """
    ties, clients = partition.ties, partition.clients
    if len(w) < 2:
        return True
    if not np.isfinite(gap) or not len(ties):
        return False
    apart, far = ties.gaps(w), np.sqrt(2.0 * gap / partition.groups.size)
    if clients.loss.name == "least_squares":
        size = np.sqrt(clients.least_curvature) * lengths(apart)
    else:
        size = np.sqrt((apart * apart) @ clients.ridge)
    return bool((size > far[ties.head] + far[ties.tail]).all())
