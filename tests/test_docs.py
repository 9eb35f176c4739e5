"""The documentation is true: its Python runs, its commands parse, its links lead somewhere, its names exist.

A fence of exactly ```python is run, all of a page in one namespace and a temporary folder. Any other word after
``python`` (as in ```python sketch) leaves a block out.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest
from written import blocks, commands, parse_line

from papers.common.registry import import_papers
from plures import aggregate, registry
from plures.aggregate import AGGREGATORS
from plures.cli.skeleton import write_skeleton
from plures.contract import check_method

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL_PAGES = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
REGISTRIES = [one for one in vars(registry).values() if isinstance(one, registry.Registry)]


@pytest.fixture
def page_module(monkeypatch, tmp_path):
    """An empty module in a temporary folder; what it registers is forgotten afterwards."""
    before = [dict(one._entries) for one in REGISTRIES]
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.chdir(tmp_path)
    yield module
    for one, entries in zip(REGISTRIES, before, strict=True):
        one._entries.clear()
        one._entries.update(entries)


def named(paths):
    return [pytest.param(path, id=path.name) for path in paths]


ALWAYS = ("README.md", "quick-start.md", "report.md")
"""Pages whose Python is run every time; training takes long, so the others are run by `make test-all`."""

WITH_PYTHON = [
    pytest.param(path, id=path.name, marks=[] if path.name in ALWAYS else [pytest.mark.slow])
    for path in PAGES
    if blocks(path.read_text(), "python")
]


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_blocks_run(page, page_module):
    for line, text in blocks(page.read_text(), "python"):
        code = compile("\n" * line + text, str(page), "exec", dont_inherit=True)
        exec(code, vars(page_module))


@pytest.mark.parametrize("page", named(ALL_PAGES))
def test_commands_parse(page):
    for line in commands(page.read_text()):
        parse_line(line)


@pytest.mark.parametrize("page", named(ALL_PAGES))
def test_make_targets_exist(page):
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    in_blocks = [line for line in commands(page.read_text()) if line.startswith("make ")]
    in_text = re.findall(r"`(make [a-z-]+)", page.read_text())

    assert {line.split()[1] for line in in_blocks + in_text} <= known


@pytest.mark.parametrize("page", named(ALL_PAGES))
def test_links_within_the_repository_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.slow
def test_the_method_of_the_page_keeps_the_contract(page_module):
    (_, text), *_ = blocks((ROOT / "docs" / "add-a-method.md").read_text(), "python")
    exec(compile(text, "add-a-method.md", "exec", dont_inherit=True), vars(page_module))

    check_method(registry.METHODS["blend"])


@pytest.mark.slow
def test_the_skeleton_of_a_method_keeps_the_contract(page_module, tmp_path):
    path = write_skeleton("fresh", tmp_path)
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), vars(page_module))

    check_method(registry.METHODS["fresh"])


def test_readme_names_only_what_exists():
    known = {name for one in [*REGISTRIES, AGGREGATORS, import_papers()] for name in one}
    known |= {name for name, one in vars(aggregate).items() if not isinstance(one, ModuleType)}
    section = (ROOT / "README.md").read_text().split("## In the box")[1].split("\n## ")[0]
    cells = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")]

    listed = {name for cell in cells for name in re.findall(r"`([a-z_-]+)`", cell)}

    assert len(listed) > 10
    assert {name for name in listed if name not in known and name.replace("-", "_") not in known} == set()


@pytest.mark.slow
def test_readme_leaderboard_is_that_of_the_default_comparison(tmp_path):
    """Scores of another machine may differ a little, and when a run ends with them; methods may not."""
    (_, printed), *_ = blocks((ROOT / "README.md").read_text(), "text")
    lines = [line.replace("▸ ", "") for line in printed.splitlines() if not line.endswith("ref.")]
    rows = [line.split() for line in lines if re.match(r" \S+ +[01]\.\d\d\d ", line)]

    subprocess.run(
        [sys.executable, "-m", "plures", "compare", "--out", "study"],
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path / "cache")},
        check=True,
    )

    board = {
        row["method"]: row for row in pl.read_csv(tmp_path / "study" / "leaderboard.csv").iter_rows(named=True)
    }
    assert {row[0] for row in rows} == set(board)
    for name, mean, _, _, _, _, unseen, size, *_ in rows:
        assert float(mean) == pytest.approx(board[name]["mean"], abs=0.02)
        assert float(unseen) == pytest.approx(board[name]["unseen"], abs=0.05)
        assert float(size) == pytest.approx(board[name]["mb_per_client"], rel=0.25, abs=0.006)
