"""How one client's function is run for many: all at once, in chunks, or one by one.

Executors never change results, only time and memory. Clients are sorted by work before they are put into
chunks, and a chunk is done when its largest client is: so that nobody pays for the largest of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from plures import tree
from plures.engine.clients import TRAIN, Arrays, RowLayout, cut_out
from plures.errors import BadValue, ClientFailure, UnknownChoice
from plures.types import Tree

ClientFunction: TypeAlias = Callable[[Any, Arrays, Tree, Any], Tree]
"""(setup, arrays, server, client) -> result, for one client; ``client`` has a ``place``."""


@dataclass(frozen=True)
class Executor:
    """``size`` clients at a time; None is all at once, 0 is one by one outside ``jit`` (to debug)."""

    size: int | None

    @property
    def on_host(self) -> bool:
        """Whether clients run in a Python loop."""
        return self.size == 0

    def run(self, function: ClientFunction, setup: Any, arrays: Arrays, server: Tree, clients: Any) -> Tree:
        """The function's results for all clients, stacked on axis 0."""
        if self.on_host:
            return _one_by_one(function, setup, arrays, server, clients)
        mapped = partial(function, setup, arrays, server)
        total = clients.place.uid.shape[0]
        if self.size is None or self.size >= total:
            return jax.vmap(mapped)(clients)
        if self.size == 1:
            return jax.lax.map(mapped, clients)
        return _chunked(mapped, clients, self.size)


vectorized = Executor(None)
one_by_one = Executor(0)


def chunked(size: int) -> Executor:
    """Chunks of ``size`` clients, one chunk after another."""
    if size < 1:
        raise BadValue("chunk size", size, "1 or more")
    return Executor(size)


def executor(given: Executor | str) -> Executor | None:
    """An executor by name: "vectorized", "chunked:8", "one_by_one"; None for "auto".

    >>> executor("chunked:8")
    Executor(size=8)
    """
    if isinstance(given, Executor):
        return given
    if not isinstance(given, str):
        raise BadValue("executor", given, "'auto', 'vectorized', 'chunked:NUMBER' or 'one_by_one'")
    kind, _, size = given.partition(":")
    if kind == "chunked":
        if not (size.isascii() and size.isdigit()):
            raise BadValue("executor", given, "chunked:NUMBER, for example chunked:8")
        return chunked(int(size))
    if size:
        raise BadValue("executor", given, f"{kind} without a number (only chunked has one)")
    named = {"auto": None, "vectorized": vectorized, "one_by_one": one_by_one}
    if kind not in named:
        raise UnknownChoice("executor", given, [*named, "chunked:NUMBER"])
    return named[kind]


CACHE_BYTES = 2**21
DEVICE_BYTES = 2**33
DATA_BYTES = 2**28
WASTE = 0.2


def choose(*, message_bytes: int, work: Sequence[int], num_clients: int, data_bytes: int = 0) -> Executor:
    """A good executor for this machine: from what a client downloads and holds, and how unequal clients are.

    Clients run side by side as long as their models fit a CPU's cache (or a share of an accelerator's memory) and
    their rows fit a quarter of a gigabyte. On a CPU chunks are the largest that leave at most a fifth of the steps
    idle; an accelerator takes all it has room for, because there lanes that wait cost next to nothing
    (benchmarks/padding.md).
    """
    on_cpu = jax.default_backend() == "cpu"
    room = (CACHE_BYTES if on_cpu else DEVICE_BYTES) // max(message_bytes, 1)
    room = min(room, (DATA_BYTES if on_cpu else DEVICE_BYTES) // max(data_bytes, 1))
    most = max(min(room, num_clients), 1)
    for size in (one for one in _even_sizes(num_clients) if one <= most):
        if not on_cpu or idle_share(work, num_clients, size) <= WASTE:
            return vectorized if size == num_clients else chunked(size)
    return chunked(1)


def _even_sizes(num_clients: int) -> list[int]:
    """Chunk sizes that leave the last chunk about as full as the others, largest first."""
    limit = math.isqrt(num_clients)
    sizes = {-(-num_clients // chunks) for chunks in range(1, limit + 1)} | set(range(1, limit + 2))
    return sorted((size for size in sizes if size <= num_clients), reverse=True)


def idle_share(work: Sequence[int], cohort_size: int, size: int) -> float:
    """The share of steps spent waiting for a chunk's largest client or on repeats, for a typical cohort."""
    ranks = (np.arange(cohort_size) + 0.5) / cohort_size
    spread = np.quantile(np.asarray(work, float), ranks, method="inverted_cdf")[::-1]
    chunks = [spread[i : i + size] for i in range(0, cohort_size, size)]
    spent = sum(size * chunk.max() for chunk in chunks)
    return 0.0 if spent == 0 else float(1 - spread.sum() / spent)


def _chunked(mapped: Callable[[Any], Tree], clients: Any, size: int) -> Tree:
    """Largest clients first; the last chunk is filled up with repeats that are thrown away."""
    total = clients.place.uid.shape[0]
    order = jnp.argsort(-clients.place.sizes[:, TRAIN], stable=True)
    padded = jnp.concatenate([order, jnp.repeat(order[-1:], -total % size)])
    chunks = jax.tree.map(lambda leaf: leaf[padded].reshape(len(padded) // size, size, *leaf.shape[1:]), clients)
    results = jax.lax.map(jax.vmap(mapped), chunks)
    back = jnp.argsort(order)
    # No -1 in the shape: a leaf may be empty.
    return jax.tree.map(lambda leaf: leaf.reshape(len(padded), *leaf.shape[2:])[:total][back], results)


def _one_by_one(function: ClientFunction, setup: Any, arrays: Arrays, server: Tree, clients: Any) -> Tree:
    results = []
    for index in range(clients.place.uid.shape[0]):
        one = tree.at(clients, index)
        alone, place = cut_out(setup.layout, arrays, one.place)
        one = one._replace(place=place)
        try:
            results.append(_call(function, setup, alone, server, one))
        except Exception as error:
            raise ClientFailure(_account(function, setup.layout, one, server, error)) from error
    return tree.stack(results)


@partial(jax.jit, static_argnums=(0, 1))
def _call(function: ClientFunction, setup: Any, arrays: Arrays, server: Tree, one: Any) -> Tree:
    return function(setup, arrays, server, one)


def _account(function: Any, layout: RowLayout, one: Any, server: Tree, error: Exception) -> str:
    stage = function.__name__.removesuffix("_one").replace("_", " ")
    rows = [int(n) for n in one.place.sizes]
    said = (str(error).splitlines() or ["no message"])[0]
    return (
        f"{stage} failed in round {int(one.round)} for the client with uid {int(one.place.uid)} "
        f"(train, valid, test rows: {rows}): {type(error).__name__}: {said}\n"
        f"  server: {tree.describe(server)}\n  private: {tree.describe(one.private)}"
    )
