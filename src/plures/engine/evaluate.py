"""Scores of every client: personal and common models apart, on valid and test rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from plures.engine.clients import TEST, VALID, Arrays, rows, view
from plures.engine.executors import ClientFunction
from plures.engine.round import Client, Setup, private_of
from plures.keys import Purpose, derive
from plures.local import outputs_of
from plures.types import Batch, Tree

Scores = dict[str, dict[str, dict[str, Array]]]
"""kind ("personal", "global") -> split ("valid", "test") -> metric -> one number per client.

What a method tells of a client's model is under "facts" and "served".
"""

Measure: TypeAlias = Callable[[Setup, Arrays, Tree, Client], Any]
"""(setup, arrays, server, clients) -> a tree whose leaves are stacked over the clients on axis 0."""


def score(setup: Setup, arrays: Arrays, server: Tree, clients: Client) -> Scores:
    """The scores of all the clients given."""
    found: Scores = measure_all(score_one, setup, arrays, server, clients)
    return found


def row_losses(setup: Setup, arrays: Arrays, server: Tree, clients: Client) -> dict[str, Array]:
    """split ("valid", "test") -> (clients, capacity): the loss of every row under the model its client is served.

    NaN where a client has no further row.
    """
    found: dict[str, Array] = measure_all(losses_one, setup, arrays, server, clients)
    return found


def measure_all(one: ClientFunction, setup: Setup, arrays: Arrays, server: Tree, clients: Client) -> Any:
    """One client's function for all of them, compiled unless the executor runs on the host."""
    if setup.executor.on_host:
        return setup.executor.run(one, setup, arrays, server, clients)
    return _compiled(one, setup, arrays, server, clients)


@partial(jax.jit, static_argnums=0)
def _compiled(one: ClientFunction, setup: Setup, arrays: Arrays, server: Tree, clients: Client) -> Any:
    return setup.executor.run(one, setup.member, arrays, server, clients)


def losses_one(setup: Setup, arrays: Arrays, server: Tree, client: Client) -> dict[str, Array]:
    """One client's losses, row by row."""
    loss, served = setup.method.model.loss, serve_one(setup, arrays, server, client)
    return {
        name: jnp.where(batch.mask, loss(outputs, batch.y), jnp.nan)
        for name, outputs, batch in _predicted(setup, arrays, client, served)
    }


@jax.jit
def served(setup: Setup, arrays: Arrays, server: Tree, client: Client) -> Tree:
    """What one client predicts with, compiled once for all clients of a run."""
    return serve_one(setup.member, arrays, server, client)


@jax.jit
def served_to_all(setup: Setup, arrays: Arrays, server: Tree, clients: Client) -> Tree:
    """What every client predicts with, stacked on axis 0."""
    now = setup.member
    return jax.vmap(partial(serve_one, now, arrays, server))(clients)


@jax.jit
def predictions(setup: Setup, arrays: Arrays, server: Tree, clients: Client, probes: Array) -> Any:
    """What every client predicts for the same inputs, stacked on axis 0."""
    now = setup.member

    def one(client: Client) -> Array:
        return now.method.predict(serve_one(now, arrays, server, client), probes)

    return jax.vmap(one)(clients)


def score_one(setup: Setup, arrays: Arrays, server: Tree, client: Client) -> Scores:
    """One client's scores: what it is served and, where there is one, the model common to all."""
    method = setup.method
    served = {"personal": serve_one(setup, arrays, server, client)}
    if method.views.common is not None:
        served["global"] = method.views.common(method.offered(server, client.place.uid))
    found = {kind: _metrics(setup, arrays, client, one) for kind, one in served.items()}
    told = _facts(setup, arrays, server, client, served["personal"])
    return {**found, "facts": {"served": told}} if told else found


def serve_one(setup: Setup, arrays: Arrays, server: Tree, client: Client) -> Tree:
    """What one client predicts with."""
    method, uid = setup.method, client.place.uid
    private = private_of(setup, server, client)
    key = derive(client.key, Purpose.SERVE, client.round, uid)
    data = view(setup.layout, arrays, client.place)
    return method.serve(key, method.offered(server, uid), private, data)


def _facts(setup: Setup, arrays: Arrays, server: Tree, client: Client, served: Tree) -> dict[str, Array]:
    """The client's cluster and whatever the method tells of its model, as numbers."""
    method = setup.method
    found: dict[str, Array] = {}
    offer, private = method.offered(server, client.place.uid), private_of(setup, server, client)
    if method.views.assign is not None:
        found.update(method.views.assign(offer, private, view(setup.layout, arrays, client.place)))
    if method.views.facts is not None:
        found.update(method.views.facts(offer, private, served))
    return {name: value.astype(jnp.float32) for name, value in found.items()}


def _metrics(setup: Setup, arrays: Arrays, client: Client, served: Tree) -> dict[str, dict[str, Array]]:
    metrics = setup.method.model.metrics.items()
    return {
        name: {metric: of(outputs, batch.y, batch.mask) for metric, of in metrics}
        for name, outputs, batch in _predicted(setup, arrays, client, served)
    }


def _predicted(setup: Setup, arrays: Arrays, client: Client, served: Tree) -> Iterator[tuple[str, Array, Batch]]:
    """(split, outputs, rows) of the client's valid rows, then of its test rows."""
    for name, split in (("valid", VALID), ("test", TEST)):
        own = rows(setup.layout, arrays, client.place, split)
        yield name, outputs_of(setup.method.predict, served, own), own.all()
