"""Who is fused with whom: weighted graphs of clients, as lists of edges.

Weights are scaled so that they sum to N (N - 1) / 2, as on the complete graph of unit weights: alpha keeps its unit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist, squareform

from plures.errors import BadValue, Unsupported
from plures.types import Floats, Key

Ints = NDArray[np.int64]

MOST_BYTES = 8 * 2**30
"""What the edge arrays of one problem may take."""

FULL = 120_000
"""Up to so many entries the matrix of clients and edges is kept full: for few clients that is quicker."""

SMALL = 2_000
"""Up to so many points distances between all pairs are looked at."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Edges (head < tail) of positive weight between ``num`` clients."""

    num: int
    head: Ints
    tail: Ints
    weight: Floats

    def __len__(self) -> int:
        return len(self.head)

    @cached_property
    def divergence(self) -> Any:
        """(clients, edges): +1 where the client is the head, -1 where it is the tail. Full where small, else sparse."""
        values, edges = np.repeat([1.0, -1.0], len(self)), np.tile(np.arange(len(self)), 2)
        places = np.concatenate([self.head, self.tail]), edges
        found = sparse.csr_array((values, places), shape=(self.num, len(self)))
        return found.toarray() if self.num * len(self) <= FULL else found

    @cached_property
    def touching(self) -> Any:
        """(clients, edges): touching @ v sums over the edges of each client, whichever end it is."""
        return abs(self.divergence)

    @cached_property
    def degree(self) -> Floats:
        """(clients,) summed weights."""
        return self.touching @ self.weight

    @cached_property
    def num_edges(self) -> Floats:
        """(clients,) how many edges each has."""
        return self.touching @ np.ones(len(self))

    @cached_property
    def laplacian(self) -> sparse.csr_array:
        """(clients, clients) of the weights."""
        return sparse.csr_array((self.divergence * self.weight) @ self.divergence.T)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether this is the complete graph with equal weights."""
        return len(self) == self.num * (self.num - 1) // 2 and (not len(self) or bool(np.ptp(self.weight) == 0))

    def gaps(self, x: Floats) -> Floats:
        """(edges, dim) differences of what stands at head and tail."""
        return x[self.head] - x[self.tail]

    def outflow(self, u: Floats) -> Floats:
        """(clients, dim) what leaves each client along its edges."""
        return self.divergence @ u

    def penalty(self, x: Floats) -> float:
        """sum_e w_e |x_head - x_tail|."""
        return float(self.weight @ lengths(self.gaps(x)))

    @cached_property
    def part(self) -> Ints:
        """(clients,) the connected component that each is in."""
        across = sparse.coo_array((np.ones(len(self)), (self.head, self.tail)), shape=(self.num, self.num))
        return connected_components(across, directed=False)[1].astype(np.int64)

    @property
    def num_parts(self) -> int:
        """How many connected components there are."""
        return int(self.part.max()) + 1

    def contracted(self, label: Ints, number: int) -> tuple[Graph, Ints]:
        """The graph between groups, weights summed, and for every edge its new one (-1: inside a group)."""
        one, other = label[self.head], label[self.tail]
        outside, renamed = np.flatnonzero(one != other), np.full(len(self), -1)
        graph, renamed[outside] = _merged(number, one[outside], other[outside], self.weight[outside])
        return graph, renamed

    def among(self, edges: NDArray[np.bool_] | Ints) -> Graph:
        """The graph with some of its edges."""
        return Graph(self.num, self.head[edges], self.tail[edges], self.weight[edges])

    def normalized(self) -> Graph:
        """Weights scaled to sum to N (N - 1) / 2."""
        total = self.weight.sum()
        if not total:
            return self
        return replace(self, weight=self.weight * (self.num * (self.num - 1) / 2 / total))


def lengths(vectors: Floats) -> Floats:
    """(edges,) Euclidean norms of the rows."""
    return np.sqrt(np.einsum("ed,ed->e", vectors, vectors))


def means_by(label: Ints, values: Floats, mass: Floats | None = None) -> Floats:
    """(K, d) means of the rows of each label, weighted by ``mass``."""
    heavy = values if mass is None else mass[:, None] * values
    sums = np.stack([np.bincount(label, column) for column in heavy.T], axis=1)
    return sums / np.bincount(label, mass)[:, None]


def complete(num: int) -> Graph:
    """All pairs, weight 1.

    >>> len(complete(60))
    1770
    """
    if num < 1:
        raise BadValue("num", num, "1 or more")
    head, tail = np.triu_indices(num, 1)
    return Graph(num, head.astype(np.int64), tail.astype(np.int64), np.ones(len(head)))


def from_edges(num: int, edges: ArrayLike, weight: ArrayLike | None = None) -> Graph:
    """A graph of your own: (edges, 2) numbers of clients, and weights (1 for all). It must hang together."""
    ends = np.asarray(edges, np.int64).reshape(-1, 2)
    values = np.ones(len(ends)) if weight is None else np.asarray(weight, float)
    if len(values) != len(ends) or not (values > 0).all() or not np.isfinite(values).all():
        raise BadValue("weight", f"{len(values)} numbers", "one positive number for each edge")
    if len(ends) and (ends.min() < 0 or ends.max() >= num or (ends[:, 0] == ends[:, 1]).any()):
        raise BadValue("edges", "such a list", f"pairs of two different clients from 0 to {num - 1}")
    graph = _merged(num, ends[:, 0], ends[:, 1], values)[0]
    check_whole(graph)
    return graph


def check_whole(graph: Graph) -> None:
    """Refuse a graph that does not hang together."""
    if graph.num_parts > 1:
        raise Unsupported(
            f"the graph has {graph.num_parts} parts without an edge between them: clients of different parts are never fused. "
            "Solve each part by itself, or join them (plures.solvers.linked)"
        )


def nearest(points: ArrayLike, num_neighbors: int = 10) -> Graph:
    """Edges to the nearest neighbors, of either end, and minimum-spanning-tree links so that all hang together.

    Points that lie on one another are neighbors like any others.
    """
    where = np.asarray(points, float)
    num = len(where)
    if num_neighbors < 1:
        raise BadValue("num_neighbors", num_neighbors, "1 or more")
    if num_neighbors >= num - 1:
        return complete(num)
    # One more than asked for: the nearest is the point itself, or its double.
    _, found = cKDTree(where).query(where, k=num_neighbors + 1)
    own = np.repeat(np.arange(num), num_neighbors + 1)
    other = found.reshape(-1)
    real = own != other
    graph = _merged(num, own[real], other[real], np.ones(real.sum()))[0]
    return linked(replace(graph, weight=np.ones(len(graph))), where).normalized()


def linked(graph: Graph, points: Floats) -> Graph:
    """The graph with the shortest links that join its parts, as a minimum spanning tree has them."""
    while graph.num_parts > 1:
        head, tail = _links(points, graph.part)
        weight = np.full(len(head), np.median(graph.weight) if len(graph) else 1.0)
        graph = _both(graph, Graph(graph.num, head, tail, weight))
    return graph


def mixed(graph: Graph, theta: float) -> Graph:
    """(1 - theta) of the graph and theta of the complete one."""
    if not 0 <= theta <= 1:
        raise BadValue("theta", theta, "a number in [0, 1]")
    if theta == 0:
        return graph
    whole = complete(graph.num)
    return _both(replace(graph, weight=(1 - theta) * graph.weight), replace(whole, weight=theta * whole.weight))


def sketched(key: Key, points: Floats, dim: int) -> Floats:
    """The points in fewer dimensions, by a random projection that keeps distances roughly (Johnson-Lindenstrauss)."""
    if dim < 1:
        raise BadValue("sketch", dim, "1 or more")
    if dim >= points.shape[1]:
        return points
    drawn = np.asarray(jax.random.normal(key, (points.shape[1], dim)), float)
    return points @ drawn / np.sqrt(dim)


def check_room(num_edges: int, dim: int) -> None:
    """Refuse a graph whose three edge arrays do not fit into memory, before they are made."""
    needed = 3 * num_edges * dim * 8
    if needed > MOST_BYTES:
        raise Unsupported(
            f"{num_edges:,} edges of {dim} numbers need {needed / 2**30:,.0f} GB, more than the {MOST_BYTES / 2**30:.0f} "
            "GB allowed: use the graph of nearest neighbors (graph='knn')"
        )


def _merged(num: int, one: Ints, other: Ints, weight: Floats) -> tuple[Graph, Ints]:
    """Edges with the smaller end first, one named twice with the summed weight; and which of them each became."""
    low, high = np.minimum(one, other), np.maximum(one, other)
    codes, place = np.unique(low * num + high, return_inverse=True)
    return Graph(num, codes // num, codes % num, np.bincount(place, weight, len(codes)).astype(float)), place


def _both(one: Graph, other: Graph) -> Graph:
    """The edges of two graphs."""
    parts = (np.concatenate([getattr(one, name), getattr(other, name)]) for name in ("head", "tail", "weight"))
    return _merged(one.num, *parts)[0]


def _links(points: Floats, part: Ints) -> tuple[Ints, Ints]:
    """For every part but the largest the shortest way out of it."""
    if len(points) <= SMALL:
        return _tree_links(points, part)
    heads, tails = [], []
    for one in np.argsort(np.bincount(part))[:-1]:
        inside, outside = np.flatnonzero(part == one), np.flatnonzero(part != one)
        apart, found = cKDTree(points[outside]).query(points[inside])
        best = int(np.argmin(apart))
        heads.append(inside[best])
        tails.append(outside[found[best]])
    return np.array(heads), np.array(tails)


def _tree_links(points: Floats, part: Ints) -> tuple[Ints, Ints]:
    """The edges of a minimum spanning tree that go from one part to another."""
    # Zero means "no edge" to the library: points that lie on one another get a hair's breadth.
    apart = squareform(np.maximum(pdist(points), 1e-300))
    tree = minimum_spanning_tree(sparse.csr_array(apart)).tocoo()
    between = part[tree.row] != part[tree.col]
    return tree.row[between].astype(np.int64), tree.col[between].astype(np.int64)
