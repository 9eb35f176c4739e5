"""Several studies from one file: the table for the terminal, and the page that leads to those of each."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
from rich.table import Table
from rich.text import Text

from plures.report.page import fill_page, write_page
from plures.report.page_data import method_look
from plures.report.terminal import FOLDED, NUMBER, number, plain_table
from plures.study.comparison import ALONE, GLOBAL, KNOWING, UNSOUND
from plures.study.disk.layout import PAGE, RESOLVED, VARIANTS_CSV, VARIANTS_TABLE
from plures.study.variants import Variants
from plures.wording import counted

LABELS, PLOT, ROW = 330, 560, 28
"""Widths and heights in the picture."""


def variants_table(found: Variants) -> Table:
    """What to take in every variant, how well it does there, and the two ends."""
    heads = {"variant": FOLDED, "take": FOLDED, **dict.fromkeys(("mean", "±", "best", "alone", "global"), NUMBER)}
    rows = ((Text(row["variant"]), Text(row["take"]), *_score_cells(row)) for row in _advice_rows(found))
    return plain_table("What to take in each variant: mean score on test rows", heads, rows)


def _score_cells(row: Mapping[str, Any]) -> list[str]:
    return [number(row[name], row["digits"]) for name in ("mean", "half", "best", "alone", "global")]


def _advice_rows(found: Variants) -> list[dict[str, Any]]:
    rows = []
    for label, one in found.studies.items():
        board = {row["method"]: row for row in one.result.leaderboard.iter_rows(named=True)}
        told = found.answers[label]
        mine = board.get(told.advice, {})
        half = (mine["high"] - mine["low"]) / 2 if mine else None
        shown = {"mean": told.advice, "best": told.best, "alone": ALONE, "global": GLOBAL}
        means = {what: board.get(name, {}).get("mean") for what, name in shown.items()}
        said = {"variant": label, "take": told.advice or "none", "metric": one.result.metric}
        rows.append({**said, "half": half, "digits": one.result.digits, **means})
    return rows


def write_variants(found: Variants, path: str | Path | None = None) -> Path:
    """The table of all studies and their page, which leads to those of each; returns where the page is."""
    for one in found.studies.values():
        if not (one.folder / PAGE).exists():
            write_page(one)
    found.table.write_csv(found.folder / VARIANTS_CSV)
    found.table.write_parquet(found.folder / VARIANTS_TABLE)
    return write_variants_page(found, path)


def write_variants_page(found: Variants, path: str | Path | None = None) -> Path:
    """The page of all studies; by default ``report.html`` in their folder, so that its links lead to theirs."""
    path = found.folder / PAGE if path is None else Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_page_text(found, path.parent), encoding="utf-8")
    return path


def _page_text(found: Variants, folder: Path) -> str:
    looks = {name: method_look(name, found.methods) for name in found.methods}
    axes = list(dict.fromkeys(axis for one in found.varied.values() for axis in one))
    higher = {one.result.higher_is_better for one in found.studies.values()}
    metrics = ", ".join(dict.fromkeys(one.result.metric for one in found.studies.values()))
    toml = found.folder / RESOLVED
    texts = {
        "title": f"Which personalization, over {' and '.join(axes)}?",
        "subtitle": f"{counted(len(found.varied), 'variant')} · {counted(len(found.methods), 'method')} · {metrics}",
        "direction": ("Higher is better." if True in higher else "Lower is better.") if len(higher) == 1 else "",
        "toml": toml.read_text() if toml.exists() else "",
    }
    return fill_page(
        "variants.html",
        found.sentences,
        found.missing,
        texts,
        scores=_scores(found, looks, folder),
        legend="".join(f"<span>{_glyph(look)} {escape(name)}</span>" for name, look in looks.items()),
        picture=_picture(found, looks),
        advice=_advice(found),
    )


def _color(look: Mapping[str, Any]) -> str:
    return "var(--ink)" if look["color"] == "ink" else str(look["color"])


def _glyph(look: Mapping[str, Any]) -> str:
    return f'<span style="color:{_color(look)};margin:0">{look["glyph"]}</span>'


def _scores(found: Variants, looks: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """The matrix of methods and variants; names of variants lead to their pages, where these are."""
    heads = [f"<th>{_link(label, one.folder / PAGE, folder)}</th>" for label, one in found.studies.items()]
    columns = {label: _column(found, label) for label in found.studies}
    order = sorted(found.methods, key=lambda name: -sum(one.get(name, ("", -1.0))[1] for one in columns.values()))
    rows = [
        f'<tr data-method="{escape(name)}"><td class="text">{_glyph(looks[name])} {escape(name)}</td>'
        + "".join(columns[label].get(name, ("<td>-</td>", 0.0))[0] for label in found.studies)
        + "</tr>"
        for name in order
    ]
    return f"<thead><tr><th>method</th>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody>"


def _link(label: str, page: Path, folder: Path) -> str:
    if not page.exists():
        return escape(label)
    way = Path(os.path.relpath(page, folder)).as_posix()
    return f'<a href="{quote(way)}">{escape(label)}</a>'


def _column(found: Variants, label: str) -> dict[str, tuple[str, float]]:
    """{method: (its cell, how near it is to the best one, 0 to 1)} of a variant."""
    result = found.studies[label].result
    rows = found.table.filter(pl.col("variant") == label)
    means = rows.filter(~pl.col("against_best").is_in(UNSOUND))["mean"].drop_nulls().to_list()
    low, high = (min(means), max(means)) if means else (0.0, 0.0)
    cells = {}
    for row in rows.iter_rows(named=True):
        if row["mean"] is None or row["against_best"] in UNSOUND:
            cells[row["method"]] = (f'<td class="beaten">{escape(row["against_best"])}</td>', 0.0)
            continue
        near = (row["mean"] - low) / (high - low) if high > low else 1.0
        heat = near if result.higher_is_better else 1 - near
        kind = "best" if row["candidate"] else "ceiling" if row["against_best"] == KNOWING else "beaten"
        mark = " ✓" if row["advice"] else ""
        interval = f"{row['low']:.{result.digits}f} to {row['high']:.{result.digits}f}"
        shown = f"{row['mean']:.{result.digits}f}{mark}"
        cells[row["method"]] = (
            f'<td class="{kind}" style="--heat:{heat:.2f}" title="{interval}">{shown}</td>',
            heat,
        )
    return cells


def _picture(found: Variants, looks: Mapping[str, Mapping[str, Any]]) -> str:
    """A row per variant with a mark for every method and its interval; variants with one metric share the scale."""
    metrics = list(dict.fromkeys(one.result.metric for one in found.studies.values()))
    return "".join(_panel(found, looks, metric) for metric in metrics)


def _panel(found: Variants, looks: Mapping[str, Mapping[str, Any]], metric: str) -> str:
    rows = found.table.filter(pl.col("metric") == metric, pl.col("mean").is_not_null())
    rows = rows.filter(~pl.col("against_best").is_in(UNSOUND))
    if not rows.height:
        return ""
    labels = rows["variant"].unique(maintain_order=True).to_list()
    low, high = float(rows["low"].min()), float(rows["high"].max())  # type: ignore[arg-type]
    room = (high - low) * 0.04 or 0.01
    low, high = low - room, high + room

    def at(value: float) -> str:
        return f"{LABELS + PLOT * (value - low) / (high - low):.1f}"

    height, parts = ROW * len(labels) + 34, []
    for place, label in enumerate(labels):
        middle = ROW * place + 20
        parts.append(f'<line class="rule" x1="{LABELS}" x2="{LABELS + PLOT}" y1="{middle}" y2="{middle}"/>')
        parts.append(f'<text x="{LABELS - 10}" y="{middle + 4}" text-anchor="end">{escape(_cut(label))}</text>')
        mine = rows.filter(pl.col("variant") == label)
        for number_, row in enumerate(mine.iter_rows(named=True)):
            color, y = _color(looks[row["method"]]), middle + 6 * (number_ % 3 - 1)
            said = f"{label}: {row['method']} {row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
            parts.append(
                f'<g style="color:{color}"><title>{escape(said)}</title><line x1="{at(row["low"])}" x2="{at(row["high"])}" '
                f'y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity=".5"/><text x="{at(row["mean"])}" y="{y + 4}" '
                f'text-anchor="middle">{looks[row["method"]]["glyph"]}</text></g>'
            )
    for value in ticks(low, high):
        parts.append(f'<text x="{at(value)}" y="{height - 4}" text-anchor="middle">{value:.6g}</text>')
    name = f"Mean test {metric} of every method in every variant"
    return f'<svg viewBox="0 0 {LABELS + PLOT + 10} {height}" role="img" aria-label="{escape(name)}">{"".join(parts)}</svg>'


def ticks(low: float, high: float) -> list[float]:
    """Three to eight round numbers within a range.

    >>> ticks(0.669, 0.956)
    [0.7, 0.75, 0.8, 0.85, 0.9, 0.95]
    """
    size = 10.0 ** math.floor(math.log10(high - low))
    step = next(one for one in (size / 5, size / 2, size, 2 * size) if (high - low) / one <= 7)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def _cut(label: str, most: int = 50) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _advice(found: Variants) -> str:
    heads = ("variant", "take", "metric", "mean", "±", "best", "alone", "global")
    kinds = {name: ' class="text"' if place < 3 else "" for place, name in enumerate(heads)}
    lines = ["<thead><tr>" + "".join(f"<th{kinds[name]}>{name}</th>" for name in heads) + "</tr></thead><tbody>"]
    for row in _advice_rows(found):
        texts = "".join(f'<td class="text">{escape(row[name])}</td>' for name in ("variant", "take", "metric"))
        lines.append(f"<tr>{texts}{''.join(f'<td>{one}</td>' for one in _score_cells(row))}</tr>")
    return "".join(lines) + "</tbody>"
