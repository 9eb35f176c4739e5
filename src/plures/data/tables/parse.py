"""What a column of text means: numbers, truth, dates, times of day, or words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plures.data.tables.messages import RowPlaces
from plures.errors import BadData
from plures.wording import shown

if TYPE_CHECKING:
    import polars as pl

SAMPLE = 100


def as_meant(column: pl.Series, places: RowPlaces) -> pl.Series:
    """The text as numbers, truth or dates if all values are such, as words if few are.

    If at least half of the values are numbers (or dates) but not all, the rest are taken for mistakes.
    """
    truth = as_truth(column)
    parsed = as_ordered(column) if truth is None else truth
    if parsed is None:
        _refuse_thousands(column, places)
        return column
    told = f"column '{column.name}' holds {'numbers' if parsed.dtype.is_numeric() else 'dates'}, but"
    return whole(column, parsed, places, told, "; mend it, or name the column as a category (--category)")


def whole(column: pl.Series, parsed: pl.Series, places: RowPlaces, told: str, wanted: str) -> pl.Series:
    """What was read from text; the first value that could not be read is refused, between ``told`` and ``wanted``."""
    wrong = (parsed.is_null() & column.is_not_null()).arg_true()
    if len(wrong):
        raise BadData(f"{told} '{shown(column[wrong[0]])}' in {places.of(wrong[0])}{wanted}")
    return parsed


def _refuse_thousands(column: pl.Series, places: RowPlaces) -> None:
    """Refuse numbers such as 1,234 that would be taken for words."""
    parts = column.drop_nulls().str.contains(r"^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$")
    if 2 * int(parts.sum()) >= max(len(parts), 1):
        row = column.str.contains(",").arg_true()[0]
        told = (
            f"column '{column.name}' holds numbers with commas such as '{shown(column[row])}' in {places.of(row)}"
        )
        raise BadData(f"{told}; write them without, or name the column as a category (--category)")


def as_ordered(column: pl.Series) -> pl.Series | None:
    """The text as numbers, dates or times, if at least half of the values are such."""
    if not column.count():
        return None
    numbers = as_numbers(column)
    if 2 * numbers.count() >= column.count():
        return numbers
    moments = as_moments(column)
    return moments if moments is not None and 2 * moments.count() >= column.count() else None


def as_numbers(column: pl.Series) -> pl.Series:
    """The numbers that text stands for; missing where it stands for none."""
    import polars as pl

    return column.cast(pl.Float64, strict=False).fill_nan(None)


def as_truth(column: pl.Series) -> pl.Series | None:
    """True and false, if all values say one of these."""
    if not _says_truth(column.drop_nulls().head(SAMPLE)) or not _says_truth(column.drop_nulls()):
        return None
    return column.str.to_lowercase() == "true"


def _says_truth(values: pl.Series) -> bool:
    return len(values) > 0 and bool(values.str.to_lowercase().is_in(["true", "false"]).all())


def as_moments(column: pl.Series) -> pl.Series | None:
    """Dates with or without a time (UTC if they name a zone), or times of day; nothing if few values are such.

    01/02/2024 is the first of February, unless another value shows that months come first.
    """
    few = column.drop_nulls().head(SAMPLE)
    likely = [reading for reading in (_dates, _month_first, _times) if 2 * reading(few).count() >= len(few)]
    return max((reading(column) for reading in likely), key=lambda found: found.count(), default=None)


def _dates(column: pl.Series) -> pl.Series:
    import polars as pl

    try:
        return column.str.to_datetime(strict=False, time_unit="us")
    except pl.exceptions.ComputeError:
        return column.clear(len(column)).cast(pl.Datetime("us"))


def _month_first(column: pl.Series) -> pl.Series:
    return column.str.to_datetime("%m/%d/%Y", strict=False, time_unit="us")


def _times(column: pl.Series) -> pl.Series:
    return column.str.to_time(strict=False)
