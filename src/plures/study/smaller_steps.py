"""Methods that broke down with the step size they were given are run again with a quarter of it, three times at most."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from plures.engine.identity import identify
from plures.method import Method
from plures.study.comparison import honest_of
from plures.study.curvature import loss_at_start
from plures.study.disk.layout import score_column
from plures.study.disk.runs import RunTables

if TYPE_CHECKING:
    from plures.study.grid import Grid, PlannedRun

TIMES = 3
SMALLER = 4.0
WORSE = 10.0
"""A run that ends with so many times the loss that untrained models have broke down, though the number is finite."""

Tables: TypeAlias = Mapping[tuple[str, int], RunTables]
Again: TypeAlias = Callable[[str], tuple[Method, float] | None]
"""label -> the method with smaller steps, and how large they are; None where it was made smaller often enough."""


def broke_down(tables: RunTables, start: float = np.inf) -> bool:
    """Whether an honest client got a model whose loss is no finite number, or all a far larger one than at the start.

    Valid rows tell; of a client without any test rows do.
    """
    valid, test = (pl.col(score_column("loss", split=split)).cast(pl.Float64) for split in ("valid", "test"))
    scored = honest_of(tables.clients).filter((pl.col("valid_rows") > 0) | (pl.col("test_rows") > 0))
    told = scored.select(pl.when(pl.col("valid_rows") > 0).then(valid).otherwise(test).alias("loss"))
    loss = told["loss"].fill_null(np.nan).to_numpy()
    return not np.isfinite(loss).all() or bool(len(loss) and start > 0 and loss.mean() > WORSE * start)


def repeat_broken(
    grid: Grid, tables: Tables, again: Again, play: Callable[[Grid, PlannedRun], RunTables]
) -> tuple[Grid, Tables]:
    """The grid and the tables after every method with a run that broke down was run anew, with all its seeds."""
    starts = {
        model: loss_at_start(model, grid.federation) for model in {one.model for one in grid.methods.values()}
    }
    for label, start in [(label, starts[method.model]) for label, method in grid.methods.items()]:
        while any(broke_down(one, start) for (name, _), one in tables.items() if name == label):
            found = again(label)
            if found is None:
                break
            method, lr = found
            grid = _with_method(grid, label, method, f"it broke down, and was run again with steps of {lr:g}")
            mine = [run for run in grid.runs if run.label == label]
            for run in mine:
                if run.folder is not None:
                    shutil.rmtree(run.folder, ignore_errors=True)
            tables = {**tables, **{run.name: play(grid, run) for run in mine}}
    return grid, tables


def _with_method(grid: Grid, label: str, method: Method, note: str) -> Grid:
    def anew(run: PlannedRun) -> PlannedRun:
        known = run.folder is not None
        identity = identify(method, grid.federation, run.settings, unseen=grid.unseen) if known else run.identity
        return replace(run, method=method, identity=identity, tables=None)

    runs = [anew(run) if run.label == label else run for run in grid.runs]
    notes = {**grid.notes, label: [*grid.notes.get(label, []), note]}
    return replace(grid, methods={**grid.methods, label: method}, runs=runs, notes=notes)
