"""Tuned studies, studies of all methods, and the resolved study, as a user types them."""

import json
import tomllib
from pathlib import Path

import polars as pl
import pytest
from typed import plures

from plures.app import claim, read_study, running
from plures.errors import UserError
from plures.registry import METHODS
from plures.study.tuning import hyperparameters as tuning
from plures.study.tuning.outcomes import Outcome

DATA = [
    "--data",
    "logistic_clusters:num_clients=4,rows=20",
    "--hold-out",
    "0",
    "--model",
    "logistic",
    "--batch",
    "0",
]
QUICK = [*DATA, "--rounds", "2", "--seeds", "1", "--executor", "vectorized"]


@pytest.fixture
def pretended(monkeypatch):
    """Trials that are not run, in which small steps are best; a list of those that were asked for."""
    asked = []

    def outcome_of(method, reason, runs, tells, run):
        asked.append(method)
        return Outcome(runs[0].rounds, 1 / (1 + method.plan.lr), 0.5)

    monkeypatch.setattr(tuning, "outcome_of", outcome_of)
    return asked


@pytest.fixture
def stopped(monkeypatch):
    """Comparisons that end when they would begin; a list of what they were given."""
    asked = []

    def plan_grid(methods, *args, **settings):
        asked.append((methods, settings))
        raise UserError("stopped here")

    monkeypatch.setattr(running.grid, "plan_grid", plan_grid)
    return asked


def test_a_tuned_study_says_its_budget_and_its_choice_and_keeps_them(found_steps, pretended, capsys):
    assert plures("compare", "-m", "fedavg", "--tune", "3", *QUICK, "--out", "out") == 0

    trials = pl.read_parquet("out/tuning/trials.parquet")
    chosen = trials.filter("chosen").row(0, named=True)
    center = json.loads(Path("out/tuning/steps.json").read_text())["common"]
    said = capsys.readouterr().out
    header = json.loads(pl.read_parquet_metadata("out/runs/fedavg/seed-0/record.parquet")["plures"])
    assert f"step size {center:g} found by a race of fedavg over " in said
    assert "tuning: each method: 3 trials, 6 rounds (random search)" in said
    assert f"lr={chosen['lr']:g} (valid accuracy " in said
    assert chosen["lr"] == trials["lr"].min() < center
    assert header["config"]["tuned"] == {"fedavg": ["fedavg", chosen["lr"]]}
    assert (
        f"{chosen['lr']}" in json.loads(Path("out/runs/fedavg/seed-0/done.json").read_text())["identity"]["method"]
    )


def test_a_resumed_study_does_not_tune_again(pretended, stopped, capsys):
    plures("compare", "-m", "ditto", "--tune", "3", *QUICK, "--out", "out")
    done = len(pretended)

    plures("resume", "out")

    (first, _), (second, _) = stopped
    assert (done, len(pretended)) == (3, 3)
    assert list(first) == list(second) == ["ditto"]
    assert first["ditto"].plan == second["ditto"].plan


def test_the_resolved_study_stands_beside_the_results_and_runs_as_the_same(pretended, stopped, capsys):
    plures("compare", "-m", "all", "--tune", "3", *QUICK, "--out", "out")
    plures("run", "out/study.toml", "--out", "again")

    study = read_study(Path("out/study.toml"))
    assert Path("again/study.toml").read_text() == Path("out/study.toml").read_text()
    assert "all" not in study.methods
    assert (study.tune.strategy, study.model, study.plan.epochs) == ("random", "logistic", 2)


def test_methods_that_do_not_fit_are_left_out_with_their_reason(stopped, capsys):
    assert plures("compare", "-m", "all", *QUICK, "--out", "out") == 1

    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out: ")]
    names = tomllib.loads(Path("out/study.toml").read_text())["methods"]
    left_out = [line.split(": ")[1] for line in said]
    assert list(stopped[0][0]) == names
    assert sorted([*names, *left_out]) == sorted(METHODS)
    assert "fedavg" in names
    assert any(line.startswith("left out: fedper: ") for line in said)


def test_the_resolved_study_goes_on_in_its_own_folder_with_other_ways_to_run_it(stopped):
    short = [one for one in QUICK if one not in ("--model", "logistic")]
    plures("compare", "-m", "fedavg", *short, "--out", "out")
    text = Path("out/study.toml").read_text().replace('executor = "vectorized"', 'executor = "auto"')
    Path("other.toml").write_text("keep_models = false\ncheckpoint_every = 1\n" + text)

    assert plures("run", "out/study.toml", "--out", "out") == 1
    assert plures("run", "other.toml", "--out", "out") == 1

    assert len(stopped) == 3


def test_a_folder_of_another_command_is_not_taken(tmp_path):
    claim(tmp_path, {"rounds": 3, "command": "decide"})

    with pytest.raises(UserError, match="holds a study with other settings"):
        claim(tmp_path, {"rounds": 3})
