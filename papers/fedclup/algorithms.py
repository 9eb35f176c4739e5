"""Federated algorithms for personal models near a shared one, round by round in double precision.

    min  sum_i p_i ( L_i(w_i) + (lam / 2) |w_g - w_i|^2 )                                                  (P)

    fedclup  K steps w_i -= alpha (grad L_i(w_i) + lam (w_i - w_g)) from the client's own model, then
             w_g -= gamma lam sum_i p_i (w_g - w_i)              Yu, He, Sun, Xue, Li: arXiv 2410.08934
    pfedme   R steps v_i -= eta lam (v_i - prox_i(v_i)) from w_g, then w_g <- (1 - beta) w_g + beta sum_i p_i v_i
                                                                 Dinh, Tran, Nguyen: arXiv 2006.08848, Algorithm 1
    l2gd     a coin: w_i -= alpha / (1 - p) grad L_i(w_i), or w_i -= alpha lam / p (w_i - mean)
                                                                 Hanzely, Richtarik: arXiv 2002.05516, Algorithm 1
    ditto    w_g as FedAvg, or at the pooled minimizer; w_i = prox_i(w_g)
                                                                 Li, Hu, Beirami, Smith: arXiv 2012.04221

Errors are relative to the exact solution of (P), for all of them: what an algorithm does not solve shows as a floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from papers.fedclup.client_losses import ClientLosses, losses_of
from plures.errors import BadData, BadValue
from plures.moreau import Bounds, client_step, envelope, num_inner, server_step
from plures.solvers.penalized import Penalized
from plures.solvers.quadratic import Quadratics
from plures.types import Floats


@dataclass(frozen=True, eq=False)
class Trace:
    """The last models, and the errors of every round: the start first, then one per round.

    ``shared_error`` and ``own_error`` are squared distances from the solution of (P) over the solution's squared size,
    those of clients weighted by p_i. ``gradients`` per client in all rounds (infinite for an exact prox), ``talks`` the
    rounds in which anybody communicates, ``inner`` the K that was used.
    """

    shared: Floats
    own: Floats
    shared_error: Floats
    own_error: Floats
    gradients: float
    talks: int
    inner: float

    @property
    def rounds(self) -> int:
        """How many rounds were made."""
        return len(self.own_error) - 1

    def rounds_to(self, tol: float) -> int | None:
        """The first round after which the personal models are so near; None where none is."""
        near = np.flatnonzero(self.own_error <= tol)
        return int(near[0]) if len(near) else None


def fedclup(
    problem: Quadratics | Penalized,
    lam: float,
    *,
    gamma: float | None = None,
    alpha: float | None = None,
    inner: float | None = None,
    nesterov: bool = False,
    start: Floats | None = None,
    rounds: int = 1_000,
    tol: float = 1e-8,
) -> Trace:
    """Rounds of FedCLUP until the personal models' relative squared error is ``tol``.

    Steps are 1 / L_g and 1 / (L + lam) unless given, ``inner`` is K, by default the envelope's rule; infinity is an exact
    prox. With ``nesterov`` the server extrapolates, by (1 - r) / (1 + r) with r = sqrt(gamma mu_g), and clients' proxes are
    exact by default: rounds grow with the root of the envelope's condition number.

    >>> trace = fedclup(Quadratics.of([[[1.0]], [[3.0]]], [[0.0], [3.0]]), 3.0)
    >>> int(trace.inner), trace.rounds
    (3, 9)
    """
    losses = losses_of(problem)
    strong, bounds = _checked_lam(lam), losses.bounds
    mean = envelope(bounds, strong)
    alpha = _step("alpha", alpha, 1.0 / client_step(bounds, strong), "L + lam")
    gamma = _step("gamma", gamma, 1.0 / server_step(bounds, strong), "L_g")
    if nesterov and gamma > (1 + 1e-12) / mean.most:
        raise BadValue("gamma", gamma, f"at most 1 / L_g = {1 / mean.most:.6g} with nesterov")
    auto = np.inf if nesterov else None
    many = _checked_inner(auto if inner is None else inner, bounds, strong, alpha, gamma)
    root = float(np.sqrt(gamma * mean.least))
    ahead = (1.0 - root) / (1.0 + root) if nesterov else 0.0

    def one_round(count: int, now: _Now) -> _Now:
        own = losses.descend(now.own, now.sent, strong, alpha, many)
        shared = now.sent - gamma * strong * (now.sent - losses.weights @ own)
        return _Now(shared, own, shared + ahead * (shared - now.shared), now.gradients + many, now.talks + 1)

    return _followed(losses, strong, _Until(start, rounds, tol), one_round, many)


def pfedme(
    problem: Quadratics | Penalized,
    lam: float,
    *,
    eta: float | None = None,
    local: int = 1,
    beta: float = 1.0,
    inner: float = np.inf,
    start: Floats | None = None,
    rounds: int = 1_000,
    tol: float = 1e-8,
) -> Trace:
    """Rounds of pFedMe: ``local`` steps ``eta`` (1 / L_g unless given) down the client's own envelope, then the server's mean.

    The prox takes ``inner`` gradient steps from the last personal model, or is exact. With more than one local step the
    rounds end elsewhere than at the solution of (P).
    """
    losses = losses_of(problem)
    strong, bounds = _checked_lam(lam), losses.bounds
    eta = _step("eta", eta, 1.0 / server_step(bounds, strong), "L_g")
    local = int(_checked_count("local", local))
    alpha = client_step(bounds, strong)
    many = _checked_inner(inner, bounds, strong, alpha, eta)
    lowest = 1.0 - eta * envelope(bounds, strong).most
    most = 2.0 / (1.0 - (lowest**local if lowest > 0 or local % 2 else 0.0))
    if not 0 < beta < most:
        raise BadValue("beta", beta, f"above 0 and below {most:.6g}, where rounds diverge; 1 would do")

    def one_round(count: int, now: _Now) -> _Now:
        points, own = np.tile(now.sent, (len(now.own), 1)), now.own
        for _ in range(local):
            own = losses.descend(own, points, strong, alpha, many)
            points = points - eta * strong * (points - own)
        shared = (1.0 - beta) * now.sent + beta * (losses.weights @ points)
        return _Now(shared, own, shared, now.gradients + many * local, now.talks + 1)

    return _followed(losses, strong, _Until(start, rounds, tol), one_round, many)


def l2gd(
    problem: Quadratics | Penalized,
    lam: float,
    key: jax.Array,
    *,
    alpha: float | None = None,
    chance: float = 0.5,
    start: Floats | None = None,
    rounds: int = 1_000,
    tol: float = 1e-8,
) -> Trace:
    """Steps of L2GD, ``rounds`` tosses of a coin that says "average" with probability ``chance``.

    Clients communicate only where an average follows a local step. ``alpha`` is 1 / (2 max(L / (1 - p), lam / p)) unless
    given, the paper's bound in our units, in which its 1 / n is part of alpha. A constant alpha ends near the solution.
    """
    losses = losses_of(problem)
    strong, bounds = _checked_lam(lam), losses.bounds
    if not 0 < chance < 1:
        raise BadValue("chance", chance, "above 0 and below 1")
    steep = max(bounds.most / (1 - chance), strong / chance)
    alpha = 0.5 / steep if alpha is None else _step("alpha", alpha, steep, "max(L / (1 - p), lam / p)")
    coins = np.asarray(jax.random.bernoulli(key, chance, (int(_checked_count("rounds", rounds)),)))

    def one_round(count: int, now: _Now) -> _Now:
        if coins[count]:
            own = now.own - alpha * strong / chance * (now.own - now.shared)
            talks = now.talks + int(count > 0 and not coins[count - 1])
            return now._replace(own=own, talks=talks)
        own = now.own - alpha / (1 - chance) * losses.gradients(now.own)
        shared = losses.weights @ own
        return _Now(shared, own, shared, now.gradients + 1, now.talks)

    return _followed(losses, strong, _Until(start, rounds, tol), one_round, 1.0)


def ditto(
    problem: Quadratics | Penalized,
    lam: float,
    *,
    local: int | None = None,
    alpha: float | None = None,
    start: Floats | None = None,
    rounds: int = 100,
    tol: float = 1e-8,
) -> Trace:
    """Ditto: the shared model by itself, and the clients' proxes at it.

    With ``local`` the shared model is FedAvg's after rounds of so many gradient steps ``alpha`` (1 / L unless given);
    with more than one they end elsewhere than at the pooled minimizer, which it is without.
    """
    losses = losses_of(problem)
    strong = _checked_lam(lam)
    if local is None:
        best = losses.solve(np.inf).shared[0]
        own = losses.descend(np.tile(best, (len(losses.weights), 1)), best, strong, 0.0, np.inf)
        now = _Now(best, own, best)
        return _trace(now, [_errors(losses, strong)(now)], np.inf)
    many = _checked_count("local", local)
    alpha = _step("alpha", alpha, losses.bounds.most, "L")

    def one_round(count: int, now: _Now) -> _Now:
        sent = np.tile(now.shared, (len(now.own), 1))
        shared = losses.weights @ losses.descend(sent, now.shared, 0.0, alpha, many)
        own = losses.descend(now.own, shared, strong, 0.0, np.inf)
        return _Now(shared, own, shared, now.gradients + many, now.talks + 1)

    return _followed(losses, strong, _Until(start, rounds, tol), one_round, many)


class _Now(NamedTuple):
    """Models after a round, what the server sends next, and what was spent."""

    shared: Floats
    own: Floats
    sent: Floats
    gradients: float = 0.0
    talks: int = 0


class _Until(NamedTuple):
    """Where rounds start and when they end."""

    start: Floats | None
    rounds: int
    tol: float


def _followed(
    losses: ClientLosses, lam: float, until: _Until, one_round: Callable[[int, _Now], _Now], inner: float
) -> Trace:
    """Rounds from one vector that everybody starts at, zero unless given."""
    first = np.zeros(losses.dim) if until.start is None else np.asarray(until.start, float)
    if first.shape != (losses.dim,):
        raise BadData(f"everybody starts at one model of {losses.dim} numbers; got the shape {first.shape}")
    error = _errors(losses, lam)
    now = _Now(first, np.tile(first, (len(losses.weights), 1)), first)
    found = [error(now)]
    for count in range(int(_checked_count("rounds", until.rounds))):
        if found[-1][1] <= until.tol:
            break
        now = one_round(count, now)
        found.append(error(now))
    return _trace(now, found, inner)


def _errors(losses: ClientLosses, lam: float) -> Callable[[_Now], tuple[float, float]]:
    """Squared distances from the solution over its squared size, of the shared and of the personal models."""
    goal = losses.solve(lam)
    shared, own = goal.shared[0], goal.own[0]

    def size(models: Floats) -> float:
        return float(losses.weights @ np.square(models).sum(1))

    whole = max(float(shared @ shared), 1e-300), max(size(own), 1e-300)
    return lambda now: (float(np.square(now.shared - shared).sum()) / whole[0], size(now.own - own) / whole[1])


def _trace(now: _Now, errors: list[tuple[float, float]], inner: float) -> Trace:
    both = np.array(errors)
    return Trace(now.shared, now.own, both[:, 0], both[:, 1], now.gradients, now.talks, inner)


def _checked_lam(lam: float) -> float:
    if not 0 < lam < np.inf:
        raise BadValue("lam", lam, "a positive number; at 0 nobody collaborates, and at infinity models are one")
    return float(lam)


def _checked_count(name: str, number: float) -> float:
    if not number >= 1 or number % 1:
        raise BadValue(name, number, "a whole number, 1 or more")
    return float(number)


def _step(name: str, given: float | None, steep: float, word: str) -> float:
    """A step, 1 / steep unless given; one that diverges is refused."""
    if given is None:
        return 1.0 / steep
    if not 0 < given < 2.0 / steep:
        raise BadValue(
            name,
            given,
            f"above 0 and below 2 / ({word}) = {2 / steep:.6g}, where it diverges; {1 / steep:.6g} would do",
        )
    return float(given)


def _checked_inner(inner: float | None, bounds: Bounds, lam: float, alpha: float, gamma: float) -> float:
    """K: as given, or by the envelope's rule for these steps."""
    if inner is not None:
        return np.inf if inner == np.inf else _checked_count("inner", inner)
    mean = envelope(bounds, lam)
    if gamma > (1 + 1e-12) * 2 / (mean.least + mean.most):
        raise BadValue("inner", None, f"given where gamma is above 2 / (mu_g + L_g) = {2 / sum(mean):.6g}")
    shrink = max(abs(1 - alpha * (one + lam)) for one in bounds)
    # The rule takes alpha = 1 / (L + lam): another step shrinks errors as that of another L does.
    steep = max(bounds.most, (bounds.least + lam) / (1 - shrink) - lam)
    return float(num_inner(Bounds(bounds.least, steep), lam, gamma))
