"""plures run with a file that varies data and settings, and the commands that read its folder."""

import json
from importlib import import_module

import polars as pl
import pytest

import plures
from plures.app import Variant, running, several
from plures.cli import run, run_studies
from plures.errors import BadFile, UserError

FILE = """
methods = ["local_only", "fedavg"]
model = "least_squares"
seeds = [0, 1]
rounds = 2
executor = "vectorized"

[plan]
epochs = 1
batch = 0
lr = 0.1

[data]
name = "linear_clusters"
hold_out = 0
options = { num_clients = 6, rows = 12 }

[vary]
data.options.num_groups = [1, 3]
"""
ONE, THREE = (f"{place}-data.options.num_groups={number}" for place, number in ((1, 1), (2, 3)))


def said(capsys):
    """What was printed, without line breaks."""
    out, err = capsys.readouterr()
    return " ".join((out + err).split())


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("several") / "several.toml"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def played(file):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plures.cli.commands.keep_compilations", lambda: None)
        assert run(["run", str(file), "--out", str(file.parent / "out")]) == 0
    return file.parent / "out"


def test_every_variant_is_a_study_of_its_own(played):
    for folder, groups in ((ONE, 1), (THREE, 3)):
        study = json.loads((played / folder / "study.json").read_text())
        assert study["data"]["options"]["num_groups"] == groups
        assert (played / folder / "report.html").exists()
        assert pl.read_parquet(played / folder / "clients.parquet")["seed"].unique().sort().to_list() == [0, 1]


def test_the_table_of_all_has_the_leaderboards_of_each(played):
    table = pl.read_csv(played / "variants.csv")

    for folder, label in ((ONE, "data.options.num_groups=1"), (THREE, "data.options.num_groups=3")):
        mine = table.filter(pl.col("variant") == label)
        board = pl.read_csv(played / folder / "leaderboard.csv")
        assert mine.select("method", "mean", "low", "high").equals(board.select("method", "mean", "low", "high"))
    assert pl.read_parquet(played / "variants.parquet").height == table.height == 4
    assert (played / "report.html").exists()


def test_python_leaves_the_folder_of_the_command(played, file, tmp_path):
    found = plures.run_variants(file, tmp_path)

    theirs = plures.open_variants(played)
    assert files_in(tmp_path) == files_in(played)
    assert found.table.drop("seconds").equals(theirs.table.drop("seconds"), null_equal=True)
    assert found.sentences == theirs.sentences


def test_the_folder_of_several_is_not_opened_as_one(played):
    with pytest.raises(BadFile, match=r"holds several studies; plures\.open_variants opens them all"):
        plures.open_study(played)

    assert plures.open_study(played / ONE).settings["rounds"] == 2


def test_python_hears_of_one_that_fails_when_the_others_are_done(file, tmp_path):
    def play(one, folder):
        if folder.name == ONE:
            raise UserError("nobody is near anybody")
        one.study.run(folder)

    with pytest.raises(UserError, match=r"1 of 2 variants failed: data\.options\.num_groups=1"):
        plures.run_variants(file, tmp_path, run=play)

    assert list(plures.open_variants(tmp_path).studies) == ["data.options.num_groups=3"]


def test_what_is_done_is_not_played_again(played, monkeypatch, capsys):
    before = {path: path.stat().st_mtime_ns for path in played.rglob("done.json")}
    monkeypatch.setattr(import_module("plures.study.grid"), "run_one", lambda *_, **__: pytest.fail("played again"))

    assert run(["resume", str(played)]) == 0

    assert "variant 2 of 2: data.options.num_groups=3" in said(capsys)
    assert {path: path.stat().st_mtime_ns for path in played.rglob("done.json")} == before
    assert len(before) == 8


def test_other_settings_need_another_folder(played, file, capsys):
    other = file.parent / "other.toml"
    other.write_text(FILE.replace("rounds = 2", "rounds = 3").replace("[1, 3]", "[1, 2]"))

    assert run(["run", str(other), "--out", str(played)]) == 1

    assert "holds studies with other settings (rounds, vary); use another folder" in said(capsys)


def test_one_study_does_not_go_into_the_folder_of_several_nor_the_other_way(played, file, capsys):
    alone = file.parent / "alone.toml"
    alone.write_text(FILE.partition("[vary]")[0])
    assert run(["run", str(alone), "--out", str(played)]) == 1
    assert "holds several studies; use another folder" in said(capsys)

    assert run(["run", str(file), "--out", str(played / ONE)]) == 1
    assert "holds one study; use another folder for several" in said(capsys)


@pytest.mark.parametrize("command", ["report", "show"])
def test_the_folder_can_be_read_again(played, capsys, command):
    assert run([command, str(played)]) == 0

    text = said(capsys)
    assert "What to take in each variant" in text
    assert "report.html" in text


@pytest.mark.parametrize("words", [["show", "{}", "--client", "0"], ["diff", "{}", "{}"], ["export", "{}"]])
def test_one_of_the_studies_has_to_be_named_where_one_is_meant(played, capsys, words):
    assert run([word.format(played) for word in words]) == 1

    assert f"holds several studies; name one of them: {ONE}, {THREE}" in said(capsys)


def test_two_of_the_studies_can_be_held_against_each_other(played, capsys):
    assert run(["diff", str(played / ONE), str(played / THREE)]) == 0

    assert "num_groups" in said(capsys)


def test_nothing_starts_where_one_variant_is_wrong(file, monkeypatch, capsys):
    monkeypatch.setattr(running.grid, "plan_grid", lambda *_, **__: pytest.fail("started"))
    wrong = file.parent / "wrong.toml"
    wrong.write_text(FILE.replace("[1, 3]", "[1, 0]"))

    assert run(["run", str(wrong), "--out", str(file.parent / "wrong")]) == 1

    assert "line 19:" in said(capsys)
    assert not (file.parent / "wrong").exists()


def test_axes_in_another_order_are_the_same_studies(file, monkeypatch, capsys):
    """Also where one of them is a table in TOML, and with an empty section: what is read back is what was given."""
    text = FILE.replace("[vary]", "[tune]\n[vary]") + "rounds = [2, 3]\n"
    first, second = (file.parent / name for name in ("first.toml", "second.toml"))
    first.write_text(text)
    second.write_text(text.replace("data.options.num_groups = [1, 3]\n", "") + "data.options.num_groups = [1, 3]\n")
    asked = []
    monkeypatch.setattr(run_studies, "print_study", lambda study, out: asked.append((study, out.name)))
    monkeypatch.setattr(several, "open_variants", lambda out: None)
    monkeypatch.setattr(several, "write_variants", lambda found: None)
    monkeypatch.setattr(run_studies, "print_variants", lambda found, page: None)
    out = file.parent / "ordered"

    assert run(["run", str(first), "--out", str(out)]) == 0
    assert run(["run", str(second), "--out", str(out)]) == 0
    assert run(["resume", str(out)]) == 0

    by_folder = {name: study for study, name in asked}
    assert len(asked) == 12
    assert len(by_folder) == 4
    assert all(by_folder[name] == study for study, name in asked)
    assert all(study.tune is not None for study in by_folder.values())


def test_one_that_fails_does_not_stop_the_others(file, monkeypatch, capsys):
    played = []

    def play(study, out):
        played.append(out.name)
        if len(played) == 1:
            raise UserError("nobody is near anybody")

    monkeypatch.setattr(run_studies, "print_study", play)
    monkeypatch.setattr(several, "open_variants", lambda out: None)
    monkeypatch.setattr(several, "write_variants", lambda found: None)
    monkeypatch.setattr(run_studies, "print_variants", lambda found, page: None)

    assert run(["run", str(file), "--out", str(file.parent / "failing")]) == 1

    text = said(capsys)
    assert len(played) == 2
    assert "data.options.num_groups=1 failed: nobody is near anybody" in text
    assert "1 of 2 variants failed: data.options.num_groups=1" in text


def test_a_damaged_file_in_the_folder_is_said_in_one_line(played, file, capsys):
    kept = (played / "study.toml").read_text()
    (played / "study.toml").write_text("rounds = [")

    assert run(["run", str(file), "--out", str(played)]) == 1
    assert run(["resume", str(played)]) == 1

    (played / "study.toml").write_text(kept)
    assert said(capsys).count("is not valid TOML") == 2


def test_names_with_brackets_are_shown_as_they_are(monkeypatch, file, capsys):
    odd = file.parent / "odd.toml"
    odd.write_text(FILE.replace("[1, 3]", "[1]") + 'data.name = ["linear_clusters"]\n')
    monkeypatch.setattr(several, "make_variants", lambda source: [Variant("my[/data]", "1", {"data": "x"}, None)])
    monkeypatch.setattr(run_studies, "print_study", lambda study, out: None)
    monkeypatch.setattr(several, "open_variants", lambda out: None)
    monkeypatch.setattr(several, "write_variants", lambda found: None)
    monkeypatch.setattr(run_studies, "print_variants", lambda found, page: None)

    assert run(["run", str(odd), "--out", str(file.parent / "odd")]) == 0

    assert "variant 1 of 1: my[/data]" in said(capsys)
