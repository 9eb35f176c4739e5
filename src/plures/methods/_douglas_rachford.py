"""Douglas-Rachford splitting: the penalty is the server's, the losses are the clients'.

    server   y    =   argmin  penalty(y) + (rho / 2) sum_i |y_i - s_i|^2
    client   x_i  =   argmin  f_i(x) + (rho / 2) |x - (2 y_i - s_i)|^2         sampled clients only
    server   s_i <-   s_i + relax (x_i - y_i)

for the sum of the f_i and any convex penalty on all models together. At a fixed point x = y is the minimum, and
s_i = y_i - grad f_i(y_i) / rho. Each way d numbers travel. A client whose turn it is not keeps its s_i: such random
blocks have the same fixed points. One never heard from has no f_i: s_i = y_i.

``relax`` may be anything between 0 and 2. Where x_i is exact it is 1.8, which takes about half as many rounds as 1;
otherwise 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import Array

from plures.aggregate.points import cleaned, usable
from plures.errors import BadValue
from plures.methods._part import Part, Rest, proximal_step
from plures.types import Data, Info, Key, Method, Plan, Tree, Weights

RELAX = 1.8

Penalty: TypeAlias = Callable[[Array, Array, Tree], tuple[Array, Tree]]
"""(s, rho, memory) -> y, memory: the server's proximal map and what it remembers from round to round."""


class Split(NamedTuple):
    """The server's tables, a row per client of the part's numbers."""

    rest: Rest  # the weights around the part, which stay
    anchors: Array  # (N, d) s
    own: Array  # (N, d) y, what clients are served
    trained: Array  # (N, d) x, what they sent last
    slopes: Array  # (N, d) the gradients of the f_i at x, as far as x is exact
    heard: Array  # (N,)
    rho: Array
    rounds: Array
    memory: Tree


class Kept(NamedTuple):
    """What a client keeps: the weights around its part, and rho."""

    rest: Rest
    rho: Array


class Offer(NamedTuple):
    """What a client needs to join and to be served; ``extra`` is for newcomers."""

    rest: Rest
    rho: Array
    own: Array
    known: Array
    extra: Tree


def douglas_rachford(
    part: Part,
    local: str,
    plan: Plan,
    *,
    penalty: Penalty,
    memory: Callable[[int], Tree],
    extra: Callable[[Split, Array], Tree],
    newcomer: Callable[[Key, Offer, Data], Array],
    rho: float = 1.0,
) -> Method:
    """Models of the part for all clients; ``newcomer`` makes the vector of a client that was never there."""
    relax = RELAX if local == "newton" else 1.0

    def start(key: Key, num_clients: int) -> Split:
        shared = part.model.init(key)
        nobody = jnp.zeros(num_clients, bool)
        blank = jnp.zeros((num_clients, part.size))
        zero = jnp.zeros((), jnp.int32)
        first = Split(
            part.rest(shared), blank, blank, blank, blank, nobody, jnp.asarray(rho), zero, memory(num_clients)
        )
        return begun(part, first, shared)

    def send(server: Split, uid: Array) -> Array:
        place = jnp.minimum(uid, len(server.heard) - 1)
        return 2 * server.own[place] - server.anchors[place]

    def offer(server: Split, uid: Array) -> Offer:
        number = len(server.heard)
        own = server.own[jnp.minimum(uid, number - 1)]
        return Offer(server.rest, server.rho, own, uid < number, extra(server, uid))

    def join(key: Key, first: Offer) -> Kept:
        return Kept(first.rest, first.rho)

    def train(key: Key, aim: Array, kept: Kept, data: Data) -> tuple[Array, Kept, Info]:
        found, info = proximal_step(part, local, plan, key, kept.rest, data, aim, kept.rho)
        return found - aim, kept, info

    def merge(server: Split, uploads: Array, weights: Array, uids: Array) -> Split:
        counts = usable(uploads, weights)
        steps, here = cleaned(uploads, counts), counts[:, None]
        own, anchors = server.own[uids], server.anchors[uids]
        found = 2 * own - anchors + steps
        trained = server.trained.at[uids].set(jnp.where(here, found, server.trained[uids]))
        slopes = server.slopes.at[uids].set(jnp.where(here, -server.rho * steps, server.slopes[uids]))
        moved = server.anchors.at[uids].set(jnp.where(here, anchors + relax * (found - own), anchors))
        heard = server.heard.at[uids].max(counts)
        moved = jnp.where(heard[:, None], moved, server.own)
        served, remembered = penalty(moved, server.rho, server.memory)
        return Split(server.rest, moved, served, trained, slopes, heard, server.rho, server.rounds + 1, remembered)

    def serve(key: Key, given: Offer, kept: Kept, data: Data) -> Weights:
        vector = jnp.where(given.known, given.own, newcomer(key, given, data))
        return part.put(vector, given.rest)

    return Method(
        model=part.model,
        start=start,
        send=send,
        offer=offer,
        join=join,
        train=train,
        merge=merge,
        serve=serve,
        predict=part.model.apply,
        plan=plan,
        num_clusters=0,
    )


def begun(part: Part, server: Split, shared: Weights) -> Split:
    """The server with everybody at the same weights."""
    same = jnp.broadcast_to(part.vector(shared), server.own.shape)
    return server._replace(rest=part.rest(shared), anchors=same, own=same, trained=same)


def residual(server: Split) -> float:
    """The root mean square of x - y over that of y: 0 at a fixed point."""
    apart = jnp.square(server.trained - server.own)[server.heard].sum()
    return float(jnp.sqrt(apart / jnp.maximum(jnp.square(server.own)[server.heard].sum(), 1e-30)))


def check_rho(rho: float | None) -> None:
    """Refuse a weight of the proximal term that is not positive."""
    if rho is not None and not 0 < rho < float("inf"):
        raise BadValue("rho", rho, "a positive number (or None to choose one)")
