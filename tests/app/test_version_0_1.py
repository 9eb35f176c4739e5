"""A folder that version 0.1 wrote is shown, reported, exported from and gone on with."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import plures
from plures.cli import run as command
from plures.study import grid

KEPT = Path(__file__).parent / "written_by_0_1"


@pytest.fixture
def folder(tmp_path):
    """A copy that may be changed."""
    return Path(shutil.copytree(KEPT, tmp_path / "old"))


@pytest.mark.parametrize("words", [["show"], ["show", "--client", "0"], ["report"], ["export", "--list"]])
def test_it_is_shown(folder, capsys, words):
    assert command([words[0], str(folder), *words[1:]]) == 0

    assert "fedavg" in capsys.readouterr().out


def test_its_leaderboard_is_the_one_that_was_written(folder):
    found = plures.open_study(folder)

    written = json.loads((folder / "summary.json").read_text())["leaderboard"]
    assert [row["mean"] for row in written] == pytest.approx(found.leaderboard["mean"].to_list())
    assert [row["method"] for row in written] == found.leaderboard["method"].to_list()


def test_a_model_is_exported_that_predicts_as_the_one_that_was_exported(folder):
    x = np.random.default_rng(0).normal(size=(5, 8, 8)).astype(np.float32)
    before = plures.load_model(folder / "models" / "fedavg" / "seed-0" / "client-001").predict(x)

    (place,) = plures.open_study(folder).export("client-001", method="fedavg", out=folder / "again")

    assert np.array_equal(np.asarray(plures.load_model(place).predict(x)), np.asarray(before))


def test_it_goes_on_and_only_what_is_missing_is_run(folder, monkeypatch, capsys):
    whole = pl.read_parquet(folder / "clients.parquet")
    shutil.rmtree(folder / "runs" / "local_only" / "seed-1")
    runs, run_one = [], grid.run_one
    monkeypatch.setattr(grid, "run_one", lambda *given, **more: (runs.append(given[0]), run_one(*given, **more))[1])

    assert command(["resume", str(folder)]) == 0

    assert runs == ["local_only"]
    # The run that is missing is made anew: its batches are spread evenly since, so that its scores are not those of then.
    kept = (pl.col("method") != "local_only") | (pl.col("seed") != 1)
    found = pl.read_parquet(folder / "clients.parquet")
    assert found.filter(kept)["personal_test_loss"].equals(whole.filter(kept)["personal_test_loss"])
    assert found.filter(~kept)["personal_test_loss"].is_finite().all()


def test_other_settings_are_refused(folder, capsys):
    settings = json.loads((folder / "study.json").read_text())
    settings.pop("together")

    with pytest.raises(plures.errors.BadFile, match=r"holds a study with other settings \(rounds\)"):
        plures.Study(**{**settings, "rounds": 3, "patience": 0}).run(folder)
