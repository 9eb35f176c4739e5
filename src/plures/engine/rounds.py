"""Many rounds: in one compiled loop, or driven from Python."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.engine.clients import TRAIN, Arrays, Place
from plures.engine.cohort import Uniform
from plures.engine.private_rows import DiskStore
from plures.engine.round import Client, Setup, one_round
from plures.engine.state import State
from plures.keys import Purpose, derive
from plures.types import Info, Key, Tree


def clients_at(places: Place, private: Tree, visits: Array, round_: Array, key: Key) -> Client:
    """Clients at their places with their private rows, in a round."""
    size = places.uid.shape[0]
    return Client(places, private, visits, jnp.broadcast_to(round_, (size,)), jnp.broadcast_to(key, (size,)))


def counted(state: State, cohort: Array | np.ndarray, exchanges: Array | int) -> dict[str, Array]:
    """How often clients took part, after a round of so many exchanges with a cohort."""
    return {"visits": state.visits.at[cohort].add(1), "exchanges": state.exchanges.at[cohort].add(exchanges)}


def cohort_of(setup: Setup, key: Key, round_: Array, places: Place) -> Array:
    """Who takes part in a round."""
    sizes = places.sizes[:, TRAIN].astype(float)
    return setup.cohort.draw(derive(key, Purpose.COHORT, round_), sizes)


@jax.jit
def compiled_round(setup: Setup, *args: Any) -> Any:
    """One round, compiled."""
    return one_round(setup.member, *args)


@partial(jax.jit, static_argnums=5, donate_argnums=4)
def play(setup: Setup, arrays: Arrays, places: Place, key: Key, state: State, length: int) -> tuple[State, Info]:
    """``length`` rounds in one compiled loop; places are in the order of uids."""
    return _rounds(setup.member, arrays, places, key, state, length)


def _rounds(setup: Setup, arrays: Arrays, places: Place, key: Key, state: State, length: int) -> tuple[State, Info]:
    rounds = state.round + jnp.arange(length)
    # Small cohorts are drawn for all rounds together; those that touch every client, round by round.
    ahead = isinstance(setup.cohort, Uniform)
    chosen = jax.vmap(lambda round_: cohort_of(setup, key, round_, places))(rounds) if ahead else rounds

    def step(state: State, now: tuple[Array, Array]) -> tuple[State, Info]:
        round_, drawn = now
        cohort = drawn if ahead else cohort_of(setup, key, round_, places)
        clients = clients_at(
            tree.at(places, cohort), tree.at(state.private, cohort), state.visits[cohort], round_, key
        )
        server, private, info, exchanges = one_round(setup, arrays, state.server, clients, key, round_)
        rows_ = tree.put(state.private, cohort, private)
        after = State(round_ + 1, server, rows_, **counted(state, cohort, exchanges))
        return after, {name: values.mean() for name, values in info.items()}

    return jax.lax.scan(step, state, (rounds, chosen))


def walk(
    setup: Setup, arrays: Arrays, places: Place, key: Key, state: State, length: int, store: DiskStore | None
) -> tuple[State, Info]:
    """``length`` rounds driven from Python: one client by one, or with private rows on disk."""
    infos = []
    for _ in range(length):
        chosen = np.asarray(cohort_of(setup, key, state.round, places))
        private = store.get(chosen) if store else tree.at(state.private, chosen)
        clients = clients_at(tree.at(places, chosen), private, state.visits[chosen], state.round, key)
        step = one_round if setup.executor.on_host else compiled_round
        server, private, info, exchanges = step(setup, arrays, state.server, clients, key, state.round)
        if store is None:
            state = state._replace(private=tree.put(state.private, chosen, private))
        else:
            store.put(chosen, private)
        state = state._replace(round=state.round + 1, server=server, **counted(state, chosen, exchanges))
        infos.append({name: values.mean() for name, values in info.items()})
    return state, tree.stack(infos)
