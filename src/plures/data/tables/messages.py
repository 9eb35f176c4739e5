"""Small helpers for messages, and for collecting errors instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from plures.errors import BadData, UserError
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
    given = sorted(names)
    try:
        numbers = [float(name) for name in given]
    except ValueError:
        return given
    return [given[place] for place in np.argsort(numbers, kind="stable")] if np.isfinite(numbers).all() else given


@dataclass(frozen=True, eq=False)
class RowPlaces:
    """Where a row stands in the user's files: ``numbers`` counts from 1 within each file.

    ``labels`` name the files; a single table has none.
    """

    numbers: Sequence[NDArray[np.int64]]
    labels: tuple[str, ...] = ()

    def of(self, row: int | np.integer[Any]) -> str:
        """The row in words, such as "row 3 of a.csv"."""
        number = f"row {np.concatenate(self.numbers)[row]}"
        if not self.labels:
            return number
        ends = np.cumsum([len(own) for own in self.numbers])
        return f"{number} of {self.labels[int(np.searchsorted(ends, row, side='right'))]}"

    def of_all(self, rows: NDArray[np.int64]) -> str:
        """The first of the rows in words, and how many more there are."""
        more = f" and {counted(len(rows) - 1, 'more row')}" if len(rows) > 1 else ""
        return self.of(rows[0]) + more

    def refuse(self, wrong: NDArray[np.bool_], told: Callable[[int], str], wanted: str) -> None:
        """Refuse rows, if any are wrong, by what is told of the first, where they stand, and what is wanted."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            raise BadData(f"{told(int(rows[0]))} in {self.of_all(rows)}; {wanted}")
