"""A user's table or folder becomes a federation, or a summary of what is in it and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

from plures.data.federation import Federation
from plures.data.tables.arrays import examine_arrays
from plures.data.tables.examination import Examination, TableSummary
from plures.data.tables.files import find_files
from plures.data.tables.messages import attempt
from plures.data.tables.options import OPTION_CHECKS, TableOptions
from plures.data.tables.table import examine_table
from plures.errors import UserError


def read_own(path: str | Path, options: TableOptions = TableOptions()) -> Federation:
    """The federation in a CSV or Parquet table with a client column, or in a folder with a file per client.

    Inputs are scaled, filled in and encoded by the training rows of seen clients alone. The targets of a
    regression stay in their own unit.
    """
    found = examine(path, options)
    if found.errors or found.make is None:
        raise found.errors[0]
    return found.make().noted(*found.summary.notes)


def inspect_own(path: str | Path, options: TableOptions = TableOptions()) -> TableSummary:
    """What ``read_own`` would make of the same data; all errors that can be found together, none raised."""
    return examine(path, options).summary


def examine(path: str | Path, options: TableOptions) -> Examination:
    """Everything about the data short of making the inputs."""
    errors: list[UserError] = []
    for check in OPTION_CHECKS:
        attempt(errors, check, options)
    files = attempt(errors, find_files, path)
    if files is None:
        return Examination.of(TableSummary(title=Path(path).stem), errors)
    return (examine_arrays if files.arrays else examine_table)(files, options, errors)
