"""Rows and tables of LG-Mix's comparison, from its cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from papers.common.reproduce import Row
from papers.lgmix.cells import ALONE, FEDAVG, FEDBN, LGMIX, PRIVATE, PUBLISHED, WAYS, Cell, Part
from plures.study.statistics import Interval, bootstrap

BARRED = ("shift-18", "shift-18-cnn")
PAIRS = ((LGMIX, FEDAVG), (LGMIX, ALONE), (FEDBN, FEDAVG), (FEDBN, ALONE))
MORE = ((PUBLISHED, LGMIX), (PRIVATE, FEDBN))
LARGEST = 5.01
"""Percent: the largest improvement that the paper's abstract tells."""


def scores(cells: Sequence[Cell], part: str, method: str) -> NDArray[np.floating]:
    """(seeds, clients) accuracies in %, clients in the order of domains."""
    mine = sorted((cell for cell in cells if (cell.part, cell.method) == (part, method)), key=lambda one: one.seed)
    return 100 * np.array([cell.accuracy for cell in mine], float)


def paired(cells: Sequence[Cell], part: str, method: str, other: str) -> Interval:
    """Points by which a method beats another, over the same clients and seeds."""
    return bootstrap(scores(cells, part, method) - scores(cells, part, other))


def rows(parts: Sequence[Part], cells: Sequence[Cell]) -> list[Row]:
    """Every method's mean, the paired differences, and what the paper's abstract tells beside ours."""
    found = []
    for part in parts:
        methods = _methods(part, cells)
        found += [
            Row(_slug(part.name, method), f"accuracy in %, {part.title}, {method}", _mean(cells, part.name, method))
            for method in methods
        ]
        for method, other in (*PAIRS, *MORE):
            if {method, other} <= set(methods):
                found.append(_difference(part, cells, method, other))
    return [*found, *_beside(parts, cells)]


def _difference(part: Part, cells: Sequence[Cell], method: str, other: str) -> Row:
    """Points of difference; on the federations that decide, the interval is to lie above 0."""
    one = paired(cells, part.name, method, other)
    what = f"points, {method} - {other}, {part.title} (95 %: {one.low:.2f} to {one.high:.2f})"
    decides = part.name in BARRED and (method, other) in PAIRS
    bar, met = ("interval above 0", one.low > 0) if decides else (None, None)
    return Row(_slug(part.name, method, "against", other), what, one.mean, bar=bar, met=met)


def _beside(parts: Sequence[Part], cells: Sequence[Cell]) -> list[Row]:
    """Against the best method that is no LG-Mix: the paper's abstract says the same of its own five data sets."""
    gaps = []
    for part in parts:
        methods = _methods(part, cells)
        others = [_mean(cells, part.name, one) for one in methods if not one.startswith(LGMIX)]
        if others and LGMIX in methods:
            gaps.append(_mean(cells, part.name, LGMIX) - max(others))
    if not gaps:
        return []
    what = "largest lead of LG-Mix over the best other method, points; published: the largest improvement, of other data"
    share = "share of federations in which LG-Mix is best; published: all five data sets, others than these"
    return [
        Row("largest-lead", what, max(gaps), LARGEST),
        Row("share-best", share, float(np.mean([gap > 0 for gap in gaps])), 1.0),
    ]


def _methods(part: Part, cells: Sequence[Cell]) -> list[str]:
    """The methods of which all seeds are there, in the order of the comparison."""
    have = {cell.name for cell in cells}
    return [label for label in WAYS if all((part.name, label, seed) in have for seed in part.seeds)]


def _mean(cells: Sequence[Cell], part: str, method: str) -> float:
    return float(scores(cells, part, method).mean())


def _slug(*words: str) -> str:
    return "-".join(" ".join(words).lower().replace(",", "").split())


def write_tables(parts: Sequence[Part], cells: Sequence[Cell], out: Path) -> None:
    """The tables: means, differences, clients, and what LG-Mix tells round by round."""
    named = {part.name: part for part in parts}
    kept = [cell for cell in cells if cell.method in _methods(named[cell.part], cells)]
    tables = {
        "accuracy": [line for part in parts for line in _accuracy(part, kept)],
        "differences": [line for part in parts for line in _differences(part, kept)],
        "clients": [line for cell in kept for line in _clients(named[cell.part], cell)],
        "rounds": [line for cell in kept for line in _path(named[cell.part], cell)],
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in tables.items():
        if lines:
            pl.DataFrame(lines, infer_schema_length=None).write_csv(out / f"{name}.csv", float_precision=4)


def _accuracy(part: Part, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    found = []
    for method in _methods(part, cells):
        mine = [cell for cell in cells if (cell.part, cell.method) == (part.name, method)]
        one = bootstrap(scores(cells, part.name, method))
        found.append(
            {
                "part": part.name,
                "title": part.title,
                "method": method,
                "seeds": len(mine),
                "accuracy": one.mean,
                "low": one.low,
                "high": one.high,
                "valid": 100 * float(np.mean([cell.valid for cell in mine])),
                "lr": mine[0].lr,
                "chosen": mine[0].text,
                "megabytes": mine[0].megabytes,
                "seconds": float(np.median([cell.seconds for cell in mine])),
            }
        )
    return found


def _differences(part: Part, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Every method against training alone and against FedAvg."""
    methods = _methods(part, cells)
    found = []
    for other in (one for one in (ALONE, FEDAVG) if one in methods):
        for method in methods:
            one = paired(cells, part.name, method, other)
            line = {"part": part.name, "method": method, "against": other, "points": one.mean}
            found.append({**line, "low": one.low, "high": one.high})
    return found


def _clients(part: Part, cell: Cell) -> list[dict[str, Any]]:
    return [
        {
            "part": part.name,
            "method": cell.method,
            "seed": cell.seed,
            "client": number,
            "domain": _domain(part, domain),
            "accuracy": 100 * score,
        }
        for number, (domain, score) in enumerate(zip(cell.domain, cell.accuracy, strict=True))
    ]


def _path(part: Part, cell: Cell) -> list[dict[str, Any]]:
    """Clients round by round, of the first seed."""
    if cell.seed != part.seeds[0] or cell.method not in (LGMIX, PUBLISHED, PRIVATE):
        return []
    return [
        {
            "part": part.name,
            "method": cell.method,
            "round": step["round"],
            "client": number,
            "domain": _domain(part, domain),
            **{name: step[name][number] for name in step if name != "round"},
        }
        for step in cell.path
        for number, domain in enumerate(cell.domain)
    ]


def _domain(part: Part, number: int) -> str:
    return part.domains[number] if part.domains else str(number)
