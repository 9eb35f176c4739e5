"""A user's table or folder becomes a federation, or a summary of what is in it and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np

from plures.data.federation import Examples, Federation, assemble
from plures.data.holdout import choose_held_out, mark_held_out
from plures.data.tables.arrays import read_arrays
from plures.data.tables.columns import TypedColumns, code_levels, infer_types, is_plain, split_codes
from plures.data.tables.encoders import encode
from plures.data.tables.examination import Column, Content, Inputs, TableSummary
from plures.data.tables.files import Files, find_files
from plures.data.tables.join import Table, join_files
from plures.data.tables.layout import RowOwners, SplitMarks, TableLayout, lay_out
from plures.data.tables.messages import RowPlaces, attempt
from plures.data.tables.options import OPTION_CHECKS, TableOptions
from plures.data.tables.target import Labels, labels_of
from plures.data.tails import knee_of
from plures.errors import BadData, UserError

Maker = Callable[[], Federation]


def read_own(path: str | Path, options: TableOptions = TableOptions()) -> Federation:
    """The federation in a CSV or Parquet table with a client column, or in a folder with a file per client.

    Inputs are scaled, filled in and encoded by the training rows of seen clients alone. The targets of a
    regression stay in their own unit.
    """
    errors: list[UserError] = []
    summary, make = examine(path, options, errors)
    if make is None:
        raise errors[0]
    return make().noted(*summary.notes)


def inspect_own(path: str | Path, options: TableOptions = TableOptions()) -> TableSummary:
    """What ``read_own`` would make of the same data; all errors that can be found together, none raised."""
    errors: list[UserError] = []
    summary, _ = examine(path, options, errors)
    return replace(summary, errors=tuple(str(error) for error in errors))


def examine(path: str | Path, options: TableOptions, errors: list[UserError]) -> tuple[TableSummary, Maker | None]:
    """Everything about the data and how to make the federation; nothing of that kind where errors were met."""
    for check in OPTION_CHECKS:
        attempt(errors, check, options)
    files = attempt(errors, find_files, path)
    if files is None:
        return TableSummary(title=Path(path).stem), None
    read = read_arrays if files.arrays else read_table
    summary, labels, owners, marks, fit = read(files, options, errors)
    if labels is not None:
        summary = replace(summary, task=labels.task, why=labels.why, class_names=labels.class_names)
    if errors or labels is None or fit is None:
        if owners.names:
            attempt(errors, choose_held_out, owners.names, options.hold_out, options.hold_out_seed)
        return summary, None
    layout = lay_out(labels, owners, marks(), options, errors)
    if layout is None:
        return summary, None
    inputs = fit(layout)
    summary = _with_inputs(summary, layout, inputs)
    if not (inputs.names or files.arrays):
        wanted = "no input column has a value in training rows of seen clients; give at least one that has"
        errors.append(BadData(wanted))
        return summary, None
    return summary, lambda: _federation(inputs, labels, layout, summary.title)


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


def _with_inputs(summary: TableSummary, layout: TableLayout, inputs: Inputs) -> TableSummary:
    """The summary with clients, inputs and the notes on them."""
    return replace(
        summary,
        clients=len(layout.names),
        unseen=tuple(compress(layout.names, layout.held_out)),
        columns=tuple(replace(column, levels=inputs.levels.get(column.name, ())) for column in summary.columns),
        feature_names=inputs.names,
        notes=(*summary.notes, *layout.notes, *inputs.notes),
    )


def _federation(inputs: Inputs, labels: Labels, layout: TableLayout, title: str) -> Federation:
    made = assemble(
        Examples(inputs.make(), labels.y[layout.rows], layout.owner, layout.codes),
        names=layout.names,
        in_place=True,
        task=labels.task,
        num_classes=len(labels.class_names),
        title=title,
        class_names=labels.class_names,
        unit=layout.unit,
        standardize_target=labels.task == "regression",
    )
    return mark_held_out(made, layout.held_out)
