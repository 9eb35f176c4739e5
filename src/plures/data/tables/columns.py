"""What each column is: its role or, for an input, number or category; with checks of every value."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures.data.tables.join import Table
from plures.data.tables.messages import RowPlaces, attempt, in_order
from plures.data.tables.options import TableOptions
from plures.data.tables.parse import as_meant, as_ordered, whole
from plures.errors import BadData, UnknownChoice, UserError
from plures.wording import listed, shown

if TYPE_CHECKING:
    import polars as pl

LARGEST = 1e38
SPLIT_WORDS = {"train": 0, "valid": 1, "validation": 1, "val": 1, "test": 2}
UNNAMED_START = ("(unnamed ", "__index_level_")


class TypedColumns(NamedTuple):
    """The columns with their kinds, inputs that are numbers written as text turned into numbers."""

    columns: dict[str, pl.Series]
    kinds: dict[str, str]
    notes: list[str]

    def named(self, kind: str) -> pl.Series | None:
        """The column of a role, if there is one."""
        return next((self.columns[name] for name, found in self.kinds.items() if found == kind), None)

    @property
    def inputs(self) -> dict[str, str]:
        """The kinds of the input columns by name."""
        return {name: kind for name, kind in self.kinds.items() if kind in ("number", "category")}


def infer_types(table: Table, options: TableOptions, errors: list[UserError]) -> TypedColumns:
    """Every column's kind; what is wrong with names or values joins the errors."""
    import polars as pl

    for role in ("client", "target"):
        attempt(errors, _check_given, role, options, table)
    for name, _ in options.uses:
        if name not in table.frame.columns:
            errors.append(UnknownChoice("column", name, table.frame.columns))
    roles = {name: "ignored" if use == "ignore" else use for name, use in options.uses if use != "categories"}
    found = TypedColumns({}, {}, [])
    for column in table.frame.iter_columns():
        name = column.name
        kind = "ignored" if name.startswith(UNNAMED_START) else roles.get(name, "input")
        mended = attempt(errors, _mend, column, kind, name in options.categories, table.places)
        found.columns[name] = column if mended is None else mended
        kind_of_input = "category" if found.columns[name].dtype == pl.String else "number"
        found.kinds[name] = kind_of_input if kind == "input" else kind
        found.notes.extend(_notes(column, found.columns[name], kind, table))
    if not found.inputs:
        wanted = "besides client, target and ignored ones there must be another"
        errors.append(BadData(f"no input column is left; {wanted}"))
    return found


def _check_given(role: str, options: TableOptions, table: Table) -> None:
    """Refuse a table without a client or target column; a file per client needs no client column."""
    given = getattr(options, role)
    if role == "client" and table.owner is not None:
        if given is not None:
            raise BadData(f"client='{given}' is for one table; in a folder each file is a client, so leave it out")
    elif given is None:
        columns = listed(table.frame.columns, 20)
        raise BadData(f"the {role} column is not given; name it with --{role}. Columns: {columns}")


def _mend(column: pl.Series, kind: str, declared: bool, places: RowPlaces) -> pl.Series:
    """The column in the type its kind needs, or an error that names a row that does not fit."""
    import polars as pl

    if kind in ("ignored", "target"):
        return column
    if not is_plain(column):
        raise BadData(f"column '{column.name}' holds {column.dtype}; give numbers, text or dates, or ignore it")
    if kind in ("client", "split", "time", "recording"):
        told = f"no {kind} is given (column '{column.name}')"
        places.refuse(column.is_null().to_numpy(), lambda row: told, "every row needs one")
    if kind == "time":
        return _moments(column, places)
    if kind in ("client", "split", "recording") or declared:
        as_text = column.cast(pl.String)
        if kind == "split":
            split_codes(as_text, places)
        return as_text
    meant = as_meant(column, places) if column.dtype == pl.String else column
    check_finite(meant, "column", places)
    return meant


def is_plain(column: pl.Series) -> bool:
    """Whether the values are numbers, text, truth or moments, not lists or bytes."""
    import polars as pl

    return not (column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Object))


def _moments(column: pl.Series, places: RowPlaces) -> pl.Series:
    """The time column as numbers or dates, which have an order."""
    import polars as pl

    if column.dtype == pl.String:
        parsed = as_ordered(column)
        read = column.clear(len(column)) if parsed is None else parsed
        told, wanted = f"the time column '{column.name}' holds", "; give numbers, or dates such as 2024-01-31"
        column = whole(column, read, places, told, wanted)
    if not (column.dtype.is_numeric() or column.dtype.is_temporal()):
        raise BadData(f"the time column '{column.name}' holds {column.dtype}; give numbers or dates")
    check_finite(column, "column", places)
    return column


def check_finite(column: pl.Series, what: str, places: RowPlaces) -> None:
    """Refuse infinity, and numbers so large that their squares come near it."""
    if not column.dtype.is_float():
        return
    wrong, wanted = column.abs() >= LARGEST, "give a finite number, or leave it empty"
    places.refuse(
        wrong.fill_null(False).to_numpy(), lambda row: f"{what} '{column.name}' holds {column[row]}", wanted
    )


def _notes(column: pl.Series, mended: pl.Series, kind: str, table: Table) -> list[str]:
    """What was decided about a column without being asked."""
    import polars as pl

    name = column.name
    if name.startswith(UNNAMED_START):
        return [f"column '{name}' has no name of its own and is left out"]
    if kind not in ("input", "time") or column.dtype != pl.String or mended.dtype == pl.String:
        return []
    notes = [] if table.written else [f"column '{name}' holds numbers or dates as text and is taken for these"]
    # The smallest text: which row comes first differs between a table and its files.
    first = (column == column.min()).arg_max() or 0
    if mended.dtype == pl.Datetime and "/" in column[first]:
        notes.append(f"column '{name}': '{shown(column[first])}' is read as {mended[first]:%Y-%m-%d}")
    return notes


def split_codes(column: pl.Series, places: RowPlaces) -> NDArray[np.int64]:
    """Split codes from words, in any case."""
    words = column.str.strip_chars().str.to_lowercase()
    codes = words.replace_strict(SPLIT_WORDS, default=-1).to_numpy().astype(np.int64)
    told = f"the split column '{column.name}' holds"
    wanted = "known are train, valid (or validation, val) and test"
    places.refuse(codes < 0, lambda row: f"{told} '{shown(column[row])}'", wanted)
    return codes


def code_levels(column: pl.Series) -> tuple[NDArray[np.int64], list[str]]:
    """A text column as numbers from 0 on (-1 where missing), and the text of each, in order."""
    import polars as pl

    names = in_order(column.drop_nulls().unique().to_list())
    codes = column.cast(pl.Enum(names)).to_physical().cast(pl.Int64).fill_null(-1)
    return np.asarray(codes.to_numpy()), names
