"""A study read back from its folder: whole, half written, damaged, or from another version."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
from studies import client_table, write_run, write_study

from plures._version import __version__
from plures.engine.identity import Identity
from plures.errors import BadFile
from plures.study.disk.layout import run_folder
from plures.study.disk.results import read_results
from plures.study.disk.runs import read_finished

SCORES = {"local_only": np.linspace(0.3, 0.7, 12), "fedavg": np.linspace(0.5, 0.9, 12)}


@pytest.fixture
def folder(tmp_path):
    return write_study(tmp_path / "study", SCORES, unseen=2)


def test_a_whole_study_comes_back(folder):
    saved = read_results(folder)

    assert saved.missing == ()
    assert saved.seeds == [0, 1]
    assert saved.result.methods == list(SCORES)
    np.testing.assert_allclose(saved.result.scores("fedavg")[1], SCORES["fedavg"][:10] + 0.01)
    assert saved.result.seconds == {"local_only": 3.0, "fedavg": 3.0}


def test_curves_are_means_over_clients_in_training_with_their_megabytes(folder):
    mine = read_results(folder).curves.filter(pl.col("method") == "fedavg", pl.col("seed") == 0)

    assert mine["round"].to_list() == [2, 4, 6]
    np.testing.assert_allclose(mine["mean"], SCORES["fedavg"][:10].mean() * np.array([1, 2, 3]) / 3, rtol=1e-6)
    np.testing.assert_allclose(mine["mb"], [1 / 3, 2 / 3, 1])


def test_megabytes_that_were_not_recorded_follow_the_rounds(folder):
    for file in folder.glob("runs/*/*/info.parquet"):
        file.unlink()

    mine = read_results(folder).curves.filter(pl.col("method") == "fedavg", pl.col("seed") == 0)

    np.testing.assert_allclose(mine["mb"], [1 / 3, 2 / 3, 1])


def test_a_run_that_is_not_finished_is_said_and_its_seed_left_out(folder):
    (run_folder(folder, "fedavg", 1) / "done.json").unlink()

    saved = read_results(folder)

    assert saved.seeds == [0]
    assert "fedavg, seed 1: not finished" in saved.missing
    assert "local_only, seed 1: left out, the other methods have not finished it" in saved.missing
    assert f"finish the study with: plures resume {folder}" in saved.missing


def test_a_run_that_was_never_started_is_said(folder):
    shutil.rmtree(folder / "runs" / "fedavg")

    missing = read_results(folder).missing

    assert "fedavg, seed 0: not started" in missing
    assert f"finish the study with: plures resume {folder}" in missing


def test_methods_that_the_settings_do_not_name_stand_in_the_file_beside_them(folder):
    settings = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**settings, "methods": None}))
    (folder / "study.toml").write_text('methods = ["local_only", "fedavg", "ditto"]\n')

    assert "ditto, seed 1: not started" in read_results(folder).missing


@pytest.mark.parametrize("column", ["seen", "bytes_down", "personal_test_loss"])
def test_a_table_that_lacks_a_column_is_left_out_by_name(folder, column):
    file = run_folder(folder, "fedavg", 0) / "clients.parquet"
    pl.read_parquet(file).drop(column).write_parquet(file)

    said = f"fedavg, seed 0: its table of clients has no {column}: another version wrote it"
    assert said in read_results(folder).missing


@pytest.mark.parametrize("name", ["info.parquet", "record.parquet"])
def test_without_a_record_there_are_scores_but_no_curve(folder, name):
    for file in folder.glob(f"runs/fedavg/*/{name}"):
        file.write_bytes(b"not a table")

    saved = read_results(folder)

    assert saved.result.methods == list(SCORES)
    assert ("fedavg" in saved.curves["method"].to_list()) == (name == "info.parquet")


@pytest.mark.parametrize("text", ["[]", "{}", '{"seconds": null, "mark": "x"}', "{"])
def test_a_damaged_mark_is_a_damaged_run(folder, text):
    (run_folder(folder, "fedavg", 0) / "done.json").write_text(text)

    assert any(line.startswith("fedavg, seed 0: its files are damaged") for line in read_results(folder).missing)


def test_a_damaged_run_is_run_again_rather_than_read(folder):
    place = run_folder(folder, "fedavg", 0)
    (place / "done.json").write_text(json.dumps({"seconds": 1.0, "identity": {"rounds": "2"}}))
    identity = Identity({"rounds": "2"})
    assert read_finished(place, identity) is not None
    (place / "clients.parquet").write_bytes(b"not a table")

    assert read_finished(place, identity) is None


def test_a_method_with_other_clients_is_left_out(folder):
    write_run(folder, "ditto", 0, client_table(SCORES["fedavg"][:5]))
    write_run(folder, "ditto", 1, client_table(SCORES["fedavg"][:5]))

    saved = read_results(folder)

    assert saved.result.methods == list(SCORES)
    assert "ditto: left out, it has other clients than the rest" in saved.missing


def test_results_of_another_command_are_refused(folder):
    settings = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**settings, "command": "tradeoff"}))

    with pytest.raises(BadFile, match="holds results of plures tradeoff"):
        read_results(folder)


def test_a_method_without_a_common_seed_is_left_out(tmp_path):
    folder = write_study(tmp_path, SCORES)
    write_run(folder, "ditto", 7, client_table(SCORES["fedavg"]))

    saved = read_results(folder)

    assert saved.result.methods == list(SCORES)
    assert "ditto: left out, it has finished no seed that the others have" in saved.missing


def test_damaged_files_are_said(folder):
    (run_folder(folder, "fedavg", 0) / "clients.parquet").write_bytes(b"not a table")

    saved = read_results(folder)

    assert any(line.startswith("fedavg, seed 0: its files are damaged") for line in saved.missing)
    assert saved.seeds == [1]


@pytest.mark.parametrize(("text", "said"), [(None, "there is no study.json"), ("{", "study.json is damaged")])
def test_without_settings_the_results_are_still_shown(folder, text, said):
    if text is None:
        (folder / "study.json").unlink()
    else:
        (folder / "study.json").write_text(text)

    saved = read_results(folder)

    assert any(line.startswith(said) for line in saved.missing)
    assert saved.result.leaderboard.height == 2


def test_another_version_is_said(tmp_path):
    write_run(tmp_path, "fedavg", 0, client_table(SCORES["fedavg"]), version="0.0.1")

    assert f"written by plures 0.0.1, read by {__version__}" in read_results(tmp_path).missing


def test_a_record_that_says_nothing_of_itself_is_read(folder):
    """An older version wrote no header: metric and direction follow from the columns."""
    for file in folder.glob("runs/*/*/record.parquet"):
        pl.read_parquet(file).write_parquet(file)

    saved = read_results(folder)

    assert "written by a version that did not say its own" in saved.missing
    assert (saved.result.metric, saved.result.higher_is_better) == ("accuracy", True)


@pytest.mark.parametrize("column", ["attacker", "byzantine"], ids=["now", "version 0.1"])
def test_an_attack_is_remembered(folder, column):
    for file in folder.glob("runs/*/*/clients.parquet"):
        pl.read_parquet(file).with_columns((pl.col("uid") < 2).alias(column)).write_parquet(file)
    settings = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**settings, "attack": ["sign-flip:0.2"]}))

    attackers = read_results(folder).result.attackers

    assert attackers is not None
    assert (attackers.attacks, attackers.num_attackers, attackers.num_clients) == (("sign_flip",), 2, 10)


def test_no_folder_and_no_runs_are_refused(tmp_path):
    with pytest.raises(BadFile, match="there is no folder"):
        read_results(tmp_path / "nowhere")
    with pytest.raises(BadFile, match="holds no study"):
        read_results(tmp_path)


def test_a_study_without_a_finished_run_is_refused_with_the_way_on(folder):
    for file in folder.glob("runs/*/*/done.json"):
        file.unlink()

    with pytest.raises(BadFile, match="holds no finished run; go on with: plures resume"):
        read_results(folder)


def test_labels_too_long_for_a_folder_are_kept_apart_and_read_back_whole(tmp_path):
    long = [f"fedavg{'|finetune:epochs=1' * 20}{end}" for end in ("", "|guard")]

    saved = read_results(write_study(tmp_path / "study", {name: np.linspace(0.3, 0.7, 6) for name in long}))

    assert saved.result.methods == long
    assert saved.missing == ()
    assert all(len(path.name) <= 200 for path in (tmp_path / "study" / "runs").iterdir())
