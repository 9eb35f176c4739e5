"""The report page: one HTML file with everything in it, to be read on any screen, printed, or sent by mail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from plures._version import __version__
from plures.report.page_data import page_of
from plures.study.saved import Saved, read_saved

NAME = "report.html"
SCRIPTS = ("tables.js", "charts.js", "start.js")


def write_page(saved: Saved | str | Path, path: str | Path | None = None) -> Path:
    """The report page of a study, or of the folder of one; by default ``report.html`` in that folder."""
    study = saved if isinstance(saved, Saved) else read_saved(saved)
    path = study.folder / NAME if path is None else Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_text(page_of(study)), encoding="utf-8")
    return path


def page_text(page: dict[str, Any]) -> str:
    """The page as HTML."""
    # Inside a script any tag or comment in a text would be read by the browser.
    data = json.dumps(page, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    first, second = page["answer"]["sentences"]
    return Template(asset("page.html")).substitute(
        title=escape(page["title"]),
        subtitle=escape(page["subtitle"]),
        first=escape(first),
        second=escape(second),
        missing=missing_list(page["missing"]),
        metric=escape(page["metric"]),
        command=escape(page["command"]),
        version=__version__,
        style=asset("page.css"),
        script="\n".join(map(asset, SCRIPTS)),
        plotly=_plotly(),
        data=data,
    )


def missing_list(lines: Sequence[str]) -> str:
    """What is not on the page, in plain sight."""
    if not lines:
        return ""
    return '<ul class="missing">' + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def asset(name: str) -> str:
    """A file that pages are made of."""
    return (files("plures.report") / "assets" / name).read_text(encoding="utf-8")


def _plotly() -> str:
    """The drawing library, to be carried by the page; plotly is loaded only where a page is written."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
