"""Clients of three kinds whose two classes lie on ellipses turned by 120 degrees, and small tables for every loss."""

from typing import NamedTuple

import numpy as np

from plures.solvers import as_clients, complete, consensus, mixed, nearest

LOSSES = ("huber", "least_squares", "logistic", "multinomial", "poisson", "squared_hinge")
GRAPHS = ("complete", "knn", "mixture")


class World(NamedTuple):
    """One table and one list of targets per client, and the kind of each client."""

    x: list[np.ndarray]
    y: list[np.ndarray]
    kind: np.ndarray


def ellipses(seed, *, per=20, rows=10, balanced=True, pool=100):
    """``per`` clients of each of three kinds with ``rows`` points each, drawn without replacement from a pool.

    Kind k has direction n_k at 0, 120, 240 degrees; class +-1 is uniform on an ellipse centered at +-2.52 n_k with
    semi-axes 4 (along n_k) and 1 (across).
    """
    rng = np.random.default_rng(seed)
    x, y, kind = [], [], []
    for k in range(3):
        angle = 2 * np.pi * k / 3
        along, across = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
        points = np.vstack([_ellipse(rng, along, across, side, pool) for side in (1, -1)])
        target = np.repeat([1.0, 0.0], pool)
        for own in _dealt(rng, per, rows, pool, balanced):
            x.append(points[own])
            y.append(target[own])
            kind.append(k)
    return World(x, y, np.array(kind))


def newcomer(seed, kind, rows=10):
    """One more client of a kind, with as many points of either class."""
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * kind / 3
    along, across = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    points = [_ellipse(rng, along, across, side, rows // 2) for side in (1, -1)]
    return np.vstack(points), np.repeat([1.0, 0.0], rows // 2)


def tables(loss, *, num=9, rows=6, seed=0):
    """Clients of three kinds for a loss of that name, each kind with a model of its own."""
    rng = np.random.default_rng(seed)
    x, y = [], []
    for client in range(num):
        angle = 2 * np.pi * (client % 3) / 3
        truth = 1.5 * np.array([np.cos(angle), np.sin(angle)])
        table = rng.normal(size=(rows, 2))
        x.append(table)
        y.append(_targets(rng, loss, table @ truth, table))
    return World(x, y, np.arange(num) % 3)


def hinge(seed, *, per=4, ridge=1e-2):
    """The ellipses as clients with a squared hinge."""
    world = ellipses(seed, per=per)
    return as_clients(world.x, world.y, loss="squared_hinge", ridge=ridge)


def graph_of(name, clients, num_neighbors=4):
    """A graph of that name between clients."""
    if name == "complete":
        return complete(clients.num)
    near = nearest(consensus(clients).gradients, num_neighbors)
    return near if name == "knn" else mixed(near, 0.3)


def blobs(num=12, seed=1):
    """Points in the plane in three groups."""
    rng = np.random.default_rng(seed)
    centers = 3 * rng.normal(size=(3, 2))
    return centers[np.arange(num) % 3] + 0.5 * rng.normal(size=(num, 2))


def _targets(rng, loss, mean, table):
    if loss in ("squared_hinge", "logistic"):
        return 1.0 * (mean + 0.7 * rng.normal(size=len(mean)) > 0)
    if loss == "multinomial":
        scores = np.stack([mean, -mean, table[:, 0]], axis=1) + 0.7 * rng.normal(size=(len(mean), 3))
        return 1.0 * np.argmax(scores, axis=1)
    if loss == "poisson":
        return 1.0 * rng.poisson(np.exp(np.clip(0.5 * mean, -3, 3)))
    return mean + 0.5 * rng.standard_t(3, size=len(mean))


def _ellipse(rng, along, across, side, number):
    radius, angle = np.sqrt(rng.uniform(size=number)), rng.uniform(0, 2 * np.pi, size=number)
    return (
        side * 2.52 * along + np.outer(4 * radius * np.cos(angle), along) + np.outer(radius * np.sin(angle), across)
    )


def _dealt(rng, per, rows, pool, balanced):
    """(per, rows) numbers of points of a pool of two classes; with ``balanced`` as many of either."""
    if not balanced:
        return rng.permutation(2 * pool)[: per * rows].reshape(per, rows)
    first, second = (rng.permutation(pool)[: per * rows // 2].reshape(per, -1) for _ in range(2))
    return np.hstack([first, pool + second])
