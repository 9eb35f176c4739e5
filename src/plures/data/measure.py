"""How clients differ, in three numbers between 0 and 1: in labels, in inputs and in size.

The first two are shares of variance explained by the client, corrected for chance (epsilon squared of a one-way
analysis of variance, Kelley 1935), summed over columns:

    (SSB - (K - 1) MSW) / SST      with MSW = SSW / (n - K),   K clients, n rows

0 in expectation when all clients' rows come from one distribution, 1 when a client's rows are all alike. Inputs
of a classification are compared inside each class, so that other labels alone are no shift of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from plures.data.federation import Federation
from plures.keys import Purpose, derive, root

Numbers = NDArray[np.float64]

MOST_COLUMNS = 64
MOST_TOKENS = 1000
BLOCK_BYTES = 2**25


class NumberReader(NamedTuple):
    """Values that are read some rows at a time: ``read(places)`` gives (rows, width) numbers.

    ``cost`` is how many numbers it holds per row while reading.
    """

    width: int
    cost: int
    read: Callable[[NDArray[np.int64]], Numbers]


def measure_differences(federation: Federation) -> dict[str, float | None]:
    """All three numbers by name; None where there is nothing to compare."""
    shift = feature_shift(federation)
    found = {
        "label_skew": label_skew(federation),
        "feature_shift": np.nan if shift is None else shift,
        "quantity_skew": quantity_skew(federation),
    }
    return {name: None if np.isnan(number) else float(number) for name, number in found.items()}


def label_skew(federation: Federation) -> float:
    """How much of the variance of training labels (one-hot) or targets lies between clients.

    A row with several labels counts as the mean of their one-hots. NaN when no client has two rows.
    """
    rows, owner = train_rows(federation)
    return share_explained(_labels(federation, rows), owner, np.zeros_like(owner))


def feature_shift(federation: Federation) -> float | None:
    """How much of the variance of training inputs lies between clients, inside each class where there are classes.

    Inputs of more than 64 numbers are seen along 64 random directions, which nearly keeps the share. None when
    inputs have no columns; NaN when no client has two rows (of one class).
    """
    if not np.prod(federation.shape, dtype=int):
        return None
    rows, owner = train_rows(federation)
    within = federation.y[rows] if federation.task == "classification" else np.zeros_like(owner)
    return share_explained(_narrow(input_numbers(federation, rows)), owner, np.asarray(within))


def quantity_skew(federation: Federation) -> float:
    """The Gini coefficient of training rows per client: 0 for equal sizes, (K - 1) / K when one has them all."""
    sizes = np.sort(federation.count[:, 0])
    places = 2 * np.arange(1, len(sizes) + 1) - len(sizes) - 1
    return float((places * sizes).sum() / max(len(sizes) * sizes.sum(), 1))


def train_rows(federation: Federation) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(where each training row lies in the arrays, whose it is), client by client."""
    start, count = federation.start[:, 0], federation.count[:, 0]
    owner = np.repeat(np.arange(federation.num_clients), count)
    first = np.cumsum(count) - count
    return np.arange(len(owner)) + (start - first)[owner], owner


def input_numbers(federation: Federation, rows: NDArray[np.int64]) -> NumberReader:
    """The inputs at ``rows``, to be read as columns of numbers.

    Rows of whole numbers in 0..999 along one axis are taken for tokens: their columns are how often each occurs.
    """
    x = federation.x
    if x.ndim == 2 and x.dtype.kind in "iu":
        low, high = _range(x, rows)
        if low >= 0 and high < MOST_TOKENS:
            return _tokens(x, rows, high + 1)
    return _plain(x, rows)


class _Rows(NamedTuple):
    """Rows in the order of their cells: where each lies, which cell (from 0 on) and class (from 0 on) it has."""

    place: NDArray[np.int64]
    cell: NDArray[np.int64]
    within: NDArray[np.int64]

    def blocks(self, reader: NumberReader) -> Iterator[tuple[slice, Numbers]]:
        """The values, some rows at a time."""
        step = max(BLOCK_BYTES // (8 * reader.cost), 1)
        for first in range(0, len(self.place), step):
            part = slice(first, first + step)
            yield part, reader.read(self.place[part])


def share_explained(reader: NumberReader, owner: NDArray[np.int64], within: NDArray[Any]) -> float:
    """The share of the variance of values that lies between owners, corrected for chance, in [0, 1].

    ``within`` (say, the class) compares owners inside each of its values: cells of (within, owner) against the
    mean of their ``within``, with (cells - classes) and (n - cells) degrees of freedom. NaN where every cell has
    one row; 0 where nothing varies. Values are read some rows at a time, in two passes; owners count from 0 on.
    """
    rows = _in_cells(owner, np.unique(within, return_inverse=True)[1])
    spare = len(rows.cell) - int(rows.cell[-1]) - 1 if len(rows.cell) else 0
    if spare <= 0:
        return float("nan")
    means, square = _class_means(rows, reader)
    total, between = _sums_of_squares(rows, reader, means)
    # What rounding leaves of equal values is no spread.
    if total <= 1e-24 * square:
        return 0.0
    chance = (int(rows.cell[-1]) + 1 - len(means)) * max(total - between, 0.0) / spare
    return float(np.clip((between - chance) / total, 0.0, 1.0))


def _in_cells(owner: NDArray[np.int64], within: NDArray[np.int64]) -> _Rows:
    """Rows put in the order of owners, and of classes inside an owner: near to how they lie in a file."""
    place = np.lexsort((within, owner))
    owner, within = owner[place], within[place]
    new = (owner[1:] != owner[:-1]) | (within[1:] != within[:-1])
    cell = np.concatenate([np.zeros(min(len(place), 1), np.int64), np.cumsum(new)])
    return _Rows(place, cell, within)


def _class_means(rows: _Rows, reader: NumberReader) -> tuple[Numbers, float]:
    """(the mean of every class, the sum of all squares)."""
    size = np.bincount(rows.within)
    sums, square = np.zeros((len(size), reader.width)), 0.0
    for part, values in rows.blocks(reader):
        numbers, found = _sums_by(rows.within[part], values)
        sums[numbers] += found
        square += float(np.vdot(values, values))
    return sums / size[:, None], square


def _sums_of_squares(rows: _Rows, reader: NumberReader, means: Numbers) -> tuple[float, float]:
    """(about the class means in all, of it between cells)."""
    size = np.bincount(rows.cell)
    total = between = 0.0
    cut: dict[int, Any] = {}
    for part, values in rows.blocks(reader):
        values -= means[rows.within[part]]
        total += float(np.vdot(values, values))
        cells, sums = _sums_by(rows.cell[part], values)
        between += float(((sums[1:-1] ** 2).sum(1) / size[cells[1:-1]]).sum())
        # The first and the last cell of a block may go on in another block.
        for edge in {0, len(cells) - 1}:
            cut[int(cells[edge])] = cut.get(int(cells[edge]), 0.0) + sums[edge]
    return total, between + sum(float(one @ one) / size[cell] for cell, one in cut.items())


def _sums_by(number: NDArray[np.int64], values: Numbers) -> tuple[NDArray[np.int64], Numbers]:
    """(the numbers that occur, in order; the sum of the values at each)."""
    if (number[1:] < number[:-1]).any():
        order = np.argsort(number, kind="stable")
        number, values = number[order], values[order]
    first = np.flatnonzero(np.concatenate([[True], number[1:] != number[:-1]]))
    return number[first], np.add.reduceat(values, first, axis=0)


def _labels(federation: Federation, rows: NDArray[np.int64]) -> NumberReader:
    """Labels as (mean) one-hots, and targets of a regression as they are."""
    if federation.task == "regression":
        return _plain(federation.y, rows)
    return _tokens(federation.y, rows, federation.num_classes)


def _plain(values: NDArray[Any], rows: NDArray[np.int64]) -> NumberReader:
    """The values at ``rows`` as they are, flat."""
    width = int(np.prod(values.shape[1:], dtype=int))

    def read(places: NDArray[np.int64]) -> Numbers:
        return values[rows[places]].reshape(len(places), width).astype(np.float64)

    return NumberReader(width, max(width, 1), read)


def _tokens(values: NDArray[Any], rows: NDArray[np.int64], number: int) -> NumberReader:
    """How often each of ``number`` tokens stands in a row."""
    length = int(np.prod(values.shape[1:], dtype=int))
    return NumberReader(number, max(number, length), lambda places: _frequencies(values[rows[places]], number))


def _frequencies(tokens: NDArray[Any], number: int) -> Numbers:
    """How often each of ``number`` tokens stands in each row, as shares.

    >>> _frequencies(np.array([[0, 2, 2, 1]]), 3)
    array([[0.25, 0.25, 0.5 ]])
    """
    flat = tokens.reshape(len(tokens), -1).astype(np.int64)
    cell = np.arange(len(flat))[:, None] * number + flat
    found = np.bincount(cell.ravel(), minlength=len(flat) * number)
    return found.reshape(len(flat), number) / max(flat.shape[1], 1)


def _range(x: NDArray[Any], rows: NDArray[np.int64], block: int = 65536) -> tuple[int, int]:
    """The smallest and the largest number in these rows."""
    parts = (x[rows[first : first + block]] for first in range(0, len(rows), block))
    ends = [(int(part.min()), int(part.max())) for part in parts]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _narrow(reader: NumberReader) -> NumberReader:
    """The same values along at most 64 directions, drawn once and for all."""
    if reader.width <= MOST_COLUMNS:
        return reader
    drawn = jax.random.normal(derive(root(0), Purpose.DATA), (reader.width, MOST_COLUMNS))
    directions = np.asarray(drawn, np.float64)
    return NumberReader(MOST_COLUMNS, reader.cost, lambda places: reader.read(places) @ directions)
