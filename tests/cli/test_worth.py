"""``plures worth``: the answer from the command line; mistakes are one line."""

import json
import re
from io import StringIO
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from rich.status import Status
from typed import complaint, plures

from plures.cli import advise as worth_module


def test_the_answer_and_its_files(tmp_path, capsys):
    assert plures("worth", "linear_clusters", "--lams", "9", "--out", "out") == 0

    said = " ".join(capsys.readouterr().out.split())
    facts = json.loads((tmp_path / "out" / "summary.json").read_text())
    clients = pl.read_csv(tmp_path / "out" / "clients.csv")
    assert "yes, but in groups: one model for each of 4 clusters of clients" in said
    assert f"lam = {facts['lam']:.3g}" in said
    assert "the rows of all clients are read in one place" in said
    assert "auto each" in said
    assert "... 8 more" in said
    assert facts["verdict"] == facts["family"] == "clusters"
    assert clients.height == 16
    assert pl.read_csv(tmp_path / "out" / "served.csv")["why"].to_list() == ["held out"] * 4
    assert clients["loss_auto"].mean() == pytest.approx(facts["ways"]["auto"]["test_loss"])
    assert pl.read_csv(tmp_path / "out" / "path.csv").height == 9
    assert (tmp_path / "out" / "worth.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_command_that_uses_lam_is_given_where_it_fits(capsys):
    assert plures("worth", "linear_offsets", "--lams", "5", "--out", "out") == 0
    fits = capsys.readouterr().out
    assert plures("worth", "linear_offsets", "--lams", "5", "--axes", "2", "--out", "out") == 0

    lam = json.loads(Path("out/summary.json").read_text())["lam"]
    assert lam > 0
    said = re.search(r"to use it: plures (.*)", fits)[1].split()
    assert said[:5] == ["compare", "--data", "linear_offsets", "--model", "least_squares:ridge=0.01"]
    assert plures(*said, "--rounds", "9", "--seeds", "1", "--out", "compared") == 0
    assert "to use it" not in capsys.readouterr().out.split("picture")[0]


def test_a_line_tells_the_stage(monkeypatch):
    """The line is drawn a few times a second; here at every change."""
    screen, told = Console(file=StringIO(), force_terminal=True, width=100), Status.update
    monkeypatch.setattr(worth_module, "console", screen)
    monkeypatch.setattr(Status, "update", lambda status, text: (told(status, text), status._live.refresh()))

    assert plures("worth", "linear_clusters", "--lams", "5", "--out", "out") == 0

    shown = screen.file.getvalue()
    for stage in ("families: ", "statistics: ", "path: models at 5 strengths", "valid rows, test rows: "):
        assert stage in shown


def test_classes_on_principal_axes(tmp_path, capsys):
    arguments = ["--loss", "logistic", "--axes", "2", "--weighting", "examples", "--ridge", "0.1", "--lams", "5"]
    assert plures("worth", "logistic_clusters", *arguments, "--out", "out") == 0

    assert "accuracy" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["metric"] == "accuracy"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["linear_clusters", "--loss", "hinge"], "no loss is called 'hinge'"),
        (["linear_clusters", "--loss", "poisson"], "the targets of poisson must be 0 or more"),
        (["linear_clusters", "--axes", "0"], "axes must be 1 or more, got 0"),
        (["linear_clusters", "--ridge", "-1"], "ridge must be 0 or more"),
        (["linear_clusters", "--weighting", "rows"], "no weighting is called 'rows'"),
        (["linear_clusters", "--valid-share", "1.5"], "valid_share must be a number between 0 and 1, got 1.5"),
        (["linear_clusters", "--lams", "1"], "lams must be 2 or more, got 1"),
        (["linear_clusters", "--limit", "0"], "limit must be a number of seconds above 0, got 0"),
        (["digits"], "a model would have 650 numbers, more than 400"),
        (["mean_estimation"], "these clients have no input columns"),
        (["density"], "linear models of a density task cannot be compared"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments, said, tmp_path, capsys):
    assert plures("worth", *arguments, "--out", "out") == 1
    assert said in complaint(capsys)
    assert not (tmp_path / "out").exists()
