"""The target: which task it is, and its values as labels 0..C-1 or as real numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures.data.tables.columns import check_finite, code_levels
from plures.data.tables.messages import RowPlaces
from plures.data.tables.parse import as_numbers, as_truth, whole
from plures.errors import BadData
from plures.wording import counted, shown

if TYPE_CHECKING:
    import polars as pl

SURELY_FEW = 10
FEW = 20
SHARE = 20


class RawTarget(NamedTuple):
    """Target values as numbers, NaN where missing; for text they number the ``words``."""

    name: str
    values: NDArray[np.float64]
    words: tuple[str, ...] = ()


class Labels(NamedTuple):
    """The task, how it was chosen, and a label per row where ``known``."""

    y: NDArray[Any]
    known: NDArray[np.bool_]
    task: str
    why: str
    class_names: tuple[str, ...] = ()


def labels_of(column: pl.Series, task: str | None, places: RowPlaces) -> Labels:
    """The labels in the target column, or an error that names a value that cannot be one."""
    import polars as pl

    name = column.name
    if column.dtype == pl.String:
        column = _as_meant(column, task, places)
    if column.dtype in (pl.Boolean, pl.String):
        codes, words = code_levels(column.cast(pl.String))
        return infer_labels(RawTarget(name, np.where(codes < 0, np.nan, codes), tuple(words)), task, places)
    if not column.dtype.is_numeric():
        raise BadData(f"the target '{name}' holds {column.dtype}; give numbers or the names of classes")
    check_finite(column, "the target", places)
    return infer_labels(RawTarget(name, column.cast(pl.Float64).fill_null(np.nan).to_numpy()), task, places)


def _as_meant(column: pl.Series, task: str | None, places: RowPlaces) -> pl.Series:
    """Truth or numbers if all values are such; class names; or a number target with a mistake in it."""
    truth = as_truth(column)
    if truth is not None:
        return truth
    numbers = as_numbers(column)
    if task == "regression" or (task is None and 2 * numbers.count() >= column.count()):
        wanted = ", which is no number; mend it, or choose the task classification"
        return whole(column, numbers, places, f"the target '{column.name}' holds", wanted)
    return numbers if numbers.count() == column.count() else column


def infer_labels(raw: RawTarget, task: str | None, places: RowPlaces) -> Labels:
    """Labels for the task that is given or that the values show."""
    known = ~np.isnan(raw.values)
    values = raw.values[known]
    if not len(values):
        raise BadData(f"no row has a target (column '{raw.name}')")
    whole = bool((values == np.floor(values)).all())
    chosen, why = (task, "given") if task else _infer_task(raw, values, whole)
    if chosen == "regression":
        if raw.words:
            text = f"is text such as '{shown(raw.words[0])}'"
            raise BadData(f"the target '{raw.name}' {text}; regression needs numbers")
        return Labels(raw.values.astype(np.float32), known, chosen, why)
    if not whole:
        row = int(np.flatnonzero(known & (raw.values != np.floor(raw.values)))[0])
        wanted = "classes are whole numbers or text, else choose the task regression"
        raise BadData(f"the target '{raw.name}' holds {raw.values[row]} in {places.of(row)}; {wanted}")
    return _classes(raw, known, why)


def _infer_task(raw: RawTarget, values: NDArray[np.float64], whole: bool) -> tuple[str, str]:
    """(task, why): text and few whole numbers are classes, other numbers are real targets."""
    if raw.words:
        return "classification", "the target is text"
    if not whole:
        return "regression", "the target holds numbers that are not whole"
    different = len(np.unique(values))
    few = different <= SURELY_FEW or (different <= FEW and different * SHARE < len(values))
    text = f"the target holds {counted(different, 'different whole number')} in {counted(len(values), 'row')}"
    return ("classification" if few else "regression"), text


def _classes(raw: RawTarget, known: NDArray[np.bool_], why: str) -> Labels:
    found, codes = np.unique(raw.values[known], return_inverse=True)
    names = tuple(raw.words[int(number)] if raw.words else f"{number:.0f}" for number in found)
    if len(names) < 2:
        raise BadData(f"the target '{raw.name}' has only the class '{shown(names[0])}'; there must be two or more")
    y = np.full(len(known), -1, np.int32)
    y[known] = codes
    return Labels(y, known, "classification", why, names)
