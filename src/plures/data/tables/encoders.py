"""Columns as inputs: numbers standardized, categories one column per level, missing values marked.

Everything an encoder knows (scale, levels, whether values can be missing) comes from the training rows of seen
clients. A date is the number of days it stands for, standardized like any number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plures.data.scale import ColumnScale, federated_scale
from plures.data.tables.columns import TypedColumns, code_levels
from plures.data.tables.layout import TableLayout
from plures.data.tails import tamed_note
from plures.wording import counted, shown

if TYPE_CHECKING:
    import polars as pl

MOST_LEVELS = 30
SEEN = "training rows of seen clients"
MICROSECONDS = 86_400e6


@dataclass(frozen=True, eq=False)
class Encoder:
    """How one column becomes the inputs ``features``; without any the column is left out.

    Numbers have a ``scale``; categories a ``place`` per level code, the last for missing values, -1 for none.
    """

    name: str
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    scale: ColumnScale | None = None
    place: NDArray[np.int64] | None = None

    def fill(self, column: pl.Series, rows: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Write the inputs of these rows into ``out``, which is (rows, features) and zero."""
        if self.place is not None:
            column_of = self.place[code_levels(column)[0][rows]]
            filled = np.flatnonzero(column_of >= 0)
            out[filled, column_of[filled]] = 1.0
        elif self.scale is not None:
            values = numbers_of(column)[rows]
            out[:, 0] = self.scale.apply(values[:, None])[:, 0]
            if len(self.features) > 1:
                out[:, 1] = np.isnan(values)


def fit(found: TypedColumns, layout: TableLayout, *, knee: float = np.inf) -> list[Encoder]:
    """An encoder for every input column, in the order of the table; numbers beyond the ``knee`` are tamed."""
    return [
        _fit_number(found.columns[name], layout, knee)
        if kind == "number"
        else _fit_category(found.columns[name], layout)
        for name, kind in found.inputs.items()
    ]


def encode(found: TypedColumns, encoders: list[Encoder], layout: TableLayout) -> NDArray[np.float32]:
    """The inputs of all rows in the order of the layout, made column by column."""
    x = np.zeros((len(layout.rows), sum(len(encoder.features) for encoder in encoders)), np.float32)
    first = 0
    for encoder in encoders:
        last = first + len(encoder.features)
        encoder.fill(found.columns[encoder.name], layout.rows, x[:, first:last])
        first = last
    return x


def numbers_of(column: pl.Series) -> NDArray[np.float64]:
    """A number, truth or date column as numbers (days for dates), NaN where missing."""
    import polars as pl

    if column.dtype in (pl.Datetime, pl.Duration):
        column = column.to_physical() / MICROSECONDS
    elif column.dtype == pl.Time:
        column = column.to_physical() / (1000 * MICROSECONDS)
    return np.asarray(column.to_physical().cast(pl.Float64).fill_null(np.nan).to_numpy())


def _fit_number(column: pl.Series, layout: TableLayout, knee: float) -> Encoder:
    """Standardized, or 0 and 1 for truth; a second input marks missing values if training rows have any."""
    import polars as pl

    name, use = column.name, layout.use
    values = numbers_of(column)[layout.rows]
    missing = np.isnan(values)
    if missing[use].all():
        return _no_values(name)
    as_is = ColumnScale(np.zeros(1), np.ones(1))
    learned = federated_scale(values[:, None], layout.owner, use)
    scale = as_is if column.dtype == pl.Boolean else learned._replace(knee=knee)
    marked = bool(missing[use].any())
    notes = _missing_note(name, missing, use, "set to 0 (the mean)" if scale is not as_is else "set to 0")
    if np.nanmin(values[use]) == np.nanmax(values[use]):
        notes += (f"column '{name}' has the same value in all {SEEN}",)
    notes += tamed_note(f"column '{name}'", scale.standardize(values[use][:, None]), scale.knee)
    return Encoder(name, (name, f"{name} (missing)")[: 1 + marked], notes, scale=scale)


def _fit_category(column: pl.Series, layout: TableLayout) -> Encoder:
    """An input per level, at most 30; rarer levels share one, missing values have their own."""
    name, use = column.name, layout.use
    codes, words = code_levels(column)
    codes = codes[layout.rows]
    count = np.bincount(codes[use & (codes >= 0)], minlength=len(words))
    if not count.any():
        return _no_values(name)
    place, kept, num_rare = _input_of_level(count, bool((codes[use] < 0).any()))
    levels = tuple(words[code] for code in kept)
    features = [f"{name}={level}" for level in levels]
    features += [f"{name} (other)"] * bool(num_rare) + [f"{name} (missing)"] * bool(place[-1] >= 0)
    unknown = codes[(codes >= 0) & (place[codes] < 0)]
    notes = (
        *_missing_note(name, codes < 0, use, "taken for a level of its own" if place[-1] >= 0 else "set to zeros"),
        *_rare_note(name, len(kept) + num_rare, num_rare),
        *_unknown_note(name, unknown, words),
    )
    return Encoder(name, tuple(features), notes, levels, place=place)


def _input_of_level(count: NDArray[np.int64], with_missing: bool) -> tuple[NDArray[np.int64], list[int], int]:
    """(the input of each level, the levels with one of their own, how many share one); -1 is no input.

    A missing value has the code -1, so its input stands last.
    """
    present = np.flatnonzero(count)
    common = present[np.argsort(-count[present], kind="stable")]
    kept, rare = np.sort(common[:MOST_LEVELS]), common[MOST_LEVELS:]
    place = np.full(len(count) + 1, -1)
    place[kept] = np.arange(len(kept))
    place[rare] = len(kept)
    if with_missing:
        place[-1] = len(kept) + bool(len(rare))
    return place, kept.tolist(), len(rare)


def _no_values(name: str) -> Encoder:
    return Encoder(name, notes=(f"column '{name}' has no value in {SEEN} and is left out",))


def _missing_note(name: str, missing: NDArray[np.bool_], use: NDArray[np.bool_], fate: str) -> tuple[str, ...]:
    if not missing.any():
        return ()
    seen = int((missing & use).sum())
    total = counted(int(missing.sum()), "missing value")
    return (f"column '{name}': {total} ({seen:,} in {SEEN}) {fate}",)


def _rare_note(name: str, different: int, rare: int) -> tuple[str, ...]:
    if not rare:
        return ()
    return (f"column '{name}' has {different:,} levels in {SEEN}; the {rare:,} rarest share one input",)


def _unknown_note(name: str, codes: NDArray[Any], words: list[str]) -> tuple[str, ...]:
    if not len(codes):
        return ()
    example = words[int(codes[0])]
    return (
        f"column '{name}': {counted(len(codes), 'row')} with a level unknown in {SEEN}, such as '{shown(example)}'; zeros",
    )
