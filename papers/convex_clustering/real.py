"""Convex clustering of real clients: exam scores of schools, and activities of people.

The strength is chosen on valid rows; test rows are read once, for it and for what it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures.data import Federation, load
from plures.solvers import Clients, ClusterPath, as_clients, consensus, follow, grid, nearest
from plures.solvers.estimator import alone
from plures.solvers.prox import own_best

Floats = NDArray[np.float64]
Rows = list[tuple[Floats, NDArray[Any]]]

NEIGHBORS = 5


@dataclass(frozen=True)
class Real:
    """A federation to be fused: its loss, ridge, how many clients (0: all), axes (0: all columns), and the path."""

    name: str
    loss: str
    metric: str
    ridge: float
    num_clients: int = 0
    axes: int = 0
    num_lams: int = 10
    least: float = 0.03


SETS = {
    "small": (
        Real("school", "least_squares", "rmse", 0.1, num_clients=30, num_lams=7, least=0.05),
        Real("har", "multinomial", "accuracy", 1e-2, axes=8, num_lams=7, least=0.05),
    ),
    "full": (
        Real("school", "least_squares", "rmse", 0.1, num_lams=12),
        Real("har", "multinomial", "accuracy", 1e-2, axes=16, num_lams=12),
    ),
}


class Line(NamedTuple):
    """One alpha of the path: clusters, whether they are proved, and scores of the fused and of refitted models."""

    t: float
    clusters: int
    largest: int
    exact: bool
    valid: float
    test: float
    refit_valid: float
    refit_test: float


class Played(NamedTuple):
    """A path, and the scores (valid, test) of one model for all and of every client by itself."""

    lines: list[Line]
    everyone: tuple[float, float]
    own: tuple[float, float]
    alpha_hat: float
    num_clients: int


def play(real: Real) -> Played:
    """Follow the path of one federation on the graph of nearest neighbors."""
    parts = _parts(load(real.name), real)
    clients = _clients(parts["train"], real)
    first = consensus(clients)
    graph = nearest(first.gradients, NEIGHBORS)
    start = consensus(clients, graph, tol=1e-3)
    alphas = grid(start.alpha_hat, real.num_lams, real.least)
    path = ClusterPath(follow(clients, graph, alphas, start), start.alpha_hat)

    def scores(x: Floats) -> tuple[float, float]:
        return score(x, parts["valid"], real), score(x, parts["test"], real)

    lines = []
    for one, t in zip(path.solutions, path.t, strict=True):
        again = alone(one.partition, one.models)[one.label]
        told = (*scores(one.x), *scores(again))
        lines.append(Line(float(t), one.num_clusters, int(one.sizes.max()), one.certificate.exact, *told))
    shape = (clients.num, clients.dim)
    own = own_best(clients, np.zeros(shape)).x
    return Played(lines, scores(np.broadcast_to(start.model, shape)), scores(own), start.alpha_hat, clients.num)


def chosen(played: Played, real: Real) -> Line:
    """The line that is best on valid rows."""
    sign = 1.0 if real.metric == "rmse" else -1.0
    return min(played.lines, key=lambda line: sign * line.valid)


def score(x: Floats, rows: Rows, real: Real) -> float:
    """The mean over clients of the error, or of the accuracy, of (N, dim) models on their rows."""
    found = []
    for model, (table, y) in zip(x, rows, strict=True):
        outputs = np.c_[table, np.ones(len(table))] @ model.reshape(table.shape[1] + 1, -1)
        if real.metric == "rmse":
            found.append(np.sqrt(np.mean((outputs[:, 0] - y) ** 2)))
        else:
            found.append(np.mean(outputs.argmax(1) == y))
    return float(np.mean(found))


def _parts(federation: Federation, real: Real) -> dict[str, Rows]:
    """Every client's rows of each split, on the leading axes of all training rows where some are asked for.

    The axes are those of the pooled training rows; a federation has them from its clients' summed second moments.
    """
    names = federation.names[: real.num_clients or None]
    parts: dict[str, Rows] = {
        split: [(x.astype(float), y) for x, y in (federation.rows_of(name, split) for name in names)]
        for split in ("train", "valid", "test")
    }
    if not real.axes:
        return parts
    pooled = np.concatenate([x for x, _ in parts["train"]])
    middle = pooled.mean(0)
    _, size, axes = np.linalg.svd(pooled - middle, full_matrices=False)
    onto = axes[: real.axes].T / (size[: real.axes] / np.sqrt(len(pooled)))
    return {split: [((x - middle) @ onto, y) for x, y in rows] for split, rows in parts.items()}


def _clients(rows: Rows, real: Real) -> Clients:
    last = 1e-6 if real.loss == "least_squares" else None
    tables, targets = [x for x, _ in rows], [y for _, y in rows]
    return as_clients(tables, targets, loss=real.loss, ridge=real.ridge, intercept_ridge=last)
