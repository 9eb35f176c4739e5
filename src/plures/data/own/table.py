"""Tables: from files to columns, target, layout and encoders; errors are collected on the way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plures.data.own.columns import Typed, coded, is_plain, split_codes, typed
from plures.data.own.encode import Encoder, encoded, fit
from plures.data.own.files import Files
from plures.data.own.found import Found, federation_of, with_labels, with_layout
from plures.data.own.join import Table, join
from plures.data.own.layout import Marks, Owners, check_unseen, lay_out
from plures.data.own.options import TableOptions
from plures.data.own.summary import Column, Summary
from plures.data.own.target import Labels, labels, raw_target
from plures.data.own.words import Places, attempt
from plures.errors import BadData, UserError


def examine_table(files: Files, options: TableOptions, errors: list[UserError]) -> Found:
    """Everything about one table or a folder of tables."""
    summary = Summary(title=files.title, notes=files.notes)
    table = join(files, [name for name in (options.client, *options.categories) if name], errors)
    if table is None:
        return Found.of(summary, errors)
    found = typed(table, options, errors)
    target = _labels(found, options, table.places, errors)
    owners = _owners(found, files, table)
    summary = with_labels(_summary(summary, table, found, owners), target)
    if errors or target is None:
        check_unseen(owners, options, errors)
        return Found.of(summary, errors)
    layout = lay_out(target, owners, _marks(found, table.places), options, errors)
    if layout is None:
        return Found.of(summary, errors)
    encoders = fit(found, layout)
    summary = _with_encoders(with_layout(summary, layout), encoders)
    attempt(errors, _check_inputs, summary)
    if errors:
        return Found.of(summary, errors)
    return Found(summary, make=lambda: federation_of(encoded(found, encoders, layout), target, layout, files.title))


def _labels(found: Typed, options: TableOptions, places: Places, errors: list[UserError]) -> Labels | None:
    column = found.named("target")
    raw = None if column is None else attempt(errors, raw_target, column, options.task, places)
    return None if raw is None else attempt(errors, labels, raw, options.task, places)


def _owners(found: Typed, files: Files, table: Table) -> Owners:
    """Whose each row is; nobody's if there is no client column that can be read."""
    import polars as pl

    if table.owner is not None:
        return Owners(table.owner, files.clients)
    column = found.named("client")
    if column is None or not is_plain(column):
        return Owners(np.zeros(table.frame.height, np.int64), ())
    codes, names = coded(column.cast(pl.String))
    return Owners(codes, tuple(names))


def _marks(found: Typed, places: Places) -> Marks:
    """What the table says about splits."""
    split, time, recording = (found.named(role) for role in ("split", "time", "recording"))
    return Marks(
        given=None if split is None else split_codes(split, places),
        order=None if time is None else time.rank("dense").to_numpy().astype(np.int64),
        unit=None if recording is None else coded(recording)[0],
    )


def _summary(summary: Summary, table: Table, found: Typed, owners: Owners) -> Summary:
    columns = tuple(
        Column(name=name, kind=found.kinds[name], missing=column.null_count())
        for name, column in found.columns.items()
    )
    notes = (*summary.notes, *table.notes, *found.notes)
    return replace(summary, rows=table.frame.height, clients=len(owners.names), columns=columns, notes=notes)


def _with_encoders(summary: Summary, encoders: list[Encoder]) -> Summary:
    """The summary with levels, the names of inputs and what became of missing and unknown values."""
    levels = {encoder.name: encoder.levels for encoder in encoders}
    return replace(
        summary,
        columns=tuple(replace(column, levels=levels.get(column.name, ())) for column in summary.columns),
        feature_names=tuple(name for encoder in encoders for name in encoder.features),
        notes=(*summary.notes, *(note for encoder in encoders for note in encoder.notes)),
    )


def _check_inputs(summary: Summary) -> None:
    if not summary.feature_names:
        raise BadData("no input column has a value in training rows of seen clients; give at least one that has")
