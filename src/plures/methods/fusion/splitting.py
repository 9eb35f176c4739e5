"""Douglas-Rachford splitting: the penalty is the server's, the losses are the clients'.

    server   y    =   argmin  penalty(y) + (rho / 2) sum_i |y_i - s_i|^2
    client   x_i  =   argmin  f_i(x) + (rho / 2) |x - (2 y_i - s_i)|^2         sampled clients only
    server   s_i <-   s_i + relax (x_i - y_i)

for the sum of the f_i and any convex penalty on all models together. At a fixed point x = y is the minimum, and
s_i = y_i - grad f_i(y_i) / rho. Each way d numbers travel. A client that does not take part keeps its s_i: such random
blocks have the same fixed points. One never heard from has no f_i: s_i = y_i.

``relax`` may be anything between 0 and 2. Where x_i is exact it is 1.8, which takes about half as many rounds as 1;
otherwise 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import Array

from plures.aggregate.points import counted
from plures.method import Method, Traits, Views
from plures.methods.fusion.warm_start import ProximalOffer, ProximalSolver, proximal_method
from plures.methods.penalized.vector import PartVector, Rest
from plures.types import Data, Key, Tree, Weights

RELAX = 1.8

ProximalMap: TypeAlias = Callable[[Array, Array, Tree], tuple[Array, Tree]]
"""(s, rho, memory) -> y, memory: the server's step and what it remembers from round to round."""


class SplitTable(NamedTuple):
    """The server's tables, a row per client of the part's numbers."""

    rest: Rest  # the weights around the part, which stay
    anchors: Array  # (N, d) s
    own: Array  # (N, d) y, what clients are served
    trained: Array  # (N, d) x, what they sent last
    gradients: Array  # (N, d) the gradients of the f_i at x, as far as x is exact
    heard: Array  # (N,)
    rho: Array
    rounds: Array
    memory: Tree


@dataclass(frozen=True, kw_only=True, eq=False)
class Splitting:
    """What is split: how clients solve their problem, the server's step, and what newcomers get."""

    solver: ProximalSolver
    penalty: ProximalMap
    memory: Callable[[int], Tree]  # (num_clients) -> what the penalty remembers, at first
    extra: Callable[[SplitTable, Array], Tree]  # (server, uid) -> what a newcomer needs
    newcomer: Callable[[Key, ProximalOffer, Data], Array]  # the vector of a client that was never there
    rho: float = 1.0

    def start(self, key: Key, num_clients: int) -> SplitTable:
        """Everybody at the same model, and nobody heard."""
        part = self.solver.part
        shared, blank = part.model.init(key), jnp.zeros((num_clients, part.size))
        table = SplitTable(
            rest=part.rest(shared),
            anchors=blank,
            own=blank,
            trained=blank,
            gradients=blank,
            heard=jnp.zeros(num_clients, bool),
            rho=jnp.asarray(self.rho),
            rounds=jnp.zeros((), jnp.int32),
            memory=self.memory(num_clients),
        )
        return start_at(part, table, shared)

    def merge(self, server: SplitTable, uploads: Array, weights: Array, uids: Array) -> SplitTable:
        """s moves towards x, and y is the penalty's proximal map of s."""
        relax = RELAX if self.solver.local == "newton" else 1.0
        counts, steps = counted(uploads, weights)
        here = counts[:, None]
        own, anchors = server.own[uids], server.anchors[uids]
        found = 2 * own - anchors + steps
        moved = server.anchors.at[uids].set(jnp.where(here, anchors + relax * (found - own), anchors))
        heard = server.heard.at[uids].max(counts)
        moved = jnp.where(heard[:, None], moved, server.own)
        served, memory = self.penalty(moved, server.rho, server.memory)
        return server._replace(
            anchors=moved,
            own=served,
            trained=server.trained.at[uids].set(jnp.where(here, found, server.trained[uids])),
            gradients=server.gradients.at[uids].set(jnp.where(here, -server.rho * steps, server.gradients[uids])),
            heard=heard,
            rounds=server.rounds + 1,
            memory=memory,
        )

    def method(self, *, views: Views, num_clusters: int) -> Method:
        """Models of the part for all clients."""
        return proximal_method(
            self.solver,
            aim=lambda server, row: 2 * server.own[row] - server.anchors[row],
            weight=lambda server, row: server.rho,
            extra=self.extra,
            newcomer=self.newcomer,
            start=self.start,
            merge=self.merge,
            views=views,
            traits=Traits(num_clusters=num_clusters),
        )


def start_at(part: PartVector, server: SplitTable, shared: Weights) -> SplitTable:
    """The server with everybody at the same weights."""
    same = jnp.broadcast_to(part.vector(shared), server.own.shape)
    return server._replace(rest=part.rest(shared), anchors=same, own=same, trained=same)


def residual(server: SplitTable) -> float:
    """The root mean square of x - y over that of y: 0 at a fixed point."""
    apart = jnp.square(server.trained - server.own)[server.heard].sum()
    return float(jnp.sqrt(apart / jnp.maximum(jnp.square(server.own)[server.heard].sum(), 1e-30)))
