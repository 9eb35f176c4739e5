"""Convex clustering on ellipses: accuracies along both penalties, and the intervals on which groups are recovered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from papers.convex_clustering.squared_penalty import held_together
from papers.convex_clustering.theorems import apart_bound, fused_bound
from plures.data.worlds.known_optima import ellipses
from plures.solvers import (
    AlphaInterval,
    Clients,
    ClusterPath,
    Graph,
    Partition,
    as_clients,
    certified_interval,
    complete,
    consensus,
    follow,
    grid,
    nearest,
)
from plures.solvers.certificate import flow_margins
from plures.solvers.fused_problem import tidy
from plures.solvers.newton import centered
from plures.solvers.prox import own_best

Floats = NDArray[np.float64]

RIDGE, NO_RIDGE = 1e-3, 1e-6  # of the weights, and of the intercept: next to none keeps every optimum finite
NEIGHBORS = 5
GLOBAL, LOCAL, ORACLE, NORMS, SQUARES = "global", "local", "oracle", "sum of norms", "squared penalty"

# Accuracies of another program of the same experiment (CVXPY with Clarabel), mean of six draws of its own.
REFERENCE = {
    "balanced": {GLOBAL: 0.521, LOCAL: 0.837, ORACLE: 0.871, NORMS: 0.8731, SQUARES: 0.8729},
    "free": {GLOBAL: 0.455, LOCAL: 0.834, ORACLE: 0.871, NORMS: 0.8728, SQUARES: 0.8711},
}
PUBLISHED = {NORMS: 0.868, SQUARES: 0.866}  # the paper's, on points of its own
PAPER_INTERVAL = (0.0892, 0.0919)
KINDS = ("balanced", "free")


@dataclass(frozen=True, eq=False)
class Draw:
    """A draw of the world: clients with squared hinges, their planted groups, and every group's test set."""

    kind: str
    seed: int
    clients: Clients
    group: NDArray[np.int64]
    tests: tuple[tuple[Floats, NDArray[np.bool_]], ...]

    def accuracy(self, x: Floats) -> float:
        """The mean over clients of the accuracy of (N, 3) models, each on the whole test set of its group."""
        found = [
            ((rows @ x[self.group == own].T > 0) == y[:, None]).mean(0) for own, (rows, y) in enumerate(self.tests)
        ]
        return float(np.concatenate(found).mean())

    def apart(self, x: Floats) -> float:
        """The mean distance between the models of two clients of one planted group."""
        return float(np.mean([pdist(x[self.group == own]).mean() for own in range(len(self.tests))]))

    def spread(self, x: Floats) -> float:
        """The largest such distance."""
        return float(max(pdist(x[self.group == own]).max() for own in range(len(self.tests))))


def draw(kind: str, seed: int, num_clients: int = 60) -> Draw:
    """A draw of balanced or free clients."""
    world = ellipses(num_clients=num_clients, balanced=kind == "balanced", seed=seed)
    federation = world.federation
    rows = [federation.rows_of(name, "train") for name in federation.names]
    clients = as_clients(
        [x for x, _ in rows],
        [y for _, y in rows],
        loss="squared_hinge",
        ridge=RIDGE,
        intercept_ridge=NO_RIDGE,
    )
    group = np.asarray(federation.group)
    tests = [federation.rows_of(name, "test") for name in federation.names]
    joined = []
    for own in range(federation.num_groups):
        mine = [tests[place] for place in np.flatnonzero(group == own)]
        x = np.concatenate([part for part, _ in mine]).astype(float)
        joined.append((np.c_[x, np.ones(len(x))], np.concatenate([y for _, y in mine]) == 1))
    return Draw(kind, seed, clients, group, tuple(joined))


class Point(NamedTuple):
    """Models at one strength of a penalty, and what they are worth."""

    kind: str
    seed: int
    method: str
    strength: float
    accuracy: float
    clusters: int
    apart: float  # mean distance of two models of a planted group
    spread: float  # the largest such
    exact: bool


def anchors(data: Draw) -> dict[str, float]:
    """Accuracies of one model for all, of every client by itself, and of known groups."""
    clients, num = data.clients, data.clients.num
    alone = own_best(clients, np.zeros((num, clients.dim))).x
    known = Partition(clients, complete(num), data.group).at(0.0)
    oracle = centered(
        known, np.zeros((known.groups.number, clients.dim)) + np.eye(known.groups.number, clients.dim)
    )
    return {
        GLOBAL: data.accuracy(np.broadcast_to(consensus(clients).model, alone.shape)),
        LOCAL: data.accuracy(alone),
        ORACLE: data.accuracy(oracle.w[data.group]),
    }


def norms(data: Draw, alphas: Floats) -> list[Point]:
    """The sum of norms on the complete graph along alphas, from the largest."""
    graph = complete(data.clients.num)
    found = follow(data.clients, graph, np.sort(alphas)[::-1], consensus(data.clients))
    return [
        _point(data, NORMS, one.certificate.alpha, one.x, one.num_clusters, one.certificate.exact) for one in found
    ]


def squares(data: Draw, gammas: Floats) -> list[Point]:
    """The squared penalty along its strengths, from the largest."""
    points, x = [], None
    for gamma in np.sort(gammas)[::-1]:
        x = held_together(data.clients, float(gamma), start=x).x
        points.append(_point(data, SQUARES, float(gamma), x, len(np.unique(x.round(9), axis=0)), True))
    return points


def _point(data: Draw, method: str, strength: float, x: Floats, clusters: int, exact: bool) -> Point:
    return Point(
        data.kind, data.seed, method, strength, data.accuracy(x), clusters, data.apart(x), data.spread(x), exact
    )


def graphs(data: Draw) -> Iterator[tuple[str, Graph]]:
    """The complete graph, and that of nearest neighbors by gradients at the global model."""
    yield "complete", complete(data.clients.num)
    yield "5 neighbors", nearest(consensus(data.clients).gradients, NEIGHBORS)


class Recovery(NamedTuple):
    """Where the planted groups are exactly the solution's clusters; NaN where they never are."""

    kind: str
    seed: int
    graph: str
    low: float
    high: float
    below: str
    above: str
    alpha_hat: float
    theorem_6: float  # how many times alpha (6) asks for, at the alpha where that is least; above 1 it never holds
    theorem_13: float  # the alpha up to which (13) holds

    @property
    def found(self) -> bool:
        """Whether there is such an alpha."""
        return bool(np.isfinite(self.low))


def recovery(data: Draw, name: str, graph: Graph, alphas: Floats) -> Recovery:
    """The widest certified interval of the planted groups that holds one of ``alphas``, and what the theorems say."""
    partition = Partition(data.clients, graph, tidy(data.group))
    best = max(_pieces(partition, alphas), key=lambda piece: piece.ratio, default=None)
    start = consensus(data.clients, graph)
    asked, apart = _theorems(partition, alphas, start.model) if graph.is_uniform else (np.nan, np.nan)
    ends = (np.nan, np.nan, "", "") if best is None else (best.low, best.high, best.below, best.above)
    return Recovery(data.kind, data.seed, name, *ends, start.alpha_hat, asked, apart)


def _pieces(partition: Partition, alphas: Floats) -> list[AlphaInterval]:
    """The certified intervals that hold one of these alphas."""
    found: list[AlphaInterval] = []
    w = np.eye(partition.number, partition.clients.dim)
    for alpha in np.sort(alphas):
        w = _next(partition, float(alpha), w)[0]
        if any(piece.low <= alpha <= piece.high for piece in found):
            continue
        piece = certified_interval(partition, float(alpha), w)
        if piece is not None:
            found.append(piece)
    return found


def _next(partition: Partition, alpha: float, w: Floats) -> tuple[Floats, bool]:
    """The groups' models at alpha from those at a smaller one, and whether no two of them meet."""
    at = centered(partition.at(alpha), w)
    return (w, False) if len(at.met) else (at.w, True)


def _theorems(partition: Partition, alphas: Floats, model: Floats) -> tuple[float, float]:
    """The least share of alpha that (6) asks for over all alphas, and the alpha up to which (13) holds."""
    asked = []
    w = np.eye(partition.number, partition.clients.dim)
    for alpha in np.sort(alphas):
        w, apart = _next(partition, float(alpha), w)
        if apart:
            asked.append(fused_bound(partition, w) / alpha)
    return min(asked, default=np.nan), apart_bound(partition, model)


class Bound(NamedTuple):
    """What alpha has to exceed for a planted group to stay fused, exactly and by (6), at the groups' models for alpha."""

    alpha: float
    group: int
    phi: float
    theorem_6: float


def bounds(data: Draw, alphas: Floats) -> list[Bound]:
    """The thresholds of the planted groups along alphas, on the complete graph, as long as no two groups meet."""
    partition = Partition(data.clients, complete(data.clients.num), data.group)
    lines: list[Bound] = []
    w = np.eye(partition.number, partition.clients.dim)
    for alpha in np.sort(alphas):
        w, apart = _next(partition, float(alpha), w)
        if apart:
            phi = alpha - flow_margins(partition, float(alpha), w, np.full(partition.number, np.inf))
            six = fused_bound(partition, w)
            lines += [Bound(float(alpha), own, float(phi[own]), six) for own in range(partition.number)]
    return lines


def path(data: Draw, graph: Graph, number: int, least: float) -> tuple[ClusterPath, Floats]:
    """The path from the global model down, and that model."""
    start = consensus(data.clients, graph)
    found = follow(data.clients, graph, grid(start.alpha_hat, number, least), start)
    return ClusterPath(found, start.alpha_hat), start.model


def best_of_means(points: Sequence[Point]) -> tuple[float, float]:
    """The strength whose mean accuracy over draws is best, and that accuracy."""
    strengths = sorted({point.strength for point in points})
    means = [np.mean([point.accuracy for point in points if point.strength == one]) for one in strengths]
    place = int(np.argmax(means))
    return strengths[place], float(means[place])
