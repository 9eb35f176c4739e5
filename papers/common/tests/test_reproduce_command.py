"""``plures reproduce`` as a user types it: results, exit codes, one-line messages."""

import json

import pytest
from typed import complaint, plures

import plures as package
from papers.common.registry import REPRODUCTIONS
from papers.common.reproduce import Row
from plures.cli import reproduce
from plures.registry import Entry


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_a_reproduction_with_an_unmet_bar_exits_with_1(monkeypatch, tmp_path, capsys):
    def sad(*, scale, out):
        """One row that is met, one that is not."""
        return [Row("a", "fine", 1.0, None, "x", True), Row("b", "not", 2.0, 3.0, "x", False)]

    entry = Entry("sad", sad, "Sad")
    monkeypatch.setitem(REPRODUCTIONS._entries, "sad", entry)

    assert plures("reproduce", "sad", "--out", "out") == 1
    rows = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [row["met"] for row in rows] == [True, False]
    assert set(rows[0]) == {"id", "what", "ours", "published", "bar", "met"}


@pytest.mark.slow
def test_a_reproduction_whose_bars_are_met_exits_with_0(tmp_path, capsys):
    assert plures("reproduce", "closed-forms", "--out", "out") == 0
    rows = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert all(row["met"] for row in rows)


def test_without_a_name_all_are_listed(capsys):
    assert plures("reproduce") == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    papers = ["convex-clustering", "fedclup", "lgmix", "robust-clustering", "three-approaches"]
    assert set(listed) >= {"closed-forms", *papers}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["closed-form"], "no reproduction is called 'closed-form'; did you mean 'closed-forms'?"),
        (["closed-forms", "--scale", "huge"], "no scale is called 'huge'"),
    ],
)
def test_an_unknown_name_or_scale_is_refused(words, message, capsys):
    assert plures("reproduce", *words) == 1
    assert message in complaint(capsys)


def test_where_the_papers_are_not_there_one_line_says_how_to_get_them(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(package, "__file__", str(tmp_path / "site-packages" / "plures" / "__init__.py"))

    assert plures("reproduce", "fedclup") == 1
    assert "clone the repository of plures" in complaint(capsys)


def test_papers_are_found_above_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(package, "__file__", str(tmp_path / "site-packages" / "plures" / "__init__.py"))
    (tmp_path / "checkout" / "papers" / "common").mkdir(parents=True)
    (tmp_path / "checkout" / "papers" / "common" / "reproduce.py").touch()
    (tmp_path / "checkout" / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "checkout" / "docs")

    assert reproduce.find_papers() == tmp_path / "checkout"


def test_another_folder_called_papers_is_not_taken_for_them(monkeypatch, tmp_path):
    monkeypatch.setattr(package, "__file__", str(tmp_path / "site-packages" / "plures" / "__init__.py"))
    (tmp_path / "papers").mkdir()

    assert reproduce.find_papers() is None
