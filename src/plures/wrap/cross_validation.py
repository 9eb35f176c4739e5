"""A client's rows in folds: each fold is held out once while the others are trained on."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from plures.keys import permute
from plures.types import Key, Rows


class RowFolds(NamedTuple):
    """Rows in random order, twice over, so that all folds but one lie next to each other for any fold."""

    rows: Rows  # the rows in their new order, once; its arrays hold them twice
    starts: Array  # (folds + 1,) where each fold begins

    @property
    def number(self) -> int:
        """How many folds there are."""
        return len(self.starts) - 1

    def fit(self, fold: Array | int) -> Rows:
        """The rows to train on when a fold is held out."""
        rows, start, stop = self.rows, self.starts[fold], self.starts[fold + 1]
        return Rows(rows.x, rows.y, stop, rows.count - (stop - start), rows.capacity)

    def held(self, fold: Array | int) -> Rows:
        """The rows of the fold itself."""
        rows, start, stop = self.rows, self.starts[fold], self.starts[fold + 1]
        return Rows(rows.x, rows.y, start, stop - start, -(-rows.capacity // self.number))

    @property
    def sizes(self) -> Array:
        """The number of rows in each fold."""
        return jnp.diff(self.starts)

    def of_rows(self, values: Array) -> Array:
        """(capacity,) values in the order of the rows, from (folds, held capacity) ones."""
        index = jnp.arange(self.rows.capacity)
        fold = (index[:, None] >= self.starts[None, 1:-1]).sum(1)
        return values[fold, jnp.minimum(index - self.starts[fold], values.shape[1] - 1)]


def folds_of(key: Key, rows: Rows, number: int) -> RowFolds:
    """A client's rows divided at random into ``number`` folds of equal size, give or take one row."""
    count = jnp.asarray(rows.count)
    indices = jnp.arange(2 * max(rows.capacity, 1)) % jnp.maximum(count, 1)
    twice = rows.take(permute(key, indices, count))
    starts = jnp.arange(number + 1) * count // number
    return RowFolds(Rows(twice.x, twice.y, 0, rows.count, max(rows.capacity, 1)), starts)
