"""``plures export``: a client's model out of a study's folder, and what is said where there is none."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
from typed import complaint, plures

from plures import cli, load_model
from plures.app import make_study
from plures.app.folder import folder_name
from plures.study.disk import layout

QUICK = ["--rounds", "1", "--seeds", "2", "--hold-out", "1", "--executor", "vectorized", "--model", "softmax"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The folder of a study with one method and two seeds."""
    out = tmp_path_factory.mktemp("study") / "out"
    track = ["--track", f"tensorboard:{out.parent / 'board'}"]
    code = cli.run(["compare", "--data", "logistic_clusters", "-m", "fedavg", *QUICK, *track, "--out", str(out)])
    assert code == 0
    return out


def copied(study, tmp_path):
    return shutil.copytree(study, tmp_path / "copy", ignore=shutil.ignore_patterns("models"))


def rows_of(study, name):
    """The test rows of a client, as the study has them."""
    seen, unseen = make_study(json.loads((study / "study.json").read_text())).federations()
    return (seen if name in seen.names else unseen).rows_of(name, "test")


def accuracy_in_table(study, name, *, method="fedavg", seed=0):
    table = pl.read_parquet(study / "clients.parquet")
    wanted = {"method": method, "seed": seed, "name": name}
    return table.filter(*(pl.col(key) == value for key, value in wanted.items()))["personal_test_accuracy"].item()


def names_of(study):
    seen, unseen = make_study(json.loads((study / "study.json").read_text())).federations()
    return seen.names, unseen.names


def test_an_exported_model_scores_what_the_study_said(study, tmp_path):
    (first, *_), (held, *_) = names_of(study)

    assert plures("export", str(study), "--client", first, "--client", held, "--out", "out") == 0

    for name in (first, held):
        x, y = rows_of(study, name)
        found = (np.asarray(load_model(tmp_path / "out" / name).predict(x)).argmax(-1) == y).mean()
        assert found == pytest.approx(accuracy_in_table(study, name))


def test_a_tracker_given_on_the_command_line_follows_every_run(study):
    for seed in (0, 1):
        assert list((study.parent / "board" / "fedavg" / f"seed-{seed}").glob("events.*"))


def test_method_and_seed_choose_the_run(study, tmp_path):
    name = names_of(study)[0][0]

    assert plures("export", str(study), "--client", "0", "-m", "fedavg", "--seed", "1", "--out", "out") == 0

    about = load_model(tmp_path / "out" / name).about
    assert (about["uid"], about["method"], about["seed"]) == (0, "fedavg", 1)


def test_the_best_that_is_not_an_oracle_is_the_default_and_its_lineage_is_stored(study, tmp_path):
    folder = copied(study, tmp_path)
    name = names_of(study)[0][0]
    (folder / "summary.json").write_text(json.dumps({"leaderboard": [{"method": "oracle"}, {"method": "fedavg"}]}))

    assert plures("export", str(folder), "--client", name) == 0

    about = load_model(folder / "models" / "fedavg" / "seed-0" / name).about
    identity = json.loads((study / "runs" / "fedavg" / "seed-0" / "done.json").read_text())["identity"]
    assert about["lineage"] == {"study": "copy", "run": "runs/fedavg/seed-0", "identity": identity}


def test_a_tuned_method_is_built_as_it_was_chosen(study, tmp_path):
    folder = copied(study, tmp_path)
    chosen = folder / layout.TUNING / layout.CHOSEN
    chosen.write_text(json.dumps({"chosen": {"fedavg": {"method": "fedavg:momentum=0.0", "lr": 0.1}}}))

    assert plures("export", str(folder), "--client", "0", "--out", "out") == 0

    assert load_model(tmp_path / "out" / names_of(study)[0][0]).about["method"] == "fedavg:momentum=0.0"


def test_all_clients_are_exported_and_listed(study, tmp_path, capsys):
    folder = copied(study, tmp_path)
    seen, unseen = names_of(study)

    assert plures("export", str(folder), "--list") == 0
    assert "exported: none yet" in capsys.readouterr().out
    assert plures("export", str(folder), "--all") == 0
    assert plures("export", str(folder), "--list") == 0

    said = capsys.readouterr().out
    assert f"{len(seen) + len(unseen)} models of fedavg, seed 0" in said.replace("\n", " ")
    assert all(name in said for name in (*seen, *unseen))
    assert "kept states:" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--client", "nobody"], "no client is called 'nobody'"),
        ([], "client must be a client's name or uid"),
        (["--all", "--client", "0"], "or --all instead"),
        (["--client", "0", "--seed", "7"], "seed must be one of 0, 1, got 7"),
        (["--client", "0", "-m", "fedavgg"], "no method of this study is called 'fedavgg'; did you mean 'fedavg'?"),
    ],
)
def test_what_is_not_there_is_refused(study, capsys, arguments, said):
    assert plures("export", str(study), *arguments) == 1
    assert said in complaint(capsys)


def test_a_folder_without_a_study_is_refused(tmp_path, capsys):
    assert plures("export", str(tmp_path), "--list") == 1
    assert "holds no study" in complaint(capsys)


def test_decisions_are_no_comparison(tmp_path, capsys):
    (tmp_path / "study.json").write_text(json.dumps({"command": "decide"}))

    assert plures("export", str(tmp_path), "--client", "0") == 1
    assert "is of plures decide; models are exported from a comparison" in complaint(capsys)


def test_a_study_that_kept_no_models_says_so(study, tmp_path, capsys):
    folder = copied(study, tmp_path)
    shutil.rmtree(folder / "runs" / "fedavg" / "seed-0" / "checkpoint")

    assert plures("export", str(folder), "--client", "0") == 1
    assert "kept no models; run the study again with --keep-models" in complaint(capsys)


def test_a_study_without_a_leaderboard_needs_a_method(study, tmp_path, capsys):
    folder = copied(study, tmp_path)
    (folder / "summary.json").unlink()

    assert plures("export", str(folder), "--client", "0") == 1
    assert "has no leaderboard yet; say --method" in complaint(capsys)


def test_data_that_are_gone_are_named(study, tmp_path, capsys):
    folder = copied(study, tmp_path)
    found = json.loads((folder / "study.json").read_text())
    found["data"]["name"] = str(tmp_path / "gone.csv")
    (folder / "study.json").write_text(json.dumps(found))

    assert plures("export", str(folder), "--client", "0") == 1
    assert "a model is made from the kept state and the client's data, and these are gone" in complaint(capsys)


@pytest.mark.parametrize(
    "more",
    [{}, {"tune": {"trials": 2}}, {"tune": {"trials": 2}, "plan": {"lr": 0.1}}],
    ids=["found", "both", "tuned"],
)
def test_a_study_without_the_step_sizes_that_it_chose_is_refused(study, tmp_path, capsys, more):
    folder = copied(study, tmp_path)
    (folder / layout.TUNING / layout.CHOSEN).unlink()
    found = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**found, **more}))

    assert plures("export", str(folder), "--client", "0") == 1
    assert "does not say what fedavg stands for" in complaint(capsys)


def test_one_damaged_model_is_said_and_the_others_are_listed(study, tmp_path, capsys):
    folder = copied(study, tmp_path)
    first, second, *_ = names_of(study)[0]
    assert plures("export", str(folder), "--client", first, "--client", second) == 0
    (folder / "models" / "fedavg" / "seed-0" / first / "model.json").write_text("{")
    capsys.readouterr()

    assert plures("export", str(folder), "--list") == 0

    said = capsys.readouterr().out
    assert "is damaged" in said
    assert said.count(second) == 1


def test_names_of_folders_keep_letters_differ_and_are_short():
    long = ["北" * 90 + end for end in ("a", "b")]

    names = [folder_name(one) for one in ("Zürich 1", "a/b", "..", *long)]

    assert names[:3] == ["Zürich 1", "a%2Fb", "%2E%2E"]
    assert len(set(names)) == 5
    assert all(len(one.encode()) <= 129 for one in names)
    assert names[3].startswith("北" * 40 + "~")
