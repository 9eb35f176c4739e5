"""Heart disease in four hospitals, which differ in their patients and in what they measured.

Columns of a row, in this order: the five numbers, standardized (0 where missing); a mark "is missing" for each of
those that is ever missing; then one column per level of the eight categories, a missing value being a level of its
own. Marks and levels are those of the training rows of seen hospitals. A blood pressure or a cholesterol of 0 was
not measured (all of Switzerland has cholesterol 0), so it counts as missing.
"""

from __future__ import annotations

import csv
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Federation, from_arrays
from plures.data.files import DataFile, locate
from plures.data.holdout import HoldOut, choose_held_out, mark_held_out
from plures.data.scale import federated_scale
from plures.data.splits import SHARES, stratified
from plures.keys import Purpose, derive, root

SOURCE = DataFile(
    file="heart_disease_4_hospitals.csv",
    sha256="5934139340610f05f36ab70b3b87d59c7bf3134bea5142aa57c6683e6d26f375",
    what="920 patients of four hospitals",
    origin="UCI, Heart Disease (the processed files of the four hospitals)",
)
NUMBERS = ("age", "trestbps", "chol", "thalach", "oldpeak")
NEVER_ZERO = ("trestbps", "chol")
CATEGORIES = ("sex", "cp", "fbs", "restecg", "exang", "slope", "ca", "thal")


@registry.dataset(title="Heart disease in four hospitals", paper="Detrano et al., 1989 (UCI Heart Disease)")
def heart(
    *, hold_out: HoldOut = 0, hold_out_seed: int = 0, data_dir: str | None = None, seed: int = 0
) -> Federation:
    """920 patients of four hospitals; whether a patient has heart disease is to be predicted.

    Missing values are marked, never filled in from test rows. Scale, marks and levels come from seen hospitals alone.

    Args:
        hold_out: Hospitals that are held out as unseen: a number, a share, names joined by "+", "auto" (a fifth of
            ten or more) or 0 for none.
        hold_out_seed: Seed that draws who is held out.
        data_dir: Folder in which the file lies; None takes that of the environment variable PLURES_DATA.
        seed: Seed of the split into train, valid and test rows.
    """
    with locate(SOURCE, data_dir).open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    hospital = np.array([row["hospital"] for row in rows])
    names, owner = np.unique(hospital, return_inverse=True)
    y = np.array([int(row["target"]) > 0 for row in rows]).astype(np.int32)
    held_out = choose_held_out(names.tolist(), hold_out, hold_out_seed)
    codes = stratified(derive(root(seed), Purpose.SPLIT), owner, y, SHARES)
    known = (codes == 0) & ~held_out[owner]
    measured, zeros = without_zeros(table(rows, NUMBERS))
    numbers, categories = number_columns(measured, owner, known), category_columns(table(rows, CATEGORIES), known)
    x = np.concatenate([numbers.x, categories.x], axis=1).astype(np.float32)
    federation = from_arrays(x, y, hospital, num_classes=2, split=codes, title="heart")
    notes = [missing_note(rows), zeros, *numbers.notes, *categories.notes]
    return mark_held_out(federation.noted(*notes), held_out)


class Columns(NamedTuple):
    """Columns of inputs and what a report must say about them."""

    x: NDArray[Any]
    notes: list[str]


def table(rows: list[dict[str, str]], columns: tuple[str, ...]) -> NDArray[Any]:
    """The values of some columns, (rows, columns); NaN where nothing is given."""
    return np.array([[float(row[column] or "nan") for column in columns] for row in rows])


def without_zeros(numbers: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """The numbers with impossible zeros made missing, and a note of how many those were."""
    impossible = (numbers == 0) & np.isin(NUMBERS, NEVER_ZERO)
    counts = ", ".join(f"{name} {impossible[:, NUMBERS.index(name)].sum()}" for name in NEVER_ZERO)
    return np.where(impossible, np.nan, numbers), f"values of 0 that count as missing: {counts}"


def missing_note(rows: list[dict[str, str]]) -> str:
    """How many values of each column are empty in the file."""
    empty = {column: sum(not row[column] for row in rows) for column in (*NUMBERS, *CATEGORIES)}
    said = ", ".join(f"{column} {number}" for column, number in empty.items() if number)
    return f"missing values of {len(rows)} patients: {said}"


def number_columns(numbers: NDArray[Any], owner: NDArray[Any], known: NDArray[np.bool_]) -> Columns:
    """Standardized numbers, and marks of those missing in ``known`` rows.

    A column that no known row has is 0 for all: there is no scale to put its other values on.
    """
    missing = np.isnan(numbers)
    marked, unknown = missing[known].any(0), missing[known].all(0)
    scale = federated_scale(numbers, owner, known)
    x = np.where(unknown, 0.0, scale.apply(numbers))
    names = np.array(NUMBERS)
    unmarked = zip(names[~marked], missing[:, ~marked].sum(0), strict=True)
    unused = zip(names[unknown], (~missing)[:, unknown].sum(0), strict=True)
    notes = [f"{name}: {number} missing values have no mark of their own" for name, number in unmarked if number]
    notes += [f"{name}: no seen client measured it; {number} values are not used" for name, number in unused]
    return Columns(np.concatenate([x, missing[:, marked]], axis=1), notes)


def category_columns(categories: NDArray[Any], known: NDArray[np.bool_]) -> Columns:
    """A column of zeros and ones per level met in ``known`` rows; NaN is a level like others."""
    parts, notes = [], []
    for name, values in zip(CATEGORIES, categories.T, strict=True):
        levels = np.unique(values[known])
        same = (values[:, None] == levels) | (np.isnan(values)[:, None] & np.isnan(levels))
        parts.append(same)
        new = int((~same.any(1)).sum())
        if new:
            unknown = "a level that no training row of a seen client has; all its columns are 0"
            notes.append(f"{name}: {new} rows have {unknown}")
    return Columns(np.concatenate(parts, axis=1), notes)
