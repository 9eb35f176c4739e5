"""One CSV file as text, or one Parquet file as a frame with few types: text, truth, numbers and moments.

What the text of a CSV file means is decided later, column by column over all files, so a folder of files reads
like one table.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures.data.tables.files import TEXT
from plures.errors import BadData, BadFile
from plures.wording import counted

if TYPE_CHECKING:
    import polars as pl

MISSING = ("", "NA", "NaN", "nan", "null", "?")
SEPARATORS = ",;\t"
DECIMAL_COMMA = r"^([+-]?\d*),(\d+(?:[eE][+-]?\d+)?)$"
THOUSANDS = r"^\s*[+-]?\d{1,3}(,\d{3})+\s*$"
UNNAMED = "(unnamed {})"


class FilePart(NamedTuple):
    """A file's rows, and the number of each as a person counts them (from 1, without the header)."""

    frame: pl.DataFrame
    numbers: NDArray[np.int64]
    notes: tuple[str, ...] = ()


def read_table_file(path: Path, text: Collection[str]) -> FilePart:
    """A table file; the columns named in ``text`` are left as they are written."""
    if not path.stat().st_size:
        raise BadFile(f"{path.name} is empty (0 bytes)")
    part = _csv(path, text) if path.suffix.lower() in TEXT else _parquet(path)
    if not part.frame.height:
        raise BadData(f"{path.name} has no rows, only the names of columns")
    return part


def _parquet(path: Path) -> FilePart:
    import polars as pl

    try:
        frame = pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadFile(f"{path.name} is damaged or no Parquet file ({_one_line(error)})") from error
    return FilePart(plain(frame), np.arange(1, frame.height + 1))


def _csv(path: Path, text: Collection[str]) -> FilePart:
    import polars as pl

    separator, header = _header(path)
    names = _names(path.name, header)
    try:
        frame = pl.read_csv(path, separator=separator, infer_schema=False, glob=False)
        frame.columns = names
    except (pl.exceptions.PolarsError, OSError) as error:
        _refuse_long_row(path, separator, len(header))
        raise BadFile(f"{path.name} is damaged or no CSV file ({_one_line(error)})") from error
    short = _short_rows(path, separator, len(header)) if frame.height and frame.to_series(-1).null_count() else []
    decimals = [] if separator == "," else [name for name in names if name not in text]
    part = _without_blank_lines(path.name, _tidy(frame, decimals))
    return part._replace(notes=(*part.notes, *short, *_decimal_notes(path.name, frame, decimals)))


def _header(path: Path) -> tuple[str, list[str]]:
    """The separator and the names in the first line that is not blank."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            first = next((line for line in stream if line.strip()), "")
            outside = re.sub(r'"[^"]*"', "", first)
            separator = max(SEPARATORS, key=outside.count)
            header = next(csv.reader([first, *islice(stream, 99)], delimiter=separator), [])
    except UnicodeDecodeError as error:
        raise BadFile(f"{path.name} is not UTF-8 text; save it as CSV in UTF-8") from error
    except (csv.Error, OSError) as error:
        raise BadFile(f"{path.name} is damaged or no CSV file ({_one_line(error)})") from error
    return separator, header


def _names(file: str, header: list[str]) -> list[str]:
    """Names in one line, without space around them; columns without one are numbered."""
    names = [" ".join(name.split()) or UNNAMED.format(place) for place, name in enumerate(header, 1)]
    for name in names:
        if names.count(name) > 1:
            raise BadData(f"{file} has two columns called '{name}'; give each its own name")
    return names


def _refuse_long_row(path: Path, separator: str, width: int) -> None:
    """Name the first row with more values than there are columns, if that is what is wrong."""
    with suppress(csv.Error):
        for number, size in _row_sizes(path, separator):
            if size > width:
                raise BadFile(f"{path.name} has {size} values in row {number}, but {width} columns")


def _short_rows(path: Path, separator: str, width: int) -> list[str]:
    """A note on rows with fewer values than there are columns; what they lack counts as missing."""
    short: list[int] = []
    # A cell too long for this reader ends this: short rows still show as missing values.
    with suppress(csv.Error):
        short = [number for number, size in _row_sizes(path, separator) if 0 < size < width]
    rows = f"{counted(len(short), 'row')} with fewer than {width} values"
    return [f"{path.name}: {rows}, the first is row {short[0]}"] if short else []


def _row_sizes(path: Path, separator: str) -> Iterator[tuple[int, int]]:
    """The number of each row after the header, and how many values it has."""
    with path.open(encoding="utf-8-sig", newline="", errors="replace") as stream:
        rows = csv.reader(stream, delimiter=separator)
        next((row for row in rows if row), None)
        yield from ((number, len(row)) for number, row in enumerate(rows, 1))


def _decimal_notes(file: str, frame: pl.DataFrame, decimals: list[str]) -> list[str]:
    """A note on columns where a comma is taken for a decimal point though it could part thousands."""
    unsure = []
    for name in decimals:
        values = frame[name].drop_nulls()
        if len(values) and values.str.contains(THOUSANDS).all():
            unsure.append(name)
    return [f"{file}: a comma is read as a decimal point (1,234 is 1.234) in {', '.join(unsure)}"] if unsure else []


def _one_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with few types: very long whole numbers become floats, categories text, moments UTC.

    NaN in a number column is a missing value like any other.
    """
    import polars as pl
    import polars.selectors as cs

    zoned = cs.datetime(time_zone="*")
    return (
        frame.with_columns(
            cs.by_dtype(pl.Int128).cast(pl.Float64),
            cs.by_dtype(pl.Categorical, pl.Enum, pl.Null).cast(pl.String),
            zoned.dt.convert_time_zone("UTC").dt.replace_time_zone(None),
        )
        .with_columns(cs.datetime().cast(pl.Datetime("us")), cs.duration().cast(pl.Duration("us")))
        .with_columns(cs.float().fill_nan(None))
    )


def _tidy(frame: pl.DataFrame, decimals: list[str]) -> pl.DataFrame:
    """Text without the space around it; what is left empty is missing; in ``decimals`` "1,5" is 1.5."""
    import polars as pl

    # One column at a time: the text of a whole table is large enough to have it only once.
    for name in frame.columns:
        text = pl.col(name).str.strip_chars()
        text = text.str.replace(DECIMAL_COMMA, "${1}.${2}") if name in decimals else text
        frame = frame.with_columns(pl.when(text.is_in(MISSING)).then(None).otherwise(text).alias(name))
    return frame


def _without_blank_lines(file: str, frame: pl.DataFrame) -> FilePart:
    """The rows that hold something; lines without any value are counted in a note."""
    import polars as pl

    numbers = np.arange(1, frame.height + 1)
    filled = frame.select(~pl.all_horizontal(pl.all().is_null())).to_series().to_numpy()
    if filled.all():
        return FilePart(frame, numbers)
    note = f"{file}: {counted(int((~filled).sum()), 'row')} without any value left out"
    return FilePart(frame.filter(filled), numbers[filled], (note,))
