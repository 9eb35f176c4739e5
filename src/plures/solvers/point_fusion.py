"""Convex clustering of points on a graph: the prox of the sum of norms.

    min_y   1/2 sum_i n_i |y_i - a_i|^2  +  gamma sum_e w_e |y_head - y_tail|

Its dual has one vector per edge, u_e with |u_e| <= gamma w_e, and y_i = a_i - (outflow of u at i) / n_i. It is climbed
by accelerated projected gradients that restart when they overshoot; every edge has its own step, the largest that its
two ends allow. Points that stay together are joined on the way, and the rest of the work is done on fewer points.
The gap between the two problems is known at every step: it bounds how far the answer is from the best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plures.solvers.graph import Graph, Ints, lengths, means_by
from plures.solvers.laplacian_flow import corrected
from plures.types import Floats

EVERY = 10
"""Steps between two looks at the gap."""

JOIN_EVERY = 50
"""Steps between two looks for points to join."""


@dataclass(frozen=True, eq=False)
class FusedPoints:
    """Where points come to rest: ``points`` (N, d), the duals ``u`` (edges, d), labels of what lies on one spot."""

    points: Floats
    u: Floats
    label: Ints
    gap: float
    steps: int


@dataclass(eq=False)
class DualAscent:
    """An ascent of the dual, for points of mass ``mass``."""

    a: Floats
    mass: Floats
    graph: Graph
    room: Floats  # (edges,) gamma w
    u: Floats
    steps: int = 0

    def __post_init__(self) -> None:
        per_mass = self.graph.num_edges / self.mass
        self.pace = 1.0 / np.maximum(per_mass[self.graph.head] + per_mass[self.graph.tail], 1e-300)[:, None]
        self.weightless = 1.0 / self.mass[:, None]
        self.ahead = self.u
        self.speed = 1.0

    def points(self, u: Floats) -> Floats:
        """Where the points are for given duals."""
        return self.a - (self.graph.divergence @ u) * self.weightless

    def step(self) -> None:
        """One accelerated step; the momentum is dropped where it points against the gradient."""
        graph = self.graph
        gradient = graph.gaps(self.points(self.ahead))
        new = within(self.ahead + self.pace * gradient, self.room)
        move = new - self.u
        if np.vdot(self.ahead - new, move / self.pace) > 0:
            self.speed, self.ahead = 1.0, new
        else:
            speed = 0.5 + np.sqrt(0.25 + self.speed**2)
            self.ahead = new + ((self.speed - 1.0) / speed) * move
            self.speed = speed
        self.u = new
        self.steps += 1

    def gap(self) -> tuple[float, Floats]:
        """How far the value may be above the best, and the points."""
        y = self.points(self.u)
        apart = self.graph.gaps(y)
        return float(self.room @ lengths(apart) - np.vdot(self.u, apart)), y

    def scale(self, y: Floats) -> float:
        """The size of the value, for relative tolerances."""
        off = 0.5 * float(self.mass @ ((y - self.a) ** 2).sum(1))
        return off + float(self.room @ lengths(self.graph.gaps(y)))


def within(u: Floats, room: Floats) -> Floats:
    """The vectors, shortened to ``room`` where they are longer."""
    return u * (room / np.maximum(lengths(u), room))[:, None]


def fuse(
    points: Floats,
    graph: Graph,
    gamma: float,
    *,
    start: Floats | None = None,
    tol: float = 1e-8,
    max_steps: int = 20_000,
    join: bool = True,
) -> FusedPoints:
    """The points after convex clustering, with ``gap <= tol * value`` unless ``max_steps`` came first.

    >>> fuse(np.array([[0.0], [1.0]]), Graph(2, np.array([0]), np.array([1]), np.ones(1)), 0.2).points.round(6).T
    array([[0.2, 0.8]])
    """
    room = gamma * graph.weight
    u = np.zeros((len(graph), points.shape[1])) if start is None else within(start, room)
    climb = DualAscent(points, np.ones(len(points)), graph, room, u)
    if not len(graph):
        return FusedPoints(points.copy(), u, np.arange(len(points)), 0.0, 0)
    size = spread(points)
    done = _climb_to(climb, tol, max_steps if not join else JOIN_EVERY)
    while join and not done and climb.steps < max_steps:
        label = together(graph, climb.u, room, climb.points(climb.u), size)
        number = int(label.max()) + 1
        if number < 0.9 * len(points):
            _on_fewer(climb, label, number, tol, max_steps - climb.steps)
        done = _climb_to(climb, tol, min(JOIN_EVERY, max_steps - climb.steps))
    gap, y = climb.gap()
    label = together(graph, climb.u, room, y, size)
    # Joining points may cost a little: the gap is that of the points returned.
    joined = settled(y, label)
    gap += climb.scale(joined) - climb.scale(y)
    return FusedPoints(joined, climb.u, label, max(gap, 0.0), climb.steps)


def _climb_to(climb: DualAscent, tol: float, steps: int) -> bool:
    """At most so many steps, until the gap is small; whether it is."""
    last = climb.steps + steps
    while True:
        gap, y = climb.gap()
        if gap <= tol * climb.scale(y) + 1e-300 or climb.steps >= last:
            return gap <= tol * climb.scale(y) + 1e-300
        for _ in range(min(EVERY, last - climb.steps)):
            climb.step()


def _on_fewer(climb: DualAscent, label: Ints, number: int, tol: float, steps: int) -> None:
    """Solve for joined points, and give every edge its dual: what flows between groups, then inside them."""
    graph, room = climb.graph, climb.room
    small, renamed = graph.contracted(label, number)
    mass: Floats = np.bincount(label, climb.mass, number).astype(float)
    between = renamed >= 0
    sign = np.where(label[graph.head[between]] < label[graph.tail[between]], 1.0, -1.0)[:, None]
    start = np.zeros((len(small), climb.a.shape[1]))
    np.add.at(start, renamed[between], sign * climb.u[between])
    small_room: Floats = np.bincount(renamed[between], room[between], len(small)).astype(float)
    fewer = DualAscent(means_by(label, climb.a, climb.mass), mass, small, small_room, within(start, small_room))
    _climb_to(fewer, 0.1 * tol, steps)
    u = climb.u.copy()
    # A joint edge shares its flow among the edges that make it up, in proportion to what they may carry.
    share = (room[between] / np.maximum(small_room[renamed[between]], 1e-300))[:, None]
    u[between] = sign * share * fewer.u[renamed[between]]
    inner = graph.among(~between)
    y = fewer.points(fewer.u)[label]
    ask = climb.mass[:, None] * (climb.a - y) - graph.outflow(np.where(between[:, None], u, 0.0))
    u[~between] = within(corrected(inner, climb.u[~between], ask), room[~between])
    climb.u, climb.ahead, climb.speed = u, u, 1.0
    climb.steps += fewer.steps


def together(graph: Graph, u: Floats, room: Floats, y: Floats, size: float) -> Ints:
    """Labels of what is fused: joined by edges that carry less than they may, or whose ends hardly differ.

    ``size`` is how far the points are apart where nothing holds them together.
    """
    apart = lengths(graph.gaps(y))
    fused = (lengths(u) < (1.0 - 1e-6) * room) & (apart < 1e-3 * size) | (apart <= 1e-9 * size)
    return graph.among(fused).part


def spread(points: Floats) -> float:
    """How far the points lie from their mean, at most."""
    return max(float(np.abs(points - points.mean(0)).max()), 1e-300)


def settled(y: Floats, label: Ints) -> Floats:
    """Every point at the mean of those with its label."""
    return means_by(label, y)[label]
