"""``plures fuse``: clusters found and proved from the command line; mistakes are one line."""

import json

import polars as pl
import pytest
from typed import complaint, plures


def test_groups_are_found_and_proved(tmp_path, capsys):
    assert plures("fuse", "ellipses", "--loss", "squared_hinge", "--lams", "12", "--out", "out") == 0

    said = " ".join(capsys.readouterr().out.split())
    facts = json.loads((tmp_path / "out" / "summary.json").read_text())
    clients = pl.read_csv(tmp_path / "out" / "clients.csv")
    assert "3 clusters of 20, 20, 20 clients" in said
    assert "proved: these are the clusters of the exact solution" in said
    assert facts["exact"]
    assert facts["sizes"] == [20, 20, 20]
    assert facts["fused"] > facts["alone"] > facts["global"]
    assert clients["fused"].mean() == pytest.approx(facts["fused"])
    assert clients.group_by("cluster").len()["len"].to_list() == [20, 20, 20]
    assert pl.read_csv(tmp_path / "out" / "path.csv")["exact"].all()
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {"path.png", "clusters.png", "bands.png"}


def test_above_alpha_hat_it_is_the_global_model(capsys):
    assert plures("fuse", "ellipses", "--lam", "1.5", "--out", "out") == 0

    assert "this is the global model" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ellipses", "--lam", "-1"], 'lam must be "auto" or a positive number'),
        (["ellipses", "--lam", "much"], "lam must be \"auto\" or a positive number, got 'much'"),
        (["ellipses", "--graph", "star"], "no graph is called 'star'"),
        (["ellipses", "--loss", "hinge"], "no loss is called 'hinge'"),
        (["ellipses", "--select", "aic"], "no selector is called 'aic'"),
        (["ellipses", "--axes", "0"], "axes must be 1 or more, got 0"),
        (["ellipses", "--loss", "poisson", "--ridge", "-1"], "ridge must be 0 or more"),
        (["digits"], "a model would have 650 numbers, more than 400"),
        (["density"], "linear models of a density task cannot be fused"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments, said, tmp_path, capsys):
    assert plures("fuse", *arguments, "--out", "out") == 1
    assert said in complaint(capsys)
    assert not (tmp_path / "out").exists()
