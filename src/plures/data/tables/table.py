"""Tables: from files to columns, target, layout and encoders; errors are collected on the way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plures.data.tables.columns import TypedColumns, code_levels, infer_types, is_plain, split_codes
from plures.data.tables.encoders import Encoder, encode, fit
from plures.data.tables.examination import (
    Column,
    Examination,
    TableSummary,
    federation_of,
    with_labels,
    with_layout,
)
from plures.data.tables.files import Files
from plures.data.tables.join import Table, join_files
from plures.data.tables.layout import RowOwners, SplitMarks, check_unseen, lay_out
from plures.data.tables.messages import RowPlaces, attempt
from plures.data.tables.options import TableOptions
from plures.data.tables.target import Labels, infer_labels, raw_target
from plures.data.tails import knee_of
from plures.errors import BadData, UserError


def examine_table(files: Files, options: TableOptions, errors: list[UserError]) -> Examination:
    """Everything about one table or a folder of tables."""
    summary = TableSummary(title=files.title, notes=files.notes)
    table = join_files(files, [name for name in (options.client, *options.categories) if name], errors)
    if table is None:
        return Examination.of(summary, errors)
    found = infer_types(table, options, errors)
    target = _labels(found, options, table.places, errors)
    owners = _owners(found, files, table)
    summary = with_labels(_summary(summary, table, found, owners), target)
    if errors or target is None:
        check_unseen(owners, options, errors)
        return Examination.of(summary, errors)
    layout = lay_out(target, owners, _marks(found, table.places), options, errors)
    if layout is None:
        return Examination.of(summary, errors)
    encoders = fit(found, layout, knee=knee_of(options.tails))
    summary = _with_encoders(with_layout(summary, layout), encoders)
    if not summary.feature_names:
        wanted = "no input column has a value in training rows of seen clients; give at least one that has"
        errors.append(BadData(wanted))
        return Examination.of(summary, errors)
    return Examination(
        summary, make=lambda: federation_of(encode(found, encoders, layout), target, layout, files.title)
    )


def _labels(
    found: TypedColumns, options: TableOptions, places: RowPlaces, errors: list[UserError]
) -> Labels | None:
    column = found.named("target")
    raw = None if column is None else attempt(errors, raw_target, column, options.task, places)
    return None if raw is None else attempt(errors, infer_labels, raw, options.task, places)


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


def _summary(summary: TableSummary, table: Table, found: TypedColumns, owners: RowOwners) -> TableSummary:
    columns = tuple(
        Column(name=name, kind=found.kinds[name], missing=column.null_count())
        for name, column in found.columns.items()
    )
    notes = (*summary.notes, *table.notes, *found.notes)
    return replace(summary, rows=table.frame.height, clients=len(owners.names), columns=columns, notes=notes)


def _with_encoders(summary: TableSummary, encoders: list[Encoder]) -> TableSummary:
    """The summary with levels, the names of inputs and what became of missing and unknown values."""
    levels = {encoder.name: encoder.levels for encoder in encoders}
    return replace(
        summary,
        columns=tuple(replace(column, levels=levels.get(column.name, ())) for column in summary.columns),
        feature_names=tuple(name for encoder in encoders for name in encoder.features),
        notes=(*summary.notes, *(note for encoder in encoders for note in encoder.notes)),
    )
