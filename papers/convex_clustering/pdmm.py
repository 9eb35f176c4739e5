"""PDMM, parallel randomized block updates for the fused problem: corrected, and as it is printed.

    min  sum_i f_i(x_i)  +  alpha sum_e w_e |z_e|     with  x_head - x_tail = z_e  for every edge

    client i in turn   x_i <- argmin  f_i(x) + omega_i / 2 |x - v_i|^2,        omega_i = rho deg_i + eta
                       v_i  = x_i - (sum_e s_ie (rho (x_head - x_tail - z_e) + hat_e)) / omega_i
    edge e in turn     z_e <- S((rho (x_head - x_tail) + hat_e + eta z_e) / (rho + eta),  alpha w_e / (rho + eta))
    all duals          r_e  = x_head - x_tail - z_e,  mu_e <- mu_e + tau rho r_e,  hat_e = mu_e - nu rho r_e

with s_ie = 1 at the head and -1 at the tail, the old x in every update, and S shortening a vector. With K of J blocks in
turn, tau = K / (3 (2 J - K)) and nu = 2/3: every constraint has three blocks.

Armacki, Bajovic, Jakovetic, Kar: arXiv 2202.00718, Algorithm 1, after Wang, Banerjee, Luo: arXiv 1406.4064. We keep z and
mu on the server, one of each per edge. The paper has one per ordered pair, and its update (16) of x_i leaves out the
terms of the pairs (j, i). That is the same problem as long as mu_ji = -mu_ij, and another one as soon as only some duals
are updated or the start is not antisymmetric (``as_printed``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from papers.convex_clustering.algorithms import shrunk
from plures.errors import BadValue
from plures.solvers.clients import Clients
from plures.solvers.graph import Graph, Ints
from plures.solvers.point_fusion import within
from plures.solvers.prox import own_best
from plures.solvers.splitting import SplittingRun, Watch
from plures.types import Floats, Key

BLOCKS = 3
"""Blocks in a constraint: two clients and an edge."""


class Turn(NamedTuple):
    """Who is updated in a round: clients, edges and duals, as numbers; None is everyone."""

    clients: Ints | None = None
    edges: Ints | None = None
    duals: Ints | None = None


ALL = Turn()


@dataclass(frozen=True)
class Steps:
    """``rho`` (None: half the median smoothness over the mean degree), ``tau`` (None: by the blocks in turn), ``nu``, ``eta``."""

    rho: float | None = None
    tau: float | None = None
    nu: float = 1.0 - 1.0 / BLOCKS
    eta: float = 0.0


def pdmm(
    clients: Clients,
    graph: Graph,
    alpha: float,
    *,
    steps: Steps = Steps(),
    start: Floats | None = None,
    duals: Floats | None = None,
    turns: Iterable[Turn] | None = None,
    rounds: int = 200,
    watch: Watch | None = None,
) -> SplittingRun:
    """The corrected algorithm: one dual per edge, so that any start (``duals``) and any ``turns`` are legitimate."""
    pairs = _Pairs(clients.num, graph.head, graph.tail, alpha * graph.weight)
    return _run(clients, pairs, _Job(steps, start, duals, turns, rounds, watch))


def as_printed(
    clients: Clients,
    graph: Graph,
    alpha: float,
    *,
    steps: Steps = Steps(),
    start: Floats | None = None,
    duals: Floats | None = None,
    turns: Iterable[Turn] | None = None,
    rounds: int = 200,
    both: bool = False,
    watch: Watch | None = None,
) -> SplittingRun:
    """Algorithm 1 with a dual per ordered pair: first all edges from head to tail, then all from tail to head.

    As printed it solves the problem from an antisymmetric start with all duals in turn, and no other. With ``both``
    the missing terms are there: that is (14), and the answer is the one at twice ``alpha``.
    """
    head, tail = np.concatenate([graph.head, graph.tail]), np.concatenate([graph.tail, graph.head])
    pairs = _Pairs(clients.num, head, tail, alpha * np.tile(graph.weight, 2), ordered=True, both=both)
    return _run(clients, pairs, _Job(steps, start, duals, turns, rounds, watch))


def random_turns(
    key: Key, num: int, num_edges: int, *, share: float = 1.0, edges: float | None = None, duals: float = 1.0
) -> Iterator[Turn]:
    """Turns of so many clients, edges (None: the same share) and duals, drawn anew every round."""
    shares = {"share": share, "edges": share if edges is None else edges, "duals": duals}
    for name, value in shares.items():
        if not 0 < value <= 1:
            raise BadValue(name, value, "a share above 0, up to 1")
    sizes = tuple(zip((num, num_edges, num_edges), shares.values(), strict=True))
    while True:
        key, *own = jax.random.split(key, 4)
        yield Turn(*(_some(one, size, part) for one, (size, part) in zip(own, sizes, strict=True)))


def _some(key: Key, size: int, share: float) -> Ints | None:
    if share == 1.0:
        return None
    order = np.argsort(np.asarray(jax.random.bits(key, (size,))), kind="stable")
    return np.sort(order[: max(1, round(share * size))])


def good_rho(clients: Clients, mean_degree: float) -> float:
    """Half the median smoothness over the mean number of edges: rho deg is then about half the curvature."""
    smooth = float(np.median(clients.lipschitz))
    return 0.5 * smooth / max(mean_degree, 1.0) if np.isfinite(smooth) else 1.0


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Constraints x_head - x_tail = z, for all edges or all ordered pairs.

    ``both``: a constraint counts in the updates of both ends; else of its head alone.
    """

    num: int
    head: Ints
    tail: Ints
    room: Floats
    ordered: bool = False
    both: bool = True

    def __len__(self) -> int:
        return len(self.head)

    def gaps(self, x: Floats) -> Floats:
        """(constraints, dim) x_head - x_tail."""
        return x[self.head] - x[self.tail]

    def sums(self, values: Floats) -> Floats:
        """(clients, dim) sums over the constraints that count for each client, with their signs."""
        found: Floats = np.stack([np.bincount(self.head, column, self.num) for column in values.T], axis=1).astype(
            float
        )
        if self.both:
            found -= np.stack([np.bincount(self.tail, column, self.num) for column in values.T], axis=1)
        return found

    def counts(self) -> Floats:
        """(clients,) how many constraints count for each."""
        ends = np.concatenate([self.head, self.tail]) if self.both else self.head
        found: Floats = np.bincount(ends, np.ones(len(ends)), self.num).astype(float)
        return found

    def flows(self, mu: Floats) -> Floats:
        """(edges, dim) duals of edges, as long as they may be."""
        if not self.ordered:
            return within(mu, self.room)
        half, factor = len(self) // 2, 1.0 if self.both else 0.5
        return within(factor * (mu[:half] - mu[half:]), 2 * factor * self.room[:half])


class _Job(NamedTuple):
    steps: Steps
    start: Floats | None
    duals: Floats | None
    turns: Iterable[Turn] | None
    rounds: int
    watch: Watch | None


class _State(NamedTuple):
    """Models, the edges' own differences, their duals, and the duals that updates see."""

    x: Floats
    z: Floats
    mu: Floats
    hat: Floats


def _run(clients: Clients, pairs: _Pairs, job: _Job) -> SplittingRun:
    """Rounds of PDMM on given constraints."""
    shape = (len(pairs), clients.dim)
    x = np.zeros((clients.num, clients.dim)) if job.start is None else job.start
    mu = np.zeros(shape) if job.duals is None else np.broadcast_to(job.duals, shape)
    state, counts = _State(x, np.zeros(shape), mu, mu), pairs.counts()
    rho = good_rho(clients, float(counts.mean())) if job.steps.rho is None else job.steps.rho
    drawn, count = iter(job.turns or ()), 0
    for count in range(1, job.rounds + 1):
        turn = next(drawn, ALL)
        moved = _moved(clients, pairs, state, turn, (rho, job.steps.eta, counts))
        state = _duals(pairs, moved, turn, rho * _pace(pairs, turn, job.steps), rho * job.steps.nu)
        if job.watch is not None and job.watch(count, state.x, pairs.flows(state.mu)):
            break
    return SplittingRun(state.x, pairs.flows(state.mu), np.arange(clients.num), count)


def _moved(clients: Clients, pairs: _Pairs, state: _State, turn: Turn, how: tuple[float, float, Floats]) -> _State:
    """Clients and edges in turn, all from what was before."""
    rho, eta, counts = how
    apart, omega = pairs.gaps(state.x), rho * counts + eta
    push = pairs.sums(rho * (apart - state.z) + state.hat)
    center = state.x - push / np.maximum(omega, 1e-300)[:, None]
    x, z = state.x.copy(), state.z.copy()
    who = slice(None) if turn.clients is None else turn.clients
    some = clients if turn.clients is None else clients.take(turn.clients)
    x[who] = own_best(some, x[who], omega=omega[who], center=center[who]).x
    which = slice(None) if turn.edges is None else turn.edges
    wanted = rho * apart[which] + state.hat[which] + eta * z[which]
    z[which] = shrunk(wanted / (rho + eta), pairs.room[which] / (rho + eta))
    return state._replace(x=x, z=z)


def _duals(pairs: _Pairs, state: _State, turn: Turn, step: float, back: float) -> _State:
    """Duals in turn, from what the constraints leave."""
    which = slice(None) if turn.duals is None else turn.duals
    left = pairs.gaps(state.x)[which] - state.z[which]
    mu, hat = state.mu.copy(), state.hat.copy()
    mu[which] += step * left
    hat[which] = mu[which] - back * left
    return state._replace(mu=mu, hat=hat)


def _pace(pairs: _Pairs, turn: Turn, steps: Steps) -> float:
    """tau, by default K / (3 (2 J - K)) for K of J blocks in turn."""
    if steps.tau is not None:
        return steps.tau
    now = pairs.num if turn.clients is None else len(turn.clients)
    now += len(pairs) if turn.edges is None else len(turn.edges)
    return now / (BLOCKS * (2 * (pairs.num + len(pairs)) - now))
