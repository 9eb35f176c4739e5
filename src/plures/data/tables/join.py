"""The files of a table as one frame whose columns have one type each."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures.data.tables.csv_parquet import FilePart, read_table_file
from plures.data.tables.files import Files
from plures.data.tables.messages import RowPlaces, attempt
from plures.errors import BadData, UserError
from plures.wording import listed

if TYPE_CHECKING:
    import polars as pl


class Table(NamedTuple):
    """All rows; with a file per client ``owner`` is the file's number, else it is still to be read.

    ``written`` tells that all values are text because files of this kind know no types.
    """

    frame: pl.DataFrame
    places: RowPlaces
    owner: NDArray[np.int64] | None
    written: bool
    notes: tuple[str, ...]


def join_files(files: Files, text: Collection[str], errors: list[UserError]) -> Table | None:
    """The table of one file or many; nothing, and why not among the errors, if it cannot be read."""
    read = [attempt(errors, read_table_file, path, text) for path in files.paths]
    parts = [part for part in read if part is not None]
    if len(parts) < len(read):
        return None
    before, first = len(errors), files.paths[0].name
    for path, part in zip(files.paths, parts, strict=True):
        attempt(errors, _check_columns, first, parts[0].frame, path.name, part.frame)
    if len(errors) > before:
        return None
    for name in parts[0].frame.columns:
        attempt(errors, _check_types, name, files.paths, parts)
    return None if len(errors) > before else _stack(files, _cast(parts))


def _check_columns(first: str, one: pl.DataFrame, file: str, other: pl.DataFrame) -> None:
    """Refuse files whose columns differ; their order may."""
    lacks = [name for name in one.columns if name not in other.columns]
    extra = [name for name in other.columns if name not in one.columns]
    if lacks or extra:
        parts = [f"only in {first}: {listed(lacks)}"] * bool(lacks) + [f"only in {file}: {listed(extra)}"] * bool(
            extra
        )
        raise BadData(f"{first} and {file} have different columns ({'; '.join(parts)}); give all files the same")


def _cast(parts: list[FilePart]) -> list[FilePart]:
    """The parts with each column in the type that all files share, in one order."""
    import polars as pl

    names = parts[0].frame.columns
    kinds = {name: shared_type([part.frame[name] for part in parts]) for name in names}
    columns = [pl.col(name).cast(kind) for name, kind in kinds.items() if kind is not None]
    return [part._replace(frame=part.frame.select(columns)) for part in parts]


def shared_type(columns: list[pl.Series]) -> pl.DataType | None:
    """The type that holds all values; a column without any value fits every type. None if there is none."""
    import polars as pl

    kinds = {column.dtype for column in columns if column.count()}
    if not kinds:
        return pl.String()
    if len(kinds) == 1:
        return kinds.pop()
    if all(kind.is_integer() for kind in kinds) and pl.UInt64() not in kinds:
        return pl.Int64()
    if all(kind.is_numeric() for kind in kinds):
        return pl.Float64()
    return pl.Datetime("us") if kinds == {pl.Date(), pl.Datetime("us")} else None


def _check_types(name: str, paths: tuple[Path, ...], parts: list[FilePart]) -> None:
    """Refuse a column that files type differently, as numbers here and text there."""
    columns = [part.frame[name] for part in parts]
    if shared_type(columns) is None:
        kinds = {column.dtype: path.name for column, path in zip(columns, paths, strict=True) if column.count()}
        (one, first), (other, second) = list(kinds.items())[:2]
        raise BadData(f"column '{name}' is {one} in {first} but {other} in {second}; give it one type")


def _stack(files: Files, parts: list[FilePart]) -> Table:
    import polars as pl

    notes = tuple(note for part in parts for note in part.notes)
    numbers = np.concatenate([part.numbers for part in parts])
    if not files.per_client:
        return Table(parts[0].frame, RowPlaces(numbers), None, files.written, notes)
    sizes = [part.frame.height for part in parts]
    first = tuple(int(row) for row in np.cumsum(sizes) - sizes)
    places = RowPlaces(numbers, tuple(path.name for path in files.paths), first)
    owner = np.repeat(np.arange(len(parts)), sizes)
    return Table(pl.concat([part.frame for part in parts]), places, owner, files.written, notes)
