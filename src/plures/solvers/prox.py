"""What a client does by itself: the best model of its loss with a tilt and a pull, for all clients at once.

    argmin_x  f_i(x)  +  <tilt_i, x>  +  omega_i / 2 |x - v_i|^2

Damped Newton steps, each client with its own step length; clients that are done are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plures.solvers.clients import Clients
from plures.solvers.links import Floats


@dataclass(frozen=True, eq=False)
class Own:
    """Models (N, dim), their values (N,), what is left of the slopes (N, dim), and the most steps anyone made."""

    x: Floats
    value: Floats
    slope: Floats
    steps: int


def own_best(
    clients: Clients,
    start: Floats,
    *,
    tilt: Floats | None = None,
    omega: Floats | float = 0.0,
    center: Floats | None = None,
    tol: float = 1e-11,
    most: int = 100,
) -> Own:
    """Every client's best model, from ``start`` (N, dim)."""
    num = clients.num
    job = _Job(
        clients,
        np.zeros_like(start) if tilt is None else tilt,
        np.broadcast_to(np.asarray(omega, float), (num,)),
        start if center is None else center,
    )
    x, value, slope = start.copy(), job.value(start), job.slope(start)
    size = 1.0 + np.abs(slope).max(1)
    busy, steps = np.arange(num), 0
    while steps < most:
        busy = busy[np.abs(slope[busy]).max(1) > tol * size[busy]]
        if not len(busy):
            break
        some = job if len(busy) == num else job.take(busy)
        moved = _stepped(some, x[busy], value[busy], slope[busy])
        x[busy], value[busy] = moved.x, moved.value
        slope[busy] = some.slope(moved.x)
        busy, steps = busy[moved.going], steps + 1
    return Own(x, value, slope, steps)


def lowest(clients: Clients, tilt: Floats, start: Floats) -> Floats:
    """(N,) lower bounds of min_x f_i(x) + <tilt_i, x>, tight where Newton's method converges."""
    found = own_best(clients, start, tilt=tilt)
    return found.value - shortfall(clients, found.slope)


def shortfall(clients: Clients, slope: Floats) -> Floats:
    """(N,) how far at most a loss is above its minimum where its slope is so large; infinite where nothing says.

    slope^T M^-1 slope / 2 with M the curvature that f_i has everywhere: the ridge, and for squared errors the rest.
    """
    if clients.link.name == "least_squares":
        values, vectors = np.linalg.eigh(clients.curve(np.zeros_like(slope)))
        along = np.einsum("nij,ni->nj", vectors, slope) ** 2
        flat = values <= 1e-13 * values[:, -1:]
        bounds = np.where(flat, np.where(along > 0, np.inf, 0.0), along / np.where(flat, 1.0, 2.0 * values))
        return bounds.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(slope == 0, 0.0, slope * slope / (2.0 * clients.ridge))
    return parts.sum(1)


@dataclass(frozen=True, eq=False)
class _Job:
    clients: Clients
    tilt: Floats
    omega: Floats
    center: Floats

    def take(self, index: np.ndarray) -> _Job:
        return _Job(self.clients.take(index), self.tilt[index], self.omega[index], self.center[index])

    def value(self, x: Floats) -> Floats:
        off = x - self.center
        return self.clients.value(x) + (self.tilt * x).sum(1) + 0.5 * self.omega * (off * off).sum(1)

    def slope(self, x: Floats) -> Floats:
        return self.clients.slope(x) + self.tilt + self.omega[:, None] * (x - self.center)

    def curve(self, x: Floats) -> Floats:
        found = self.clients.curve(x)
        place = np.arange(self.clients.dim)
        # A hair of the curvature's own size keeps it invertible where columns are nearly alike, or very large.
        hair = 1e-14 * found[:, place, place].max(1, keepdims=True) + 1e-12
        found[:, place, place] += self.omega[:, None] + hair
        return found


@dataclass(frozen=True, eq=False)
class _Moved:
    x: Floats
    value: Floats
    going: np.ndarray


def _stepped(job: _Job, x: Floats, value: Floats, slope: Floats) -> _Moved:
    """One Newton step each, halved until it gains; ``going`` is false for clients whom rounding stops."""
    step = -np.linalg.solve(job.curve(x), slope[..., None])[..., 0]
    drop = (slope * step).sum(1)
    pace = np.ones(len(x))
    ahead = x + step
    found = job.value(ahead)
    slack = 1e-14 * (1.0 + np.abs(value))
    for _ in range(50):
        short = ~(found <= value + 1e-4 * pace * drop + slack)
        if not short.any():
            break
        pace = np.where(short, 0.5 * pace, pace)
        ahead = x + pace[:, None] * step
        found = job.value(ahead)
    gained = found <= value + slack
    going = gained & (-drop > 1e-16 * (1.0 + np.abs(value)))
    keep = gained[:, None]
    return _Moved(np.where(keep, ahead, x), np.where(gained, found, value), going)
