"""Clients in groups that share a model: the sums of their losses, as functions of one model per group.

    F(w)  =  sum_i f_i(w_{k(i)})  +  alpha sum_{k<l} W_kl |w_k - w_l|

Only sums over a group are needed here, so this is all that a server learns from secure aggregation.

A first guess of who belongs together comes from the clients' gradients at the global model. Federations are linked by
Ward's rule and cut where the next merger costs much more than those before; of large ones a random sample is, and the
others go to the nearest mean (three rounds of k-means). A guess is only where the solver starts: what it ends with is
proved, or said not to be.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, ward
from scipy.cluster.vq import kmeans2

from plures.solvers.clients import Clients
from plures.solvers.graph import Graph, Ints, means_by
from plures.types import Floats

SMALL, MOST, ROUNDS = 1_500, 8, 3


class Expansion(NamedTuple):
    """Value, gradient (K, dim) and curvature (K, dim, dim) of the groups' summed losses."""

    value: float
    gradient: Floats
    curvature: Floats


class GroupedClients:
    """The summed losses of groups of clients; ``label`` has 0 .. number - 1.

    The rows of a group are one client's, so to say; groups of as many clients are worked on together.
    """

    def __init__(self, clients: Clients, label: Ints, number: int) -> None:
        self.number, self.size = number, np.bincount(label, minlength=number).astype(float)
        self.ridge = self.size[:, None] * clients.ridge
        self._alike: list[tuple[Ints, Clients]] = []
        for size in np.unique(self.size):
            groups, members = np.flatnonzero(self.size == size), np.flatnonzero(self.size[label] == size)
            order = members[np.argsort(label[members], kind="stable")]
            some = clients if np.array_equal(order, np.arange(clients.num)) else clients.take(order)
            a, y, share = (part.reshape(len(groups), -1, *part.shape[2:]) for part in (some.a, some.y, some.share))
            self._alike.append((groups, Clients(a, y, share, size * clients.ridge, clients.loss)))
        self._quadratic = self._moments() if clients.loss.name == "least_squares" else None

    def expand(self, w: Floats) -> Expansion:
        """Value, gradient and curvature."""
        if self._quadratic is not None:
            gram, best, constant = self._quadratic
            rise = np.einsum("kij,kj->ki", gram, w - best)
            value = 0.5 * float((self.ridge * w * w).sum() + (rise * (w - best)).sum()) + constant
            return Expansion(value, self.ridge * w + rise, self.ridge[..., None] * np.eye(w.shape[1]) + gram)
        value = 0.5 * float((self.ridge * w * w).sum())
        gradient, curvature = np.empty_like(w), np.empty((*w.shape, w.shape[1]))
        for groups, joined in self._alike:
            value += float(np.vdot(joined.share, joined.loss.value(joined.outputs(w[groups]), joined.y)))
            gradient[groups], curvature[groups] = joined.gradient(w[groups]), _curvatures(joined, w[groups])
        return Expansion(value, gradient, curvature)

    def _moments(self) -> tuple[Floats, Floats, float]:
        """What determines squared errors: sums of a a^T, where each group's sum is least, and how much that is.

        Around its least value a sum of squares does not cancel, however far from zero the targets are.
        """
        best, constant = np.empty_like(self.ridge), 0.0
        gram = np.empty((*best.shape, best.shape[1]))
        for groups, joined in self._alike:
            for k, a, y, share in zip(groups, joined.a, joined.y, joined.share, strict=True):
                heavy = a * share[:, None]
                gram[k] = a.T @ heavy
                middle = float(share @ y / share.sum())
                first = np.linalg.lstsq(gram[k], heavy.T @ np.full(len(y), middle), rcond=None)[0]
                best[k] = first + np.linalg.lstsq(gram[k], heavy.T @ (y - a @ first), rcond=None)[0]
                constant += 0.5 * float(share @ ((y - a @ best[k]) ** 2))
        return gram, best, constant


def _curvatures(clients: Clients, x: Floats) -> Floats:
    """``clients.curvature(x)``, output by output: for many rows and several outputs that is much quicker."""
    outputs, rows = clients.loss.num_outputs, clients.a.swapaxes(1, 2)
    curvatures = clients.loss.curvature(clients.outputs(x), clients.y) * clients.share[..., None, None]
    found = np.empty((len(x), rows.shape[1], outputs, rows.shape[1], outputs))
    for one, other in np.ndindex(outputs, outputs):
        found[:, :, one, :, other] = np.matmul(rows, clients.a * curvatures[..., one, other, None])
    return found.reshape(len(x), clients.dim, clients.dim) + np.diag(clients.ridge)


class Partition:
    """Clients in groups, and the graph between and within the groups; what is worked out is kept for the next alpha."""

    def __init__(self, clients: Clients, graph: Graph, label: Ints) -> None:
        self.clients, self.graph, self.label = clients, graph, label
        self.number = int(label.max()) + 1

    @cached_property
    def groups(self) -> GroupedClients:
        """The groups' summed losses."""
        return GroupedClients(self.clients, self.label, self.number)

    @cached_property
    def ties(self) -> Graph:
        """The graph between groups, weights summed."""
        return self.graph.contracted(self.label, self.number)[0]

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """(edges,) which edges lie within a group."""
        return self.label[self.graph.head] == self.label[self.graph.tail]

    @cached_property
    def inner(self) -> Graph:
        """The graph within groups."""
        return self.graph.among(self.inside)

    @cached_property
    def own(self) -> Ints:
        """(inner edges,) the group of each."""
        return self.label[self.graph.head[self.inside]]

    def cluster(self, k: int) -> tuple[Ints, Ints, Graph]:
        """One cluster's members, its inner edges, and its graph, the members numbered from 0."""
        members, edges, inner = np.flatnonzero(self.label == k), np.flatnonzero(self.own == k), self.inner
        head, tail = (np.searchsorted(members, ends[edges]) for ends in (inner.head, inner.tail))
        return members, edges, Graph(len(members), head, tail, inner.weight[edges])

    def at(self, alpha: float) -> Reduced:
        """Its problem at one alpha."""
        return Reduced(self.groups, self.ties, alpha)


class Reduced(NamedTuple):
    """The problem of a partition: groups of clients, what ties the groups, and how strongly."""

    groups: GroupedClients
    ties: Graph
    alpha: float


def guess_partition(features: Floats) -> Ints:
    """Labels of clusters that the (N, d) features show; one cluster where they show none."""
    if len(features) < 4 or not np.ptp(features, axis=0).any():
        return np.zeros(len(features), np.int64)
    return _linked(features) if len(features) <= SMALL else _sampled(features)


def _linked(features: Floats) -> Ints:
    tree = ward(features)
    height = tree[:, 2]
    most = min(MOST, len(height))
    # Heights of the last mergers, the last one first: cut below the one that stands out most from the next.
    last = np.maximum(height[::-1][: most + 1], 1e-300)
    number = 2 + int(np.argmax(last[:-1] / last[1:]))
    return cut_tree(tree, number)[:, 0].astype(np.int64)


def _sampled(features: Floats) -> Ints:
    """Labels of a random sample, and for the rest the label whose mean is nearest."""
    drawn = np.asarray(jax.random.permutation(jax.random.key(0), len(features)))[:SMALL]
    label = _linked(features[drawn])
    return kmeans2(features, means_by(label, features[drawn]), iter=ROUNDS, minit="matrix")[1].astype(np.int64)
