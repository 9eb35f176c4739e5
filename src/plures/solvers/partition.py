"""Clients in groups that share a model: the sums of their losses, as functions of one model per group.

    F(w)  =  sum_i f_i(w_{k(i)})  +  alpha sum_{k<l} W_kl |w_k - w_l|

Only sums over a group are needed here, so this is all that a server learns from secure aggregation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from plures.solvers.clients import Clients
from plures.solvers.graph import Graph, Ints
from plures.types import Floats


@dataclass(frozen=True, eq=False)
class Expansion:
    """Value, gradient (K, dim) and curvature (K, dim, dim) of the groups' summed losses."""

    value: float
    gradient: Floats
    curvature: Floats


class GroupedClients:
    """The summed losses of groups of clients; ``label`` has 0 .. number - 1."""

    def __init__(self, clients: Clients, label: Ints, number: int) -> None:
        order = np.argsort(label, kind="stable")
        self.number, self.dim, self.loss = number, clients.dim, clients.loss
        self.size = np.bincount(label, minlength=number).astype(float)
        self.ridge = self.size[:, None] * clients.ridge
        self._bounds = np.concatenate([[0], np.cumsum(self.size.astype(np.int64))]) * clients.a.shape[1]
        own = clients if number == 1 or (order[1:] > order[:-1]).all() else clients.take(order)
        self._a = own.a.reshape(-1, own.a.shape[2])
        self._y, self._share = own.y.reshape(-1), own.share.reshape(-1)
        self._batched = number > 4 and bool((self.size == self.size[0]).all())
        self._quadratic = _moments(self) if clients.loss.name == "least_squares" else None

    def parts(self) -> list[tuple[int, slice]]:
        """The rows of each group."""
        return [(k, slice(self._bounds[k], self._bounds[k + 1])) for k in range(self.number)]

    def expand(self, w: Floats) -> Expansion:
        """Value, gradient and curvature."""
        value, gradient = 0.5 * float((self.ridge * w * w).sum()), self.ridge * w
        curvature = self.ridge[..., None] * np.eye(self.dim)
        if self._quadratic is not None:
            gram, best, constant = self._quadratic
            rise = np.einsum("kij,kj->ki", gram, w - best)
            value += float(0.5 * (rise * (w - best)).sum() + constant)
            return Expansion(value, gradient + rise, curvature + gram)
        outputs = self._outputs(w)
        value += float(self._share @ self.loss.value(outputs, self._y))
        gradients = self.loss.gradient(outputs, self._y) * self._share[:, None]
        curvatures = self.loss.curvature(outputs, self._y) * self._share[:, None, None]
        return Expansion(value, gradient + self._gradients(gradients), curvature + self._curvatures(curvatures))

    def _outputs(self, w: Floats) -> Floats:
        models = w.reshape(self.number, -1, self.loss.num_outputs)
        if self._batched:
            return np.matmul(self._a.reshape(self.number, -1, self._a.shape[1]), models).reshape(len(self._a), -1)
        found = np.empty((len(self._a), self.loss.num_outputs))
        for k, rows in self.parts():
            np.matmul(self._a[rows], models[k], out=found[rows])
        return found

    def _gradients(self, gradients: Floats) -> Floats:
        if self._batched:
            rows = self._a.reshape(self.number, -1, self._a.shape[1]).swapaxes(1, 2)
            return np.matmul(rows, gradients.reshape(self.number, -1, gradients.shape[1])).reshape(self.number, -1)
        return np.stack([(self._a[rows].T @ gradients[rows]).reshape(-1) for _, rows in self.parts()])

    def _curvatures(self, curvatures: Floats) -> Floats:
        outputs, width = self.loss.num_outputs, self._a.shape[1]
        if self._batched and outputs == 1:
            table = self._a.reshape(self.number, -1, width)
            return np.matmul(table.swapaxes(1, 2), table * curvatures.reshape(self.number, -1, 1))
        found = np.empty((self.number, width, outputs, width, outputs))
        for k, rows in self.parts():
            a = self._a[rows]
            for c in range(outputs):
                for e in range(c, outputs):
                    found[k, :, c, :, e] = a.T @ (a * curvatures[rows, c, e, None])
                    found[k, :, e, :, c] = found[k, :, c, :, e]
        return found.reshape(self.number, self.dim, self.dim)


def _moments(groups: GroupedClients) -> tuple[Floats, Floats, float]:
    """What determines squared errors: sums of a a^T, where each group's sum is least, and how much that is.

    Around its least value a sum of squares does not cancel, however far from zero the targets are.
    """
    share, a, y = groups._share, groups._a, groups._y
    curvatures, best, constant = [], [], 0.0
    for _, rows in groups.parts():
        heavy = a[rows] * share[rows, None]
        curvatures.append(a[rows].T @ heavy)
        middle = float(share[rows] @ y[rows] / share[rows].sum())
        first = np.linalg.lstsq(curvatures[-1], heavy.T @ np.full(len(heavy), middle), rcond=None)[0]
        best.append(first + np.linalg.lstsq(curvatures[-1], heavy.T @ (y[rows] - a[rows] @ first), rcond=None)[0])
        constant += 0.5 * float(share[rows] @ ((y[rows] - a[rows] @ best[-1]) ** 2))
    return np.stack(curvatures), np.stack(best), constant


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
        found = self.graph.among(self.inside)
        return replace(found, known=(self.number, self.label)) if self.graph.is_uniform else found

    @cached_property
    def own(self) -> Ints:
        """(inner edges,) the group of each."""
        return self.label[self.graph.head[self.inside]]

    def at(self, alpha: float) -> Reduced:
        """Its problem at one alpha."""
        return Reduced(self.groups, self.ties, alpha)


@dataclass(frozen=True, eq=False)
class Reduced:
    """The problem of a partition: groups of clients, what ties the groups, and how strongly."""

    groups: GroupedClients
    ties: Graph
    alpha: float
