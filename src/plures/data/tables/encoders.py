"""Columns as inputs: numbers standardized, categories one column per level, missing values marked.

Everything an encoder knows (scale, levels, whether values can be missing) comes from the training rows of seen
clients. A date is the number of days it stands for, standardized like any number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures.data.scale import ColumnScale, federated_scale
from plures.data.tables.columns import TypedColumns, code_levels
from plures.data.tables.examination import Inputs
from plures.data.tables.layout import TableLayout
from plures.data.tails import tamed_note
from plures.wording import counted, listed, shown

if TYPE_CHECKING:
    import polars as pl

MOST_LEVELS = 30
SEEN = "training rows of seen clients"
MICROSECONDS = 86_400e6


class Encoder(NamedTuple):
    """What one column becomes: the inputs ``features``, which ``fill`` writes; without any the column is left out."""

    features: list[str]
    notes: list[str]
    fill: Callable[[NDArray[np.float32]], None]
    levels: tuple[str, ...] = ()
    tail: NDArray[np.float64] = np.zeros(0)  # standardized training values that are tamed


def encode(found: TypedColumns, layout: TableLayout, *, knee: float = np.inf) -> Inputs:
    """The inputs of all rows in the order of the layout, an encoder for every input column in that of the table.

    Numbers beyond the ``knee`` are tamed.
    """
    fits: dict[str, Callable[..., Encoder]] = {"number": partial(_fit_number, knee=knee), "category": _fit_category}
    encoders = {name: fits[kind](found.columns[name], layout) for name, kind in found.inputs.items()}
    names = tuple(name for encoder in encoders.values() for name in encoder.features)

    def make() -> NDArray[np.float32]:
        x = np.zeros((len(layout.rows), len(names)), np.float32)
        first = 0
        for encoder in encoders.values():
            last = first + len(encoder.features)
            encoder.fill(x[:, first:last])
            first = last
        return x

    notes = tuple(note for encoder in encoders.values() for note in encoder.notes)
    tails = {name: one.tail for name, one in encoders.items() if len(one.tail)}
    if tails:
        what = f"{'column' if len(tails) == 1 else 'columns'} {listed([repr(name) for name in tails])}"
        notes += tamed_note(what, np.concatenate(list(tails.values())), knee)
    return Inputs(make=make, names=names, levels={name: one.levels for name, one in encoders.items()}, notes=notes)


def numbers_of(column: pl.Series) -> NDArray[np.float64]:
    """A number, truth or date column as numbers (days for dates), NaN where missing."""
    import polars as pl

    if column.dtype in (pl.Datetime, pl.Duration):
        column = column.to_physical() / MICROSECONDS
    elif column.dtype == pl.Time:
        column = column.to_physical() / (1000 * MICROSECONDS)
    return np.asarray(column.to_physical().cast(pl.Float64).fill_null(np.nan).to_numpy())


def _fit_number(column: pl.Series, layout: TableLayout, *, knee: float) -> Encoder:
    """Standardized, or 0 and 1 for truth; a second input marks missing values if training rows have any."""
    import polars as pl

    name, use = column.name, layout.use
    values = numbers_of(column)[layout.rows]
    missing = np.isnan(values)
    if missing[use].all():
        return _no_values(name)
    as_is = ColumnScale(np.zeros(1), np.ones(1))
    learned = federated_scale(values[:, None], layout.owner, use)._replace(knee=knee)
    scale = as_is if column.dtype == pl.Boolean else learned
    marked = bool(missing[use].any())
    notes = _missing_note(name, missing, use, "set to 0 (the mean)" if scale is not as_is else "set to 0")
    if np.nanmin(values[use]) == np.nanmax(values[use]):
        notes.append(f"column '{name}' has the same value in all {SEEN}")
    far = np.abs(scale.standardize(values[use][:, None])[:, 0])

    def fill(out: NDArray[np.float32]) -> None:
        values = numbers_of(column)[layout.rows]
        out[:, 0] = scale.apply(values[:, None])[:, 0]
        if marked:
            out[:, 1] = np.isnan(values)

    return Encoder([name, f"{name} (missing)"][: 1 + marked], notes, fill, tail=far[far > scale.knee])


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
    fate = "taken for a level of its own" if place[-1] >= 0 else "set to zeros"
    notes = _missing_note(name, codes < 0, use, fate)
    if num_rare:
        different = f"{len(kept) + num_rare:,} levels in {SEEN}"
        notes.append(f"column '{name}' has {different}; the {num_rare:,} rarest share one input")
    unknown = codes[(codes >= 0) & (place[codes] < 0)]
    if len(unknown):
        rows, example = counted(len(unknown), "row"), shown(words[int(unknown[0])])
        notes.append(f"column '{name}': {rows} with a level unknown in {SEEN}, such as '{example}'; zeros")

    def fill(out: NDArray[np.float32]) -> None:
        column_of = place[code_levels(column)[0][layout.rows]]
        filled = np.flatnonzero(column_of >= 0)
        out[filled, column_of[filled]] = 1.0

    return Encoder(features, notes, fill, levels)


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
    return Encoder([], [f"column '{name}' has no value in {SEEN} and is left out"], lambda out: None)


def _missing_note(name: str, missing: NDArray[np.bool_], use: NDArray[np.bool_], fate: str) -> list[str]:
    seen, total = int((missing & use).sum()), counted(int(missing.sum()), "missing value")
    return [f"column '{name}': {total} ({seen:,} in {SEEN}) {fate}"] if missing.any() else []
