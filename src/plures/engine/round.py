"""The life of one round: send, train, channel, merge, settle.

Functions named ``*_one`` are for ONE client; the executor maps them over the cohort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.engine.clients import TRAIN, Arrays, Place, RowLayout, view
from plures.engine.cohort import Cohort
from plures.engine.executors import Executor
from plures.engine.phases import methods_of
from plures.errors import ClientFailure
from plures.keys import Purpose, derive
from plures.method import Attack, Channel, Method
from plures.types import Info, Key, Tree

STEPS = "steps"
"""What a method tells of its gradient steps; those of all exchanges of a round are added up."""


@dataclass(frozen=True, eq=False)
class Family:
    """Methods that differ in numbers alone, such as their step sizes, and share their programs.

    ``make(numbers)`` is one of them; the numbers may be traced. ``base`` is any of them, for shapes.
    """

    make: Callable[[Tree], Method]
    base: Method


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["numbers"],
    meta_fields=["method", "layout", "executor", "cohort", "channels", "began", "family", "phase"],
)
@dataclass(frozen=True)
class Setup:
    """All that stays the same during a run; ``jit`` compiles once per setup, whatever its ``numbers`` are.

    With a ``family`` the method is the one of these numbers, in a phase of theirs; compiled functions ask ``member`` for it.
    """

    method: Method
    layout: RowLayout
    executor: Executor
    cohort: Cohort
    channels: tuple[Channel, ...] = ()
    began: int = 0  # the round the method began with: later phases have keys of their own
    family: Family | None = None
    phase: int = 0
    numbers: Tree = ()

    @property
    def member(self) -> Setup:
        """The same for the member of the family that these numbers make."""
        if self.family is None:
            return self
        made = methods_of(self.family.make(self.numbers))[self.phase]
        return replace(self, method=made, family=None, numbers=())


class Client(NamedTuple):
    """One client in one round (a cohort: stacked on axis 0)."""

    place: Place
    private: Tree
    visits: Array  # rounds it took part in so far; 0 = it has not joined yet
    round: Array
    key: Key  # the run's key, from which the client's own keys are derived


def one_round(
    setup: Setup, arrays: Arrays, server: Tree, cohort: Client, key: Key, round_: Array
) -> tuple[Tree, Tree, Info, Array | int]:
    """The server state and the cohort's private rows after one round, what was learned, how many exchanges it took."""
    method, executor = setup.method, setup.executor
    exchanges = method.traits.exchanges(server) if callable(method.traits.exchanges) else method.traits.exchanges

    def exchange(number: Array | int, carry: tuple[Tree, Client, Info]) -> tuple[Tree, Client, Info]:
        server, cohort, before = carry
        uploads, private, info = executor.run(train_one, setup, arrays, server, cohort)
        info = {**info, STEPS: info[STEPS] + before.get(STEPS, 0.0)}
        weights = cohort.place.sizes[:, TRAIN].astype(float)
        key_channel = jax.random.fold_in(derive(key, Purpose.CHANNEL, round_), number)
        server = _merge(setup, server, uploads, weights, cohort.place.uid, key_channel)
        return server, joined(cohort, private), info

    server, cohort, info = _exchanged(setup, exchanges, exchange, (server, cohort, {}))
    if method.settle is not None:
        private = executor.run(settle_one, setup, arrays, server, cohort)
        cohort = cohort._replace(private=private)
    return server, cohort.private, info, exchanges


def _merge(setup: Setup, server: Tree, uploads: Tree, weights: Array, uids: Array, key: Key) -> Tree:
    """What arrives at the server through the channels, merged; one by one, a failure is named."""
    try:
        for number, channel in enumerate(setup.channels):
            sent = _through(channel, setup.method, server, jax.random.fold_in(key, number), uploads, weights, uids)
            uploads, weights = sent
        return setup.method.merge(server, uploads, weights, uids)
    except Exception as error:
        if not setup.executor.on_host:
            raise
        said = f"channel or merge failed for the cohort {uids.tolist()}: {type(error).__name__}: {error}"
        raise ClientFailure(f"{said}\n  uploads: {tree.describe(uploads)}") from error


def _through(
    channel: Channel, method: Method, server: Tree, key: Key, uploads: Tree, weights: Array, uids: Array
) -> tuple[Tree, Array]:
    """What arrives through one channel; attackers may say another thing to every receiver."""
    if method.traits.receivers is None or not isinstance(channel, Attack):
        return channel(key, uploads, weights, uids)
    receivers = jax.vmap(partial(method.traits.receivers, server))(uids)  # (clients, messages)

    def one(message: Tree, to: Array) -> Tree:
        return channel.forge(key, message, weights, uids, to)

    return jax.vmap(one, in_axes=1, out_axes=1)(uploads, receivers), weights


def train_one(setup: Setup, arrays: Arrays, server: Tree, client: Client) -> tuple[Tree, Tree, Info]:
    """One client's part: join if it is new, receive, train."""
    method, uid = setup.method, client.place.uid
    private = private_of(setup, server, client)
    key = derive(client.key, Purpose.TRAIN, client.round, uid)
    upload, private, info = method.train(
        key, method.send(server, uid), private, view(setup.layout, arrays, client.place)
    )
    # A round in which a client says nothing of steps (it sends sums of its rows, say) has none.
    return upload, private, {**info, STEPS: jnp.asarray(info.get(STEPS, 0.0), jnp.float32)}


def settle_one(setup: Setup, arrays: Arrays, server: Tree, client: Client) -> Tree:
    """One client's use of the server's answer."""
    method, uid = setup.method, client.place.uid
    assert method.settle is not None
    key = derive(client.key, Purpose.SETTLE, client.round, uid)
    data = view(setup.layout, arrays, client.place)
    return method.settle(key, method.answered(server, uid), client.private, data)


def private_of(setup: Setup, server: Tree, client: Client) -> Tree:
    """The client's private state; a client that has not joined yet joins now."""
    method = setup.method
    key = derive(client.key, Purpose.JOIN, setup.began, client.place.uid)
    fresh = method.join(key, method.offered(server, client.place.uid))
    return tree.choose(client.visits > 0, client.private, fresh)


def joined(cohort: Client, private: Tree) -> Client:
    """The cohort with new private rows, all of whom have joined."""
    return cohort._replace(private=private, visits=cohort.visits.clip(1))


def _exchanged(setup: Setup, exchanges: Array | int, exchange: Any, carry: Any) -> Any:
    """What the exchanges of a round make of (server, cohort, info)."""
    if setup.executor.on_host or (isinstance(exchanges, int) and exchanges == 1):
        for number in range(int(exchanges)):
            carry = exchange(number, carry)
        return carry
    # A loop carries the same shapes from the start: nothing is known of the info, and nobody reads it.
    shapes = jax.eval_shape(lambda carry: exchange(0, carry), carry)[2]
    info = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)
    return jax.lax.fori_loop(0, exchanges, exchange, (*carry[:2], info))
