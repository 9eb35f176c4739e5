"""What a client does by itself: the best model of its loss with a linear and a proximal term, for all clients at once.

    argmin_x  f_i(x)  +  <tilt_i, x>  +  omega_i / 2 |x - v_i|^2

Damped Newton steps, each client with its own step length; clients that are done are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plures.solvers.clients import Clients
from plures.types import Floats


@dataclass(frozen=True, eq=False)
class OwnBest:
    """Models (N, dim), their values (N,), what is left of the gradients (N, dim), and the most steps anyone made."""

    x: Floats
    value: Floats
    gradient: Floats
    steps: int


def own_best(
    clients: Clients,
    start: Floats,
    *,
    tilt: Floats | float = 0.0,
    omega: Floats | float = 0.0,
    center: Floats | float = 0.0,
    tol: float = 1e-11,
    most: int = 100,
) -> OwnBest:
    """Every client's best model, from ``start`` (N, dim)."""
    shape, num = start.shape, clients.num
    job = _Job(clients, np.broadcast_to(tilt, shape), np.broadcast_to(omega, num), np.broadcast_to(center, shape))
    x, value, gradient = start.copy(), job.value(start), job.gradient(start)
    size = 1.0 + np.abs(gradient).max(1)
    busy, steps = np.arange(num), 0
    while steps < most:
        busy = busy[np.abs(gradient[busy]).max(1) > tol * size[busy]]
        if not len(busy):
            break
        some = job if len(busy) == num else job.take(busy)
        x[busy], value[busy], going = _stepped(some, x[busy], value[busy], gradient[busy])
        gradient[busy] = some.gradient(x[busy])
        busy, steps = busy[going], steps + 1
    return OwnBest(x, value, gradient, steps)


def lowest(clients: Clients, tilt: Floats, start: Floats) -> Floats:
    """(N,) lower bounds of min_x f_i(x) + <tilt_i, x>, tight where Newton's method converges."""
    found = own_best(clients, start, tilt=tilt)
    return found.value - shortfall(clients, found.gradient)


def shortfall(clients: Clients, gradient: Floats) -> Floats:
    """(N,) how far at most a loss is above its minimum where its gradient is so large; infinite where nothing says.

    gradient^T M^-1 gradient / 2 with M the curvature that f_i has everywhere: the ridge, and for squared errors the rest.
    """
    if clients.loss.name == "least_squares":
        values, vectors = np.linalg.eigh(clients.curvature(np.zeros_like(gradient)))
        along = np.einsum("nij,ni->nj", vectors, gradient) ** 2
        flat = values <= 1e-13 * values[:, -1:]
        bounds = np.where(flat, np.where(along > 0, np.inf, 0.0), along / np.where(flat, 1.0, 2.0 * values))
        return bounds.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(gradient == 0, 0.0, gradient * gradient / (2.0 * clients.ridge))
    return parts.sum(1)


class _Job(NamedTuple):
    clients: Clients
    tilt: Floats
    omega: Floats
    center: Floats

    def take(self, index: np.ndarray) -> _Job:
        return _Job(self.clients.take(index), self.tilt[index], self.omega[index], self.center[index])

    def value(self, x: Floats) -> Floats:
        off = x - self.center
        return self.clients.value(x) + (self.tilt * x).sum(1) + 0.5 * self.omega * (off * off).sum(1)

    def gradient(self, x: Floats) -> Floats:
        return self.clients.gradient(x) + self.tilt + self.omega[:, None] * (x - self.center)

    def curvature(self, x: Floats) -> Floats:
        found = self.clients.curvature(x)
        place = np.arange(self.clients.dim)
        # A hair of the curvature's own size keeps it invertible where columns are nearly alike, or very large.
        hair = 1e-14 * found[:, place, place].max(1, keepdims=True) + 1e-12
        found[:, place, place] += self.omega[:, None] + hair
        return found


def _stepped(job: _Job, x: Floats, value: Floats, gradient: Floats) -> tuple[Floats, Floats, np.ndarray]:
    """Models and values after one Newton step each, halved until it gains, and for whom rounding does not stop it."""
    step = -np.linalg.solve(job.curvature(x), gradient[..., None])[..., 0]
    drop = (gradient * step).sum(1)
    pace, found = line_search(lambda pace: job.value(x + pace[:, None] * step), value, drop)
    gained = found <= value + rounding(value)
    going = gained & (-drop > 1e-16 * (1.0 + np.abs(value)))
    return np.where(gained[:, None], x + pace[:, None] * step, x), np.where(gained, found, value), going


def line_search(at: Callable[[Floats], Floats], value: Floats, drop: Floats) -> tuple[Floats, Floats]:
    """The first of 1, 1/2, 1/4, .. at which each value gains a fair part of what ``drop`` promises, and the values there.

    0 where none does.
    """
    pace = np.ones(len(value))
    for _ in range(50):
        found = at(pace)
        short = ~(found <= value + 1e-4 * pace * drop + rounding(value))
        if not short.any():
            break
        pace = np.where(short, 0.5 * pace, pace)
    return np.where(short, 0.0, pace), found


def rounding(value: Floats) -> Floats:
    """What rounding may do to values."""
    return 1e-14 * (1.0 + np.abs(value))
