"""The files of a table as one frame whose columns have one type each."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures.data.tables.csv_parquet import read_table_file
from plures.data.tables.files import Files
from plures.data.tables.messages import RowPlaces, attempt
from plures.errors import BadData, UserError
from plures.wording import listed

if TYPE_CHECKING:
    import polars as pl


INDEX, FEW_ROWS = "\0row", 20


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
    import polars as pl

    read = [attempt(errors, read_table_file, path, text) for path in files.paths]
    parts = [part for part in read if part is not None]
    if len(parts) < len(read):
        return None
    names, before = tuple(path.name for path in files.paths), len(errors)
    frames = dict(zip(names, (part.frame for part in parts), strict=True))
    for name in names:
        attempt(errors, _check_columns, names[0], name, frames)
    if len(errors) > before:
        return None
    kinds = {name: attempt(errors, _shared_type, name, frames) for name in parts[0].frame.columns}
    if len(errors) > before:
        return None
    columns = [pl.col(name).cast(kind) for name, kind in kinds.items() if kind is not None]
    frame = pl.concat([part.select(columns) for part in frames.values()])
    numbers, notes = [part.numbers for part in parts], tuple(note for part in parts for note in part.notes)
    if not files.per_client:
        return _count_once(Table(frame, RowPlaces(numbers), None, files.written, notes))
    owner = np.repeat(np.arange(len(parts)), [len(own) for own in numbers])
    return Table(frame, RowPlaces(numbers, names), owner, files.written, notes)


def _count_once(table: Table) -> Table:
    """The table with one copy of each row, if all of its rows are there equally often; else as it is.

    Copies would be dealt to training and to test rows, and models judged by rows that they have seen. Rows that are alike by
    chance, or by design, are not meant: then some are there once, or no column tells most of them apart.
    """
    import polars as pl

    copies = table.frame.with_row_index(INDEX).group_by(table.frame.columns, maintain_order=True).agg(INDEX)
    times = math.gcd(*copies[INDEX].list.len().to_list())
    most = max(table.frame[name].n_unique() for name in table.frame.columns) if times > 1 else 0
    if times < 2 or copies.height < FEW_ROWS or 2 * most < copies.height:
        return table
    rows = pl.col(INDEX).list
    kept = copies.select(rows.head(rows.len() // times)).to_series().explode().sort().to_numpy()
    places = RowPlaces([np.concatenate(table.places.numbers)[kept]])
    note = f"every row is there {times} times; it counts once"
    return table._replace(frame=table.frame[kept], places=places, notes=(*table.notes, note))


def _check_columns(first: str, file: str, frames: dict[str, pl.DataFrame]) -> None:
    """Refuse files whose columns differ; their order may."""
    one, other = frames[first].columns, frames[file].columns
    lacks, extra = [name for name in one if name not in other], [name for name in other if name not in one]
    only = [f"only in {who}: {listed(names)}" for who, names in ((first, lacks), (file, extra)) if names]
    if only:
        raise BadData(f"{first} and {file} have different columns ({'; '.join(only)}); give all files the same")


def _shared_type(name: str, frames: dict[str, pl.DataFrame]) -> pl.DataType:
    """The type that holds all values of a column; one without any value fits every type.

    Refused is a column that files type differently, as numbers here and text there.
    """
    import polars as pl

    files = {frame[name].dtype: file for file, frame in frames.items() if frame[name].count()}
    kinds = set(files)
    if len(kinds) <= 1:
        return next(iter(kinds), pl.String())
    if all(kind.is_integer() for kind in kinds) and pl.UInt64() not in kinds:
        return pl.Int64()
    if all(kind.is_numeric() for kind in kinds):
        return pl.Float64()
    if kinds == {pl.Date(), pl.Datetime("us")}:
        return pl.Datetime("us")
    (one, first), (other, second) = list(files.items())[:2]
    raise BadData(f"column '{name}' is {one} in {first} but {other} in {second}; give it one type")
