"""A last round in which every client is asked something, and what came of it is offered to all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.method import Method, closed
from plures.types import Data, Info, Key, Tree


class Survey(NamedTuple):
    """The base's state (on the server) or offer (to a client), and what the survey found.

    ``heard`` is whose answers are in it: (clients,) on the server, one truth value for a client.
    """

    base: Tree
    found: Tree
    heard: Array


def surveyed(
    base: Method,
    *,
    blank: Callable[[Key, int], Tree],
    ask: Callable[[Key, Tree, Data], tuple[Tree, Info]],
    gather: Callable[[Tree, Tree, Array, Array], Tree],
) -> Method:
    """``base``, closed by a round in which clients answer ``ask(key, offer, data)``.

    ``gather(found, answers, weights, uids)`` makes what is found of the answers; ``blank(key, num_clients)`` is what
    it starts as. The result serves as the base does; whoever calls this puts its own ``serve`` in, which is offered
    a ``Survey``.
    """

    def start(key: Key, num_clients: int) -> Survey:
        found = blank(jax.random.fold_in(key, 1), num_clients)
        return Survey(base.start(key, num_clients), found, jnp.zeros(num_clients, bool))

    def offer(server: Survey, uid: Array) -> Survey:
        heard = server.heard[jnp.minimum(uid, len(server.heard) - 1)] & (uid < len(server.heard))
        return Survey(base.offered(server.base, uid), server.found, heard)

    def train(key: Key, download: Tree, private: Tree, data: Data) -> tuple[Tree, Tree, Info]:
        answer, info = ask(key, download, data)
        return answer, private, info

    def merge(server: Survey, uploads: Tree, weights: Array, uids: Array) -> Survey:
        heard = server.heard.at[uids].set(weights > 0)
        return Survey(server.base, gather(server.found, uploads, weights, uids), heard)

    common = base.views.common
    inner = base.views.through(
        client=lambda offer, private: (offer.base, private), server=lambda server: server.base
    )
    closing = replace(
        base,
        start=start,
        send=lambda server, uid: base.offered(server.base, uid),
        offer=offer,
        answer=None,
        settle=None,
        views=replace(inner, common=None if common is None else lambda offer: common(offer.base)),
        traits=replace(base.traits, exchanges=1, receivers=None),
        train=train,
        merge=merge,
        serve=lambda key, offer, private, data: base.serve(key, offer.base, private, data),
    )
    return closed(base, closing, hand_over=lambda key, fresh, before: fresh._replace(base=before))


def cluster_of(base: Method, offer: Tree, data: Data) -> Array:
    """The client's cluster, 0 where the base has none."""
    found = 0 if base.views.assign is None else base.views.assign(offer, (), data)["cluster"]
    return jnp.asarray(found, jnp.int32)
