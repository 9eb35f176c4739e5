"""Tables: from files to columns, labels, owners, splits and inputs; errors are collected on the way."""

from __future__ import annotations

import numpy as np

from plures.data.tables.columns import TypedColumns, code_levels, infer_types, is_plain, split_codes
from plures.data.tables.encoders import encode
from plures.data.tables.examination import Column, Content, TableSummary
from plures.data.tables.files import Files
from plures.data.tables.join import Table, join_files
from plures.data.tables.layout import RowOwners, SplitMarks
from plures.data.tables.messages import RowPlaces, attempt
from plures.data.tables.options import TableOptions
from plures.data.tables.target import labels_of
from plures.data.tails import knee_of
from plures.errors import UserError


def read_table(files: Files, options: TableOptions, errors: list[UserError]) -> Content:
    """What one table or a folder of tables holds."""
    table = join_files(files, [name for name in (options.client, *options.categories) if name], errors)
    if table is None:
        return Content(TableSummary(title=files.title, notes=files.notes))
    found = infer_types(table, options, errors)
    target = found.named("target")
    labels = None if target is None else attempt(errors, labels_of, target, options.task, table.places)
    owners = _owners(found, files, table)
    summary = TableSummary(
        title=files.title,
        rows=table.frame.height,
        clients=len(owners.names),
        columns=tuple(
            Column(name=name, kind=found.kinds[name], missing=column.null_count())
            for name, column in found.columns.items()
        ),
        notes=(*files.notes, *table.notes, *found.notes),
    )
    return Content(
        summary,
        labels,
        owners,
        lambda: _marks(found, table.places),
        lambda layout: encode(found, layout, knee=knee_of(options.tails)),
    )


def _owners(found: TypedColumns, files: Files, table: Table) -> RowOwners:
    """Whose each row is; nobody's if there is no client column that can be read."""
    import polars as pl

    if table.owner is not None:
        return RowOwners(table.owner, files.clients)
    column = found.named("client")
    if column is None or not is_plain(column):
        return RowOwners(np.zeros(table.frame.height, np.int64), ())
    codes, names = code_levels(column.cast(pl.String))
    return RowOwners(codes, tuple(names))


def _marks(found: TypedColumns, places: RowPlaces) -> SplitMarks:
    """What the table says about splits."""
    split, time, recording = (found.named(role) for role in ("split", "time", "recording"))
    return SplitMarks(
        given=None if split is None else split_codes(split, places),
        order=None if time is None else time.rank("dense").to_numpy().astype(np.int64),
        unit=None if recording is None else code_levels(recording)[0],
    )
