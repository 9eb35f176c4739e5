"""Who takes part in a round. Cohorts are drawn by uid, never by position, and listed in the order of uids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from plures.errors import BadValue, UnknownChoice
from plures.types import Key


@dataclass(frozen=True)
class Everyone:
    """All clients, every round."""

    def size(self, num_clients: int) -> int:
        """How many clients a round has."""
        return num_clients

    def draw(self, key: Key, sizes: Array) -> Array:
        """The uids of one round; ``sizes`` are the training rows of uid 0, 1, ..."""
        return jnp.arange(len(sizes))


@dataclass(frozen=True)
class Drawn:
    """``number`` clients."""

    number: int

    def size(self, num_clients: int) -> int:
        """How many clients a round has."""
        if not 1 <= self.number <= num_clients:
            raise BadValue("cohort", self.number, f"between 1 and {num_clients}, the number of clients")
        return self.number


class Uniform(Drawn):
    """``number`` clients, each set equally likely (Floyd's algorithm: work grows with the cohort alone)."""

    def draw(self, key: Key, sizes: Array) -> Array:
        """The uids of one round."""
        total = len(sizes)
        tops = jnp.arange(total - self.number, total)
        draws = jax.random.randint(key, (self.number,), 0, tops + 1)

        def pick(index: Array, chosen: Array) -> Array:
            taken = (chosen == draws[index]).any()
            return chosen.at[index].set(jnp.where(taken, tops[index], draws[index]))

        return jnp.sort(jax.lax.fori_loop(0, self.number, pick, jnp.full(self.number, -1)))


class Weighted(Drawn):
    """``number`` distinct clients, drawn one after another in proportion to their training rows."""

    def draw(self, key: Key, sizes: Array) -> Array:
        """The uids of one round (Gumbel top-k)."""
        luck = jax.vmap(lambda uid: jax.random.gumbel(jax.random.fold_in(key, uid)))(jnp.arange(len(sizes)))
        _, chosen = jax.lax.top_k(luck + jnp.log(jnp.maximum(sizes, 1e-9)), self.number)
        return jnp.sort(chosen)


Cohort: TypeAlias = Everyone | Uniform | Weighted


def cohort(given: Cohort | int | str | None) -> Cohort:
    """A cohort from a number of clients, ``"all"``, ``"weighted:10"`` or None (all).

    >>> cohort("weighted:10")
    Weighted(number=10)
    """
    if given is None or given == "all":
        return Everyone()
    if isinstance(given, int):
        return Uniform(given)
    if isinstance(given, str):
        kind, _, number = given.rpartition(":")
        if not (number.isascii() and number.isdigit()):
            raise BadValue("cohort", given, "'all', a number of clients, or 'weighted:NUMBER'")
        if kind not in ("", "uniform", "weighted"):
            raise UnknownChoice("cohort", kind, ["all", "uniform", "weighted"])
        return Weighted(int(number)) if kind == "weighted" else Uniform(int(number))
    if not isinstance(given, Everyone | Uniform | Weighted):
        raise BadValue("cohort", given, "'all', a number of clients, or 'weighted:NUMBER'")
    return given
