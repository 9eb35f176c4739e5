"""What a user's files hold, whatever their kind: for a person to read, and to make a federation of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures.data.tables.layout import RowOwners, SplitMarks, TableLayout
from plures.data.tables.target import Labels


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its kind, how many values are missing, and a category's levels that get an input each."""

    name: str
    kind: str
    missing: int = 0
    levels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableSummary:
    """The whole table or folder; what an error kept from being found out is empty.

    ``why`` says how the task was chosen. ``class_names[c]`` is the class with the label c, and
    ``feature_names[j]`` what input j holds (empty for inputs with several axes, such as images). ``notes`` are
    the warnings that the federation carries; with ``errors`` there is no federation.
    """

    title: str
    rows: int = 0
    clients: int = 0
    unseen: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    task: str = ""
    why: str = ""
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """How to make the inputs in the order of a layout, what they are called, and the levels of categories."""

    make: Callable[[], NDArray[np.float32]]
    names: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Content(NamedTuple):
    """What was found in the files up to the labels; the summary alone where they could not be read.

    ``marks`` and ``inputs`` are for content without errors.
    """

    summary: TableSummary
    labels: Labels | None = None
    owners: RowOwners = RowOwners(np.zeros(0, np.int64), ())
    marks: Callable[[], SplitMarks] = SplitMarks
    inputs: Callable[[TableLayout], Inputs] | None = None
