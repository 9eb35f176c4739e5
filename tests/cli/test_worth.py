"""``plures worth``: the answer from the command line; mistakes are one line."""

import json

import polars as pl
import pytest
from typed import complaint, plures


def test_the_answer_and_its_files(tmp_path, capsys):
    assert plures("worth", "linear_clusters", "--lams", "9", "--out", "out") == 0

    said = " ".join(capsys.readouterr().out.split())
    facts = json.loads((tmp_path / "out" / "summary.json").read_text())
    clients = pl.read_csv(tmp_path / "out" / "clients.csv")
    assert "no: train alone" in said
    assert f"lam = {facts['lam']:.3g}" in said
    assert "from one round of local estimates: lam =" in said
    assert "auto each" in said
    assert "... 12 more" in said
    assert facts["verdict"] == "alone"
    assert clients.height == 20
    assert clients["loss_auto"].mean() == pytest.approx(facts["ways"]["auto"]["test_loss"])
    assert pl.read_csv(tmp_path / "out" / "path.csv").height == 9
    assert (tmp_path / "out" / "worth.png").stat().st_size > 10_000


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
        (["digits"], "a model would have 650 numbers, more than 400"),
        (["density"], "linear models of a density task cannot be compared"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments, said, tmp_path, capsys):
    assert plures("worth", *arguments, "--out", "out") == 1
    assert said in complaint(capsys)
    assert not (tmp_path / "out").exists()
