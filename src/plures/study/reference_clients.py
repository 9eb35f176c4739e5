"""The clients that references are fit for: their training rows to fit on, and a row of scores for each of them.

The scores are those of the model's own metrics, so an accuracy or an RMSE means what it means for a method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from numpy.typing import NDArray

from plures.data import Federation
from plures.study.reference_fits import Predictor, Target, fit_constant, target_of
from plures.types import Floats, Model

MOST_ROWS, MOST_NUMBERS = 20_000, 4_000_000
"""A fit takes at most so many rows, and so many numbers in them: evenly spaced ones where there are more."""

AT_ONCE = 2_000_000
"""Outputs that are scored at once."""

SPLITS = ("train", "valid", "test")
TRAIN, VALID, TEST = range(3)


class FitRows(NamedTuple):
    """Inputs, flat, and targets of some training rows."""

    x: NDArray[Any]
    y: NDArray[Any]


@dataclass(frozen=True, eq=False)
class ReferenceClients:
    """Everybody's rows. The first of ``parts`` are the clients in training, the second, if any, the unseen ones."""

    model: Model
    parts: tuple[Federation, ...]
    target: Target

    @cached_property
    def places(self) -> list[tuple[Federation, int]]:
        """Every client: the federation it is in, and its place there; in the order of uids."""
        return [(part, int(place)) for part in self.parts for place in np.argsort(part.uid)]

    @property
    def seen(self) -> Federation:
        """The clients in training."""
        return self.parts[0]

    @property
    def width(self) -> int:
        """How many numbers an input has."""
        return math.prod(self.seen.shape)

    def constants(self) -> list[Predictor]:
        """The trivial predictor of every client."""
        return [fit_constant(part.y[rows_of(part, one, TRAIN)], self.target) for part, one in self.places]

    def own_rows(self, client: int) -> FitRows:
        """The training rows of one client."""
        part, one = self.places[client]
        return self._fit_rows(part, rows_of(part, one, TRAIN))

    def pooled_rows(self) -> FitRows:
        """The training rows of all clients in training."""
        return self._fit_rows(self.seen, train_rows(self.seen))

    def _fit_rows(self, part: Federation, index: NDArray[np.int64]) -> FitRows:
        most = max(min(MOST_ROWS, MOST_NUMBERS // max(self.width, 1)), 1)
        if len(index) > most:
            index = index[np.linspace(0, len(index) - 1, most).round().astype(np.int64)]
        return FitRows(part.x[index].reshape(len(index), self.width), part.y[index])

    def score(self, name: str, predictors: Sequence[Predictor]) -> pl.DataFrame:
        """A row for every client with the scores of its predictor."""
        columns: dict[str, Any] = {
            "reference": [name] * len(self.places),
            "uid": [int(part.uid[one]) for part, one in self.places],
            "name": [part.names[one] for part, one in self.places],
            "seen": [part is self.seen for part, _ in self.places],
        }
        for code, split in enumerate(SPLITS):
            columns[f"{split}_rows"] = [int(part.count[one, code]) for part, one in self.places]
        wanted = {"score": self.model.score}
        if self.model.score != "loss" and "loss" in self.model.metrics:
            wanted["loss"] = "loss"
        found = {code: self._scores(predictors, code, wanted) for code in (VALID, TEST)}
        for kind in wanted:
            columns |= {f"{SPLITS[code]}_{kind}": scores[kind] for code, scores in found.items()}
        return pl.DataFrame(columns).fill_nan(None)

    def _scores(self, predictors: Sequence[Predictor], code: int, wanted: Mapping[str, str]) -> dict[str, Floats]:
        """(clients,) scores on one split, NaN where a client has no rows there; clients of like sizes at once."""
        counts = np.array([part.count[one, code] for part, one in self.places])
        found = {kind: np.full(len(counts), np.nan) for kind in wanted}
        numbers = max(self.target.num_classes, 1) * math.prod(self.seen.y.shape[1:])
        filled = [client for client in np.argsort(counts, kind="stable") if counts[client]]
        for capacity, group in groupby(filled, key=lambda client: _capacity(int(counts[client]))):
            alike = list(group)
            size = min(max(AT_ONCE // (capacity * numbers), 1), 1 << (len(alike) - 1).bit_length())
            for first in range(0, len(alike), size):
                some = alike[first : first + size]
                given = _stack([self._outputs(predictors[one], one, code) for one in some], size, capacity)
                for kind, metric in wanted.items():
                    measured = jax.vmap(self.model.metrics[metric])(*given)
                    found[kind][some] = np.asarray(measured, np.float64)[: len(some)]
        return found

    def _outputs(self, predict: Predictor, client: int, code: int) -> tuple[Any, Any]:
        part, one = self.places[client]
        own = rows_of(part, one, code)
        x, y = part.x[own].reshape(len(own), self.width), part.y[own]
        return self.target.outputs(predict(x), y), y


def reference_clients(federation: Federation, unseen: Federation | None, model: Model) -> ReferenceClients:
    """Everybody's rows, and what is predicted: its prior is that of the clients in training."""
    parts = (federation,) if unseen is None else (federation, unseen)
    target = target_of(model, federation.num_classes, federation.y[train_rows(federation)])
    return ReferenceClients(model, parts, target)


def rows_of(part: Federation, one: int, code: int) -> NDArray[np.int64]:
    """Where the rows of a split of one client lie."""
    return part.start[one, code] + np.arange(part.count[one, code])


def train_rows(part: Federation) -> NDArray[np.int64]:
    """Where the training rows of all clients lie, client by client in the order of uids."""
    return np.concatenate([rows_of(part, int(one), TRAIN) for one in np.argsort(part.uid)])


def _capacity(count: int) -> int:
    """The next of 16, 64, 256, ... rows: few shapes, so that little is compiled."""
    capacity = 16
    while capacity < count:
        capacity *= 4
    return capacity


def _stack(rows: Sequence[tuple[Any, Any]], size: int, capacity: int) -> tuple[Any, Any, Any]:
    """Outputs, targets and a mask of clients on axis 0, filled up to ``size`` clients of ``capacity`` rows."""
    outputs, y = rows[0]
    stacks = (
        np.zeros((size, capacity, *outputs.shape[1:]), np.float32),
        np.zeros((size, capacity, *y.shape[1:]), np.float32 if y.dtype.kind == "f" else np.int32),
        np.zeros((size, capacity), bool),
    )
    for place, (outputs, y) in enumerate(rows):
        for stack, values in zip(stacks, (outputs, y, True), strict=True):
            stack[place, : len(y)] = values
    return jnp.asarray(stacks[0]), jnp.asarray(stacks[1]), jnp.asarray(stacks[2])
