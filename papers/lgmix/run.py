"""LG-Mix: digits under six shifts, digits of three sources, and thirty people with phones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from papers.common.cells import save_cells
from papers.common.registry import reproduction
from papers.common.reproduce import Row
from papers.lgmix import rows as lines
from papers.lgmix.cells import (
    FEW,
    Cell,
    Part,
    Setting,
    Tell,
    by_domain,
    loaded,
    people,
    play_all,
    shifted,
)
from plures.errors import BadFile

CELLS = "cells.jsonl"
SCALES: dict[str, tuple[Part, ...]] = {
    "small": (
        shifted(18),
        shifted(6),
        by_domain(1, 200, name="domains-3-small", rounds=5, every=1, methods=FEW, seeds=(0,)),
        people(name="har-30-small", rounds=3, every=1, methods=FEW, seeds=(0,)),
    ),
    "full": (
        shifted(18),
        shifted(6),
        shifted(
            18,
            name="shift-18-cnn",
            title="digits under six shifts, 18 clients, CNN",
            model="digits_cnn_small",
            lrs=(0.05, 0.2),
            every=3,
            methods=FEW,
        ),
        by_domain(1, 400),
        by_domain(5, 400),
        people(),
    ),
}


@reproduction(name="lgmix", title="LG-Mix", paper="OpenReview:7pWRLDBAtc")
def lgmix(*, scale: str, out: Path, tell: Tell) -> list[Row]:
    """Personal accuracy of LG-Mix, its variants and its neighbors where clients see the same classes differently."""
    cells = played(SCALES[scale], out, tell)
    if not cells:
        return []
    lines.write_tables(SCALES[scale], cells, out)
    from papers.lgmix import figures as report

    report.pictures(out)
    return lines.rows(SCALES[scale], cells)


def played(parts: Sequence[Part], out: Path, tell: Tell) -> list[Cell]:
    """The cells of the folder and those it lacks; a part whose data are not there is left out, with a line that says so."""
    file = out / CELLS
    cells = [cell for cell in loaded(file) if _asked(cell, parts)]
    for part in parts:
        mine = [cell for cell in cells if cell.part == part.name]
        chosen = {(cell.part, cell.method): Setting(cell.lr, cell.text) for cell in mine}
        try:
            for cell in play_all([part], known={cell.name for cell in mine}, chosen=chosen):
                save_cells(file, [cell])
                cells.append(cell)
                mean = 100 * sum(cell.accuracy) / len(cell.accuracy)
                tell(
                    f"{part.title}, {cell.method}, seed {cell.seed}: {mean:.2f} % with {cell.text}, lr {cell.lr:g}"
                )
        except BadFile as error:
            tell(f"{part.title}: left out, {error}")
    return cells


def _asked(cell: Cell, parts: Sequence[Part]) -> bool:
    """Whether a cell belongs to the parts."""
    return any(
        cell.part == part.name and cell.seed in part.seeds and (part.methods is None or cell.method in part.methods)
        for part in parts
    )
