"""State: all that changes in a run. Saving it is checkpointing."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures.keys import Purpose, derive
from plures.types import Key, Method, Prelude, Tree


class State(NamedTuple):
    """Where a run stands: ``private`` has a row per training client, in the order of uids."""

    round: Array
    server: Tree
    private: Tree
    visits: Array  # (clients,) rounds each client took part in since the method started
    turns: Array  # (clients,) exchanges of these rounds


class Phase(NamedTuple):
    """A method and the rounds [start, stop) it is run for; ``entry`` is the prelude that leads to it.

    ``main``: it is what the run is about, or closes it; only these phases are scored.
    """

    method: Method
    start: int
    stop: int
    entry: Prelude | None
    everyone: bool
    main: bool


def phases(method: Method, rounds: int) -> list[Phase]:
    """A method's preludes, in order, and the method itself; ``rounds`` counts them all."""
    link = method.prelude
    if link is None:
        return [Phase(method, 0, rounds, None, False, True)]
    stop = rounds - link.leave if link.leave else least_rounds(link.method) - 1 + link.rounds
    *early, last = phases(link.method, stop)
    if not link.leave:
        early = [one._replace(main=False) for one in early]
    last = last._replace(everyone=link.everyone, main=bool(link.leave))
    return [*early, last, Phase(method, stop, rounds, link, False, True)]


def chain(method: Method) -> list[Method]:
    """The methods of all phases: the preludes in order, and the method itself."""
    return [method] if method.prelude is None else [*chain(method.prelude.method), method]


def least_rounds(method: Method) -> int:
    """The fewest rounds of a run in which every phase of the method has its rounds, or at least one."""
    link = method.prelude
    if link is None:
        return 1
    return least_rounds(link.method) + (link.leave or link.rounds)


def first_state(method: Method, key: Key, num_clients: int, *, with_rows: bool = True) -> State:
    """The state before the first round of a method that follows no other."""
    server = method.start(derive(key, Purpose.START), num_clients)
    return _state(method, server, 0, num_clients, with_rows)


def next_state(phase: Phase, key: Key, before: State, *, with_rows: bool = True) -> State:
    """The state with which a phase begins: the server state handed over, private rows anew."""
    assert phase.entry is not None
    num_clients = len(before.visits)
    fresh = phase.method.start(derive(key, Purpose.START, phase.start), num_clients)
    server = phase.entry.hand_over(derive(key, Purpose.HAND_OVER, phase.start), fresh, before.server)
    return _state(phase.method, server, phase.start, num_clients, with_rows)


def _state(method: Method, server: Tree, round_: int, num_clients: int, with_rows: bool) -> State:
    """Arrays are copied: a method may put one array in two places, but a buffer can be given away only once."""
    server = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, Array) else leaf, server)
    rows = blank_rows(method, server, num_clients) if with_rows else ()
    nothing = jnp.zeros(num_clients, jnp.int32)
    return State(jnp.asarray(round_, jnp.int32), server, rows, nothing, nothing.copy())


def blank_rows(method: Method, server: Tree, num_clients: int) -> Tree:
    """Zeros in the shape of every client's private state; a row is filled when its client joins."""
    one = private_shape(method, server)
    return jax.tree.map(lambda leaf: jnp.zeros((num_clients, *leaf.shape), leaf.dtype), one)


def private_shape(method: Method, server: Tree) -> Tree:
    """The shapes of one client's private state."""

    def join(server: Tree) -> Tree:
        uid = jnp.zeros((), jnp.int32)
        return method.join(jax.random.key(0), method.offered(server, uid))

    return jax.eval_shape(join, server)
