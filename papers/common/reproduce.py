"""Reproductions: rows of ours against published numbers and bars, written to ``summary.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from papers.common.registry import REPRODUCTIONS
from plures.errors import UnknownChoice
from plures.report.terminal import number, plain_table

SCALES = ("small", "full")


@dataclass(frozen=True)
class Row:
    """One number: what it is, ours, what was published, the bar it is held to, and whether it is met."""

    id: str
    what: str
    ours: float
    published: float | None = None
    bar: str | None = None
    met: bool | None = None


def within(
    id: str, what: str, ours: float, target: float, tolerance: float, *, published: float | None = None
) -> Row:
    """A row whose bar is a distance from a target.

    >>> within("q1", "loss", 3.17, 3.1663, 0.005).met
    True
    """
    bar = f"within {tolerance:g} of {target:g}"
    return Row(id, what, float(ours), published, bar, bool(abs(ours - target) <= tolerance))


def at_least(id: str, what: str, ours: float, least: float, *, published: float | None = None) -> Row:
    """A row whose bar is a least value.

    >>> at_least("share", "share of seeds", 0.97, 0.95).bar
    'at least 0.95'
    """
    return Row(id, what, float(ours), published, f"at least {least:g}", bool(ours >= least))


def at_most(id: str, what: str, ours: float, most: float, *, published: float | None = None) -> Row:
    """A row whose bar is a largest value.

    >>> at_most("loss", "loss", 3.96, 3.95).met
    False
    """
    return Row(id, what, float(ours), published, f"at most {most:g}", bool(ours <= most))


def reproduce(
    name: str, *, scale: str = "small", out: Path, tell: Callable[[str], None] = lambda text: None
) -> list[Row]:
    """Run a reproduction, write ``summary.json`` beside its tables, and return the rows.

    ``tell`` hears how far it is, from those that say.
    """
    entry = REPRODUCTIONS[name]
    if scale not in SCALES:
        raise UnknownChoice("scale", scale, SCALES)
    out.mkdir(parents=True, exist_ok=True)
    more = {"tell": tell} if "tell" in entry.options else {}
    rows: Sequence[Row] = entry.factory(scale=scale, out=out, **more)
    (out / "summary.json").write_text(json.dumps([_plain(row) for row in rows], indent=2) + "\n")
    return list(rows)


def _plain(row: Row) -> dict[str, Any]:
    """A row for JSON, which knows no NaN."""
    ours = float(row.ours)
    return {**asdict(row), "ours": ours if math.isfinite(ours) else None}


def all_met(rows: Sequence[Row]) -> bool:
    """Whether every row that has a bar meets it."""
    return all(row.met for row in rows if row.bar is not None)


def rows_table(rows: Sequence[Row]) -> Table:
    """A reproduction's rows, to be printed."""
    table = plain_table("Ours beside what was published")
    for name in ("id", "what", "ours", "published", "bar", "met"):
        table.add_column(name)
    for row in rows:
        verdict = "" if row.met is None else "yes" if row.met else "NO"
        table.add_row(row.id, row.what, number(row.ours, 4), number(row.published, 4), row.bar or "", verdict)
    return table
