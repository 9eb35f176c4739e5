"""The report page: one HTML file with everything in it, to be read on any screen, printed, or sent by mail."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from plures._version import __version__
from plures.report.page_data import page_of
from plures.study.disk import layout
from plures.study.disk.results import SavedStudy, read_results

SCRIPTS = ("tables.js", "charts.js", "start.js")


def write_page(saved: SavedStudy | str | Path, path: str | Path | None = None) -> Path:
    """The report page of a study, or of the folder of one; by default ``report.html`` in that folder."""
    study = saved if isinstance(saved, SavedStudy) else read_results(saved)
    path = study.folder / layout.PAGE if path is None else Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_text(page_of(study)), encoding="utf-8")
    return path


def page_text(page: dict[str, Any]) -> str:
    """The page as HTML."""
    # Inside a script any tag or comment in a text would be read by the browser.
    data = json.dumps(page, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    texts = {name: page[name] for name in ("title", "subtitle", "metric", "command")}
    scripts = {"script": "\n".join(map(asset, SCRIPTS)), "plotly": _plotly(), "data": data}
    return fill_page("page.html", page["answer"]["sentences"], page["missing"], texts, **scripts)


def fill_page(
    template: str, sentences: Sequence[str], missing: Sequence[str], texts: Mapping[str, str], **parts: str
) -> str:
    """A page from its template: texts are plain, parts are HTML."""
    plain = {**texts, "answer": " ".join(sentences), "version": __version__}
    parts |= {"missing": missing_list(missing), "style": asset("page.css")}
    return Template(asset(template)).substitute({name: escape(one) for name, one in plain.items()}, **parts)


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
