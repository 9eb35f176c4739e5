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
from functools import partial
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import Array

from plures.aggregate.points import cleaned, usable
from plures.method import Method, Traits
from plures.methods.fusion.warm_start import ProximalSolver
from plures.methods.penalized.vector import PartVector, Rest
from plures.types import Data, Info, Key, Tree, Weights

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


class SplitClient(NamedTuple):
    """What a client keeps: the weights around its part, and rho."""

    rest: Rest
    rho: Array


class SplitOffer(NamedTuple):
    """What a client needs to join and to be served; ``extra`` is for newcomers."""

    rest: Rest
    rho: Array
    own: Array
    known: Array
    extra: Tree


@dataclass(frozen=True, kw_only=True, eq=False)
class Splitting:
    """What is split: how clients solve their problem, the server's step, and what newcomers get."""

    solver: ProximalSolver
    penalty: ProximalMap
    memory: Callable[[int], Tree]  # (num_clients) -> what the penalty remembers, at first
    extra: Callable[[SplitTable, Array], Tree]  # (server, uid) -> what a newcomer needs
    newcomer: Callable[[Key, SplitOffer, Data], Array]  # the vector of a client that was never there
    rho: float = 1.0


def douglas_rachford(splitting: Splitting) -> Method:
    """Models of the part for all clients."""
    model = splitting.solver.part.model
    return Method(
        model=model,
        start=partial(start, splitting),
        send=send,
        offer=partial(offer, splitting),
        join=lambda key, offer: SplitClient(offer.rest, offer.rho),
        train=partial(train, splitting),
        merge=partial(merge, splitting),
        serve=partial(serve, splitting),
        predict=model.apply,
        plan=splitting.solver.plan,
        traits=Traits(num_clusters=0),
    )


def start(splitting: Splitting, key: Key, num_clients: int) -> SplitTable:
    """Everybody at the same model, and nobody heard."""
    part = splitting.solver.part
    shared, blank = part.model.init(key), jnp.zeros((num_clients, part.size))
    table = SplitTable(
        rest=part.rest(shared),
        anchors=blank,
        own=blank,
        trained=blank,
        gradients=blank,
        heard=jnp.zeros(num_clients, bool),
        rho=jnp.asarray(splitting.rho),
        rounds=jnp.zeros((), jnp.int32),
        memory=splitting.memory(num_clients),
    )
    return start_at(part, table, shared)


def start_at(part: PartVector, server: SplitTable, shared: Weights) -> SplitTable:
    """The server with everybody at the same weights."""
    same = jnp.broadcast_to(part.vector(shared), server.own.shape)
    return server._replace(rest=part.rest(shared), anchors=same, own=same, trained=same)


def send(server: SplitTable, uid: Array) -> Array:
    """2 y_i - s_i, the client's aim."""
    index = jnp.minimum(uid, len(server.heard) - 1)
    return 2 * server.own[index] - server.anchors[index]


def train(
    splitting: Splitting, key: Key, aim: Array, private: SplitClient, data: Data
) -> tuple[Array, SplitClient, Info]:
    """x_i, as the step from the aim."""
    found, info = splitting.solver.solve(key, private.rest, data, aim, private.rho)
    return found - aim, private, info


def merge(splitting: Splitting, server: SplitTable, uploads: Array, weights: Array, uids: Array) -> SplitTable:
    """s moves towards x, and y is the penalty's proximal map of s."""
    relax = RELAX if splitting.solver.local == "newton" else 1.0
    counts = usable(uploads, weights)
    steps, here = cleaned(uploads, counts), counts[:, None]
    own, anchors = server.own[uids], server.anchors[uids]
    found = 2 * own - anchors + steps
    trained = server.trained.at[uids].set(jnp.where(here, found, server.trained[uids]))
    gradients = server.gradients.at[uids].set(jnp.where(here, -server.rho * steps, server.gradients[uids]))
    moved = server.anchors.at[uids].set(jnp.where(here, anchors + relax * (found - own), anchors))
    heard = server.heard.at[uids].max(counts)
    moved = jnp.where(heard[:, None], moved, server.own)
    served, memory = splitting.penalty(moved, server.rho, server.memory)
    return server._replace(
        anchors=moved,
        own=served,
        trained=trained,
        gradients=gradients,
        heard=heard,
        rounds=server.rounds + 1,
        memory=memory,
    )


def offer(splitting: Splitting, server: SplitTable, uid: Array) -> SplitOffer:
    """y_i, and what newcomers need."""
    number = len(server.heard)
    own = server.own[jnp.minimum(uid, number - 1)]
    return SplitOffer(server.rest, server.rho, own, uid < number, splitting.extra(server, uid))


def serve(splitting: Splitting, key: Key, offer: SplitOffer, private: SplitClient, data: Data) -> Weights:
    """The model with y_i as its part."""
    vector = jnp.where(offer.known, offer.own, splitting.newcomer(key, offer, data))
    return splitting.solver.part.put(vector, offer.rest)


def residual(server: SplitTable) -> float:
    """The root mean square of x - y over that of y: 0 at a fixed point."""
    apart = jnp.square(server.trained - server.own)[server.heard].sum()
    return float(jnp.sqrt(apart / jnp.maximum(jnp.square(server.own)[server.heard].sum(), 1e-30)))
