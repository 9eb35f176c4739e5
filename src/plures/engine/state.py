"""State: all that changes in a run. Saving it is checkpointing."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.engine.phases import Span
from plures.keys import Purpose, derive
from plures.method import Method
from plures.types import Key, Tree


class State(NamedTuple):
    """Where a run stands: ``private`` has a row per training client, in the order of uids."""

    round: Array
    server: Tree
    private: Tree
    visits: Array  # (clients,) rounds each client took part in since the method started
    exchanges: Array  # (clients,) exchanges of these rounds


def first_state(method: Method, key: Key, num_clients: int, *, with_rows: bool = True) -> State:
    """The state before the first round of a method that follows no other."""
    server = method.start(derive(key, Purpose.START), num_clients)
    return _state(method, server, 0, num_clients, with_rows)


def next_state(span: Span, key: Key, before: State, *, with_rows: bool = True) -> State:
    """The state with which a later phase begins: the server state handed over, private rows anew."""
    num_clients = len(before.visits)
    fresh = span.method.start(derive(key, Purpose.START, span.start), num_clients)
    server = span.phase.hand_over(derive(key, Purpose.HAND_OVER, span.start), fresh, before.server)
    return _state(span.method, server, span.start, num_clients, with_rows)


def state_entered(spans: list[Span], key: Key, state: State, *, with_rows: bool) -> State:
    """The state with which the last phase of some begins, given that of the first."""
    for span in spans[1:]:
        state = next_state(span, key, state, with_rows=with_rows)
    return state


def server_shape(spans: list[Span], num_clients: int) -> Tree:
    """The shapes of the server state with which the last phase of some begins."""

    def entered() -> Tree:
        key = jax.random.key(0)
        state = first_state(spans[0].method, key, num_clients, with_rows=False)
        return state_entered(spans, key, state, with_rows=False).server

    return jax.eval_shape(entered)


def _state(method: Method, server: Tree, round_: int, num_clients: int, with_rows: bool) -> State:
    """Arrays are copied: a method may put one array in two places, but a buffer can be given away only once."""
    server = jax.tree.map(_copied, server)
    rows = blank_rows(method, server, num_clients) if with_rows else ()
    nothing = jnp.zeros(num_clients, jnp.int32)
    return State(jnp.asarray(round_, jnp.int32), server, rows, nothing, nothing.copy())


def _copied(leaf: Any) -> Any:
    """A copy whose type is settled: ``jnp.full(n, 0.5)`` has a weak one, and the second round would compile again."""
    if not isinstance(leaf, Array):
        return leaf
    return leaf.copy() if tree.is_key(leaf) else jnp.array(leaf, leaf.dtype)


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
