"""Small helpers for messages, and for collecting errors instead of stopping at the first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from plures.errors import UserError
from plures.wording import counted

P = ParamSpec("P")
T = TypeVar("T")


def attempt(errors: list[UserError], make: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
    """What ``make`` returns; where it refuses, nothing, and the refusal joins the errors."""
    try:
        return make(*args, **options)
    except UserError as error:
        errors.append(error)
        return None


def in_order(names: Iterable[str]) -> list[str]:
    """Names sorted as text, or as numbers if all of them are numbers.

    >>> in_order(["10", "9"]), in_order(["10", "9", "b"])
    (['9', '10'], ['10', '9', 'b'])
    """
    given = list(names)
    if all(_is_number(name) for name in given):
        return sorted(given, key=lambda name: (float(name), name))
    return sorted(given)


def _is_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


@dataclass(frozen=True, eq=False)
class RowPlaces:
    """Where a row stands in the user's files: ``numbers`` counts from 1 within the row's file.

    ``labels`` and ``first`` name the files and their first rows; a single table has no labels.
    """

    numbers: NDArray[np.int64]
    labels: tuple[str, ...] = ()
    first: tuple[int, ...] = ()

    def of(self, row: int | np.integer[Any]) -> str:
        """The row in words, such as "row 3 of a.csv"."""
        number = f"row {self.numbers[row]}"
        if not self.labels:
            return number
        return f"{number} of {self.labels[int(np.searchsorted(self.first, row, side='right')) - 1]}"

    def of_all(self, rows: NDArray[np.int64]) -> str:
        """The first of the rows in words, and how many more there are."""
        more = f" and {counted(len(rows) - 1, 'more row')}" if len(rows) > 1 else ""
        return self.of(rows[0]) + more
