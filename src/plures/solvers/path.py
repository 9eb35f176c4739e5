"""Solutions for many alphas, from the global model down, and which of them to take.

Every step starts from the last: its clusters, models and flows. Clusters split as alpha falls, and now and then two
fuse again: for losses that are not quadratic the path is no tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from plures.errors import BadValue
from plures.solvers.clients import Clients
from plures.solvers.flow import threshold
from plures.solvers.fused_problem import Problem, Solution, fuse_and_split, solve
from plures.solvers.graph import Graph, Ints
from plures.solvers.partition import Partition
from plures.solvers.prox import own_best
from plures.types import Floats

Tell = Callable[[int, int], None]
"""(done, of how many): called as a path goes on."""


@dataclass(frozen=True)
class Consensus:
    """The global model (dim,), the clients' gradients there (N, dim), and the bracket of alpha_hat."""

    model: Floats
    gradients: Floats
    low: float
    high: float
    flow: Floats | None = None  # (edges, dim) that proves the upper end

    @property
    def alpha_hat(self) -> float:
        """The least alpha at which everybody shares the global model: the upper end, which is proved."""
        return self.high


def consensus(clients: Clients, graph: Graph | None = None, *, tol: float = 1e-5) -> Consensus:
    """The global model, and alpha_hat on the graph where one is given."""
    model = own_best(clients.pooled(), np.zeros((1, clients.dim))).x[0]
    gradients = clients.gradient(np.broadcast_to(model, (clients.num, clients.dim)))
    if graph is None or clients.num == 1:
        return Consensus(model, gradients, 0.0, 0.0)
    most = 1_000 if len(graph) < 50_000 else 80
    found = threshold(gradients.mean(0) - gradients, graph, tol=tol, most=most)
    return Consensus(model, gradients, found.low, found.high, found.u)


@dataclass(frozen=True, eq=False)
class ClusterPath:
    """Solutions from the largest alpha to the least."""

    solutions: tuple[Solution, ...]
    alpha_hat: float

    @property
    def alphas(self) -> Floats:
        """(steps,) from the largest."""
        return np.array([one.certificate.alpha for one in self.solutions])

    @property
    def t(self) -> Floats:
        """(steps,) alpha over alpha_hat."""
        return self.alphas / self.alpha_hat if self.alpha_hat else np.ones(len(self.solutions))

    @property
    def num_clusters(self) -> Ints:
        """(steps,) clusters at each alpha."""
        return np.array([one.num_clusters for one in self.solutions])

    def plateaus(self) -> list[tuple[int, int]]:
        """(first, last) of every run of equal partitions."""
        labels = [one.label for one in self.solutions]
        new = [place for place in range(1, len(labels)) if change(labels[place - 1], labels[place])]
        return [(first, end - 1) for first, end in pairwise([0, *new, len(labels)])]

    def plateau(self, step: int) -> tuple[float, float]:
        """The largest and the least alpha of the steps around one that share its partition."""
        first, last = next((a, b) for a, b in self.plateaus() if a <= step <= b)
        return float(self.alphas[first]), float(self.alphas[last])


def change(one: Ints, other: Ints) -> str:
    """ "" for the same partition, "split" where the other refines it, "merge" where it is coarser, else "regroup"."""
    pairs = len(np.unique(one * (other.max() + 1) + other))
    before, after = int(one.max()) + 1, int(other.max()) + 1
    if pairs == before == after:
        return ""
    if pairs == after:
        return "split"
    return "merge" if pairs == before else "regroup"


def grid(alpha_hat: float, number: int, least: float) -> Floats:
    """``number`` alphas from alpha_hat to ``least`` times it, evenly on the logarithmic scale."""
    if number < 2:
        raise BadValue("num_lams", number, "2 or more")
    if not 0 < least < 1:
        raise BadValue("least", least, "a number between 0 and 1, as a share of alpha_hat")
    return alpha_hat * np.geomspace(1.0, least, number)


def follow(
    clients: Clients,
    graph: Graph,
    alphas: Floats,
    start: Consensus,
    *,
    most: int | None = None,
    tell: Tell | None = None,
) -> tuple[Solution, ...]:
    """Solutions at ``alphas``, from the largest down, each from the last; until there are more than ``most`` clusters."""
    whole = Partition(clients, graph, np.zeros(clients.num, np.int64))
    now = fuse_and_split(Problem(clients, graph, float(alphas[0])), whole, start.model[None], duals=start.flow)
    found: list[Solution] = []
    for place, alpha in enumerate(alphas):
        problem = Problem(clients, graph, float(alpha))
        now = fuse_and_split(problem, now.partition, now.models, duals=now.certificate.u)
        if not now.certificate.exact:
            now = solve(problem, guess=now.label, start=now.x, duals=now.certificate.u)
        if most is not None and now.num_clusters > most and len(found) > 1:
            if tell is not None:
                tell(len(found), len(found))
            break
        found.append(now)
        if tell is not None:
            tell(place + 1, len(alphas))
    return tuple(found)


def criterion(clients: Clients, solution: Solution) -> float:
    """BIC: M log(mean loss) + K d log M for M rows; for counts 2 M (mean loss), whose loss is a likelihood."""
    rows = float(clients.counts.sum())
    x = solution.x
    loss = float((clients.value(x) - 0.5 * (x * x) @ clients.ridge).mean())
    fit = 2.0 * rows * loss if clients.loss.name == "poisson" else rows * np.log(max(loss, 1e-300))
    return fit + solution.num_clusters * clients.dim * np.log(rows)


def by_criterion(path: ClusterPath, clients: Clients) -> int:
    """The step with the least BIC."""
    return int(np.argmin([criterion(clients, one) for one in path.solutions]))


def by_plateau(path: ClusterPath, clients: Clients) -> int:
    """The middle of the longest stretch of log alpha with one partition of more than 1 and less than N/2 clusters."""
    logs = np.log(path.alphas)
    fair = [
        (logs[a] - logs[b], (a + b) // 2) for a, b in path.plateaus() if 1 < path.num_clusters[a] < clients.num / 2
    ]
    return max(fair)[1] if fair else by_criterion(path, clients)


def by_hold_out(solutions: Sequence[Solution], held: Clients) -> int:
    """The largest alpha whose held-out loss is within one paired standard error of the least."""
    losses = np.stack([held.value(one.x) - 0.5 * (one.x * one.x) @ held.ridge for one in solutions])
    best = int(np.argmin(losses.mean(1)))
    worse = losses - losses[best]
    error = worse.std(1, ddof=1) / np.sqrt(max(held.num, 2)) if held.num > 1 else np.zeros(len(losses))
    return int(np.flatnonzero(worse.mean(1) <= error + 1e-15)[0])


CRITERIA = {"bic": by_criterion, "plateau": by_plateau}
"""What takes a step of a path by the path itself; the other way is ``by_hold_out``."""
