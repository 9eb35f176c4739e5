"""Rows and the table of FedCLUP on MNIST, from cells that were played here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from papers.common.cells import save_cells
from papers.common.reproduce import Row, at_least
from papers.fedclup import mnist
from papers.fedclup.mnist import Cell
from plures.errors import BadFile

CELLS = "cells.jsonl"
BOTH, AUTO = ("alone", "FedAvg"), "FedCLUP, lam auto"


def play_cells(scale: mnist.Scale, out: Path, tell: Callable[[str], None]) -> list[Row]:
    """Play what is not in the folder yet; without MNIST only what is there is shown, with a line that says so."""
    file = out / CELLS
    known = [cell for cell in mnist.loaded(file) if _asked(cell, scale)]

    def hear(cell: Cell) -> None:
        save_cells(file, [cell])
        tell(f"MNIST, {cell.model}, {cell.digits} digits, {cell.method}: {100 * cell.mean:.2f} %")

    try:
        known += mnist.play_all(scale, known={cell.name for cell in known}, tell=hear)
    except BadFile as error:
        tell(f"MNIST: left out, {error}")
    if not known:
        return []
    table(known).write_csv(out / "mnist.csv", float_precision=4)
    return [row for model in scale.models for row in rows(model, [cell for cell in known if cell.model == model])]


def _asked(cell: Cell, scale: mnist.Scale) -> bool:
    """Whether a cell belongs to a scale."""
    fits = cell.model in scale.models and cell.digits in scale.digits and cell.seed in scale.seeds
    return fits and (scale.methods is None or cell.method in scale.methods)


def table(cells: Sequence[Cell]) -> pl.DataFrame:
    """A line per model, digits and method: means over seeds, and the standard error of the accuracy."""
    lines = []
    for key in sorted({(cell.model, cell.digits, cell.method) for cell in cells}):
        mine = [cell for cell in cells if (cell.model, cell.digits, cell.method) == key]
        scores = 100 * np.array([cell.mean for cell in mine])
        error = float(scores.std(ddof=1) / np.sqrt(len(scores))) if len(scores) > 1 else None
        worst, size = (
            float(np.mean([getattr(cell, name) for cell in mine])) for name in ("worst_decile", "megabytes")
        )
        numbers = {"accuracy": float(scores.mean()), "error": error, "worst_decile": 100 * worst, "megabytes": size}
        lines.append({"model": key[0], "digits": key[1], "method": key[2], "seeds": len(mine), **numbers})
    schema = {"model": pl.String, "digits": pl.Int64, "method": pl.String, "seeds": pl.Int64}
    return pl.DataFrame(
        lines, schema={**schema, **dict.fromkeys(("accuracy", "error", "worst_decile", "megabytes"), pl.Float64)}
    )


def rows(model: str, cells: Sequence[Cell]) -> list[Row]:
    """Every method's mean over digits and seeds, and the automatic FedCLUP against the better end, by digits.

    The strength is chosen without test rows; the better end by them.
    """
    found = []
    for method in dict.fromkeys(cell.method for cell in cells):
        slug = "-".join(f"mnist {model} {method}".lower().replace(",", "").split())
        what = f"accuracy in %, MNIST, {model}, {method}, mean over digits and seeds"
        found.append(Row(slug, what, _mean(cells, method)))
    for digits in sorted({cell.digits for cell in cells}):
        mine = [cell for cell in cells if cell.digits == digits]
        if {*BOTH, AUTO} <= {cell.method for cell in mine}:
            better = max(BOTH, key=lambda method: _mean(mine, method))
            what = f"points by which {AUTO} beats the better end ({better}), MNIST, {model}, {digits} digits"
            # Two standard errors of 2,000 test rows are about a point.
            found.append(at_least(f"mnist-{model}-{digits}", what, _mean(mine, AUTO) - _mean(mine, better), -1.0))
    return found


def _mean(cells: Sequence[Cell], method: str) -> float:
    return 100 * float(np.mean([cell.mean for cell in cells if cell.method == method]))
