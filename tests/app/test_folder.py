"""A study in Python runs, is opened, goes on, is reported and exported; its folder is that of the command."""

import ast
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import optax
import polars as pl
import pytest
from layers import LEVEL, files, named, parsed, part_of
from written import COMMAND

import plures
from plures.app import study as studies
from plures.app.study import Study
from plures.cli import run as command
from plures.cli.study_options import study_of
from plures.errors import BadFile, UserError
from plures.methods.fedavg import fedavg
from plures.report import page_data
from plures.study import comparison, grid
from plures.study.disk import layout
from plures.types import Plan

WORLD = {"num_clients": 4, "num_groups": 1, "rows": 12, "dim": 3}
DATA = {"name": "linear_clusters", "options": WORLD, "hold_out": 1}
ASKED = {
    "data": DATA,
    "methods": ["local_only", "fedavg"],
    "rounds": 2,
    "seeds": [0, 1],
    "eval_every": 2,
    "plan": {"lr": 0.1},
    "patience": 0,
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study that ran from Python."""
    return Study(**ASKED).run(tmp_path_factory.mktemp("studies") / "mine")


def names_in(folder):
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def test_a_study_in_python_gives_its_results(study):
    assert study.clients.height == 2 * 2 * 4
    assert set(study.leaderboard["method"]) == {"local_only", "fedavg"}
    assert study.recommendation.advice in ("local_only", "fedavg")
    assert study.settings["rounds"] == 2


def test_a_client_is_found_by_name_and_by_uid(study):
    name = study.clients.filter(pl.col("uid") == 1)["name"][0]

    assert study.client(1).equals(study.client(name), null_equal=True)
    assert study.client(1).height == 4


def test_two_folders_are_held_against_each_other(study, tmp_path):
    same = study.diff(plures.open_study(study.path))
    other = Study(**{**ASKED, "methods": ["local_only"], "rounds": 1}).run(tmp_path / "shorter")

    assert (same.same, same.settings, len(same.pairs)) == (True, (), 2)
    assert study.diff(other).settings == (("rounds", "2", "1"),)
    assert study.diff(other).only_here == ("fedavg",)


def test_mistakes_in_the_settings_are_told_in_one_line():
    with pytest.raises(UserError) as error:
        Study(rounds=0, metods=["fedavg"])

    assert "\n" not in str(error.value)
    assert "rounds" in str(error.value)
    assert "metods" in str(error.value)


def test_the_command_leaves_the_same_files_and_tables(study, tmp_path, capsys):
    file = tmp_path / "study.toml"
    file.write_text((study.path / "study.toml").read_text())

    assert command(["run", str(file), "--out", str(tmp_path / "out")]) == 0

    assert names_in(tmp_path / "out") == names_in(study.path)
    theirs = pl.read_parquet(tmp_path / "out" / "clients.parquet")
    assert theirs.equals(study.clients, null_equal=True)


def test_an_opened_study_has_what_it_had_when_it_ran(study):
    again = plures.open_study(study.path)

    assert again.clients.equals(study.clients, null_equal=True)
    assert again.recommendation == study.recommendation
    assert again.saved.curves.equals(study.saved.curves)
    assert again.saved.missing == study.saved.missing
    assert page_data.page_of(again.saved) == page_data.page_of(study.saved)


def test_a_clients_model_scores_what_the_table_says(study):
    model = plures.open_study(study.path).model("fedavg", 0)
    seen, _ = Study(**ASKED).federations()
    first, number = seen.start[0, 2], seen.count[0, 2]

    outputs = np.asarray(model.predict(seen.x[first : first + number])).reshape(number)

    row = study.clients.filter(pl.col("method") == "fedavg", pl.col("seed") == 0, pl.col("uid") == 0)
    error = (outputs - seen.y[first : first + number].reshape(number)) ** 2
    assert row["personal_test_loss"][0] == pytest.approx(float(error.mean()) / 2, rel=1e-4)


def test_models_are_exported_and_loaded(study, tmp_path):
    found = study.export(0, method="fedavg", out=tmp_path / "models")

    (place,) = found
    x = Study(**ASKED).federations()[0].x[:3]
    ours, theirs = plures.load_model(place).predict(x), study.model("fedavg", 0).predict(x)
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def test_a_study_that_stopped_goes_on_from_python(study, tmp_path, monkeypatch):
    calls = []

    def stops(*given, **more):
        calls.append(given[0])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run_one(*given, **more)

    run_one = grid.run_one
    monkeypatch.setattr(grid, "run_one", stops)
    with pytest.raises(KeyboardInterrupt):
        Study(**ASKED).run(tmp_path)
    half = plures.open_study(tmp_path)

    whole = half.resume()

    assert "finish the study with: plures resume" in " ".join(half.saved.missing)
    assert len(calls) == 5
    assert whole.clients.equals(study.clients, null_equal=True)


def test_methods_are_built_once_and_statistics_computed_once(tmp_path, monkeypatch):
    counts = Counter()

    def counted(module, name):
        real = getattr(module, name)

        def call(*given, **options):
            counts[name] += 1
            return real(*given, **options)

        monkeypatch.setattr(module, name, call)

    counted(studies, "build_method")
    counted(grid, "build_method")
    counted(comparison, "all_pairs")
    counted(comparison, "bootstrap")

    study = Study(**ASKED).run(tmp_path)
    study.report()

    # For each of two methods: its mean, its gain over training alone and its gain over one model for all. The best is
    # looked for on valid and on test rows, and the table of pairs is a third comparison.
    assert counts == {"build_method": 2, "all_pairs": 3, "bootstrap": 2 * 3}


def test_a_folder_of_compare_is_that_of_the_command(study, tmp_path, capsys):
    seen, unseen = Study(**ASKED).federations()
    plan = Plan(epochs=2, batch=10, lr=0.1)

    result = plures.compare(
        ["local_only", "fedavg"], seen, unseen=unseen, rounds=2, seeds=[0, 1], plan=plan, eval_every=2, out=tmp_path
    )

    assert result.clients.equals(study.clients, null_equal=True)
    assert names_in(tmp_path) == names_in(study.path)
    for words in (["show"], ["report"], ["resume"], ["export", "--client", "0"]):
        assert command([words[0], str(tmp_path), *words[1:]]) == 0
    assert "made in Python" not in capsys.readouterr().out


def test_compare_says_which_defaults_of_the_command_are_not_its_own():
    """Given, they are those of the test above; a study has the command's."""
    study, said = Study(), " ".join(plures.compare.__doc__.split())

    with COMMAND.commands["compare"].make_context("compare", []) as context:
        typed = study_of(context.params)

    assert typed == study
    assert (Plan().epochs, Plan().batch) != (study.plan.epochs, study.plan.batch)
    assert f"({study.plan.epochs} epochs in batches of {study.plan.batch}, every {study.eval_every} rounds" in said
    assert f"{study.patience} evaluations)" in said


def test_what_no_text_can_name_is_said_in_words_and_can_be_given_again(tmp_path, capsys):
    world = plures.data.load("linear_clusters", **WORLD)
    mine = plures.Federation(**{**vars(world), "source": None})
    method = fedavg(plures.builders.build_model("least_squares", mine), plan=Plan(optimizer=optax.adamw))
    plures.compare({"my own": method}, mine, rounds=1, seeds=[0], out=tmp_path)

    settings = json.loads((tmp_path / "study.json").read_text())
    assert set(settings["python"]) == {"data", "methods", "optimizer"}
    assert command(["show", str(tmp_path)]) == 0
    assert command(["report", str(tmp_path)]) == 0
    capsys.readouterr()
    assert command(["export", str(tmp_path), "--client", "0"]) == 1
    assert command(["resume", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.count("was written from Python with what no text can name") == 2
    opened = plures.open_study(tmp_path, federation=mine, methods={"my own": method})
    (place,) = opened.export(0)
    assert plures.load_model(place, method=method).predict(mine.x[:2]).shape[0] == 2


def test_compare_adds_methods_and_seeds_to_its_folder(tmp_path):
    world = plures.data.load("linear_clusters", **WORLD)
    plures.compare(["fedavg"], world, rounds=1, seeds=[0], out=tmp_path)

    more = plures.compare(["fedavg", "local_only"], world, rounds=1, seeds=[0, 1], out=tmp_path)

    assert more.clients.height == 2 * 2 * 4
    with pytest.raises(BadFile, match="other settings"):
        plures.compare(["fedavg"], world, rounds=2, seeds=[0], out=tmp_path)


def test_running_knows_no_name_of_a_file():
    """They stand in one place, plures.study.disk.layout, for all that is above the engine."""
    names = {one for one in vars(layout).values() if isinstance(one, str) and re.fullmatch(r"\w+\.\w+", one)}
    above = [path for path in files() if LEVEL[part_of(path)] > LEVEL["engine"] and part_of(path) != "papers"]
    offenders = [
        f"{named(path, node)}: {node.value}"
        for path in above
        if path != Path(layout.__file__)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and node.value in names
    ]

    assert {layout.DONE, layout.RESOLVED, layout.PAGE, layout.ABOUT} <= names
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("method", "seed", "said"), [("nope", None, "method of this study"), ("fedavg", 7, "seed")]
)
def test_a_model_of_a_run_that_is_not_there_is_refused(study, method, seed, said):
    with pytest.raises(UserError, match=said):
        study.model(method, 0, seed=seed)


def test_a_comparison_that_is_refused_leaves_the_folder_as_it_was(tmp_path, found_steps):
    """The step sizes that it found are no longer those of the runs that lie there."""
    federation = plures.data.load("linear_clusters", num_clients=4, rows=20)
    settings = {"seeds": [0], "references": False}
    plures.compare(["fedavg", "local_only"], federation, rounds=2, out=tmp_path, **settings)
    chosen = (tmp_path / "tuning" / "chosen.json").read_text()

    with pytest.raises(plures.errors.UserError):
        plures.compare(["fedavg", "local_only"], federation, rounds=40, out=tmp_path, **settings)

    assert (tmp_path / "tuning" / "chosen.json").read_text() == chosen
