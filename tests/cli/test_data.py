"""The data commands and a comparison of one's own files, as a user types them."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typed import plures

from plures.cli.data import file_name_of, hold_out_of
from plures.data import open_federation

QUICK = ["--rounds", "1", "--seeds", "1", "--model", "softmax", "--executor", "vectorized", "-m", "fedavg"]
COLUMNS = ["--target", "ill", "--client", "clinic"]


@pytest.fixture
def table(tmp_path):
    """Three clinics of twenty patients and one with a single patient; a wave instead of chance."""
    rows = [
        {"clinic": clinic, "age": 40 + k, "ward": "ab"[k % 2], "day": k, "ill": int(np.sin(3 * k) > 0)}
        for clinic, size in (("hill", 20), ("north", 20), ("river", 20), ("tiny", 1))
        for k in range(size)
    ]
    pl.DataFrame(rows).write_csv(tmp_path / "visits.csv")
    return "visits.csv"


def test_own_tables_are_compared_end_to_end(table, capsys):
    code = plures("compare", "--data", table, *COLUMNS, *QUICK, "--out", "out")

    clients = pl.read_parquet("out/clients.parquet")
    assert code == 0
    assert clients["name"].to_list() == ["hill", "north", "river", "tiny"]
    assert "warning: 1 client without test rows: tiny" in capsys.readouterr().out


def test_the_warnings_are_kept_in_the_run_folder(table):
    plures("compare", "--data", table, *COLUMNS, *QUICK, "--out", "out")

    about = json.loads(Path("out/data.json").read_text())
    assert "1 client without test rows: tiny" in about["notes"]
    assert about["without_test_rows"] == ["tiny"]


def test_clients_are_held_out_by_name(table):
    plures("compare", "--data", table, *COLUMNS, *QUICK, "--hold-out", "north,tiny", "--out", "out")

    clients = pl.read_parquet("out/clients.parquet")
    assert clients.filter(~pl.col("seen"))["name"].to_list() == ["north", "tiny"]


def test_a_study_of_an_own_table_goes_on_in_another_folder(table, tmp_path, monkeypatch):
    out = str(tmp_path / "out")
    plures("compare", "--data", table, *COLUMNS, *QUICK, "--out", out)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert plures("resume", out) == 0


def test_later_rows_are_test(table):
    plures("data", "save", table, "kept", *COLUMNS, "--time", "day", "--ignore", "ward")

    federation = open_federation("kept")
    last_trained = federation.rows_of("hill", "train")[0].max()
    assert federation.rows_of("hill", "test")[0].min() > last_trained


def test_the_check_says_what_every_column_was_taken_for(table, capsys):
    code = plures("data", "check", table, *COLUMNS)

    said = capsys.readouterr().out
    assert code == 0
    assert "sound: 4 clients (0 held out), 61 rows, classification" in said
    kinds = {line.split()[0]: line.split()[1] for line in said.splitlines() if len(line.split()) >= 2}
    assert [kinds[name] for name in ("clinic", "age", "ward", "ill")] == ["client", "number", "category", "target"]


def test_the_check_takes_partitioners_after_a_path(table, capsys):
    code = plures("data", "check", f"{table}|natural:min_rows=5", *COLUMNS)

    assert code == 0
    assert "sound: 3 clients" in capsys.readouterr().out


def test_the_check_names_every_mistake_and_exits_1(table, capsys):
    code = plures("data", "check", table, "--target", "sick", "--client", "clinics")

    said = capsys.readouterr().out
    assert code == 1
    assert "wrong: no column is called 'clinics'; did you mean 'clinic'?" in said
    assert "wrong: no column is called 'sick'" in said


def test_describe_prints_the_numbers_and_draws_a_picture(table, tmp_path, capsys):
    code = plures("data", "describe", table, *COLUMNS, "--picture", "p.png")

    said = capsys.readouterr().out
    assert code == 0
    assert all(
        word in said for word in ("label skew", "feature shift", "quantity skew", "clients without test rows")
    )
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_describe_takes_a_named_set_with_partitioners(capsys):
    code = plures("data", "describe", "digits:num_clients=1,num_groups=1|classes:num_clients=10,per_client=1")

    assert code == 0
    assert "1.000" in capsys.readouterr().out  # one class each: all label variance lies between clients


def test_a_saved_federation_is_compared(table):
    assert plures("data", "save", table, "kept", *COLUMNS, "--hold-out", "north") == 0
    assert plures("compare", "--data", "kept", *QUICK, "--out", "out") == 0

    clients = pl.read_parquet("out/clients.parquet")
    assert clients.filter(~pl.col("seen"))["name"].to_list() == ["north"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "--data", "nothing.csv"], "there is no file or folder"),
        (["compare", "--data", "visits.csv", "--client", "clinic"], "--target"),
        (["compare", "--data", "visits.csv", "--target", "ill"], "--client"),
        (["compare", "--data", "visits.csv", "--target", "ill", "--client", "klinic"], "did you mean 'clinic'?"),
        (["compare", "--data", "visits.csv", *COLUMNS, "--task", "ranking"], "no task is called 'ranking'"),
        (["compare", "--data", "visits.csv", *COLUMNS, "--shares", "1,2"], "shares must be three numbers"),
        (["compare", "--data", "visits.csv", *COLUMNS, "--shares", "a"], "shares must be three numbers"),
        (["compare", "--data", "visits.csv", *COLUMNS, "--hold-out", "nord"], "no client is called 'nord'"),
        (["compare", "--data", "visits.csv", *COLUMNS, "--hold-out", "-1"], "hold_out must be"),
        (["compare", "--data", "visits.csv", *COLUMNS, "--hold-out", "1.5"], "hold_out must be"),
        (["compare", "--data", "visits.csv", *COLUMNS, "--time", "day", "--split", "ward"], "at most one of"),
        (["compare", "--data", "digits", "--target", "ill"], "it is for own files"),
        (["compare", "--data", "digits|dirichlt"], "did you mean 'dirichlet'?"),
        (["compare", "--data", "digits|dirichlet:alpha=0"], "alpha must be"),
        (["compare", "--data", "linear_clusters|rotation_groups"], "rotation_groups needs images"),
        (["data", "describe", "digits", "--picture", "p.jpg"], "picture must be a file that ends in .png"),
        (["data", "check", "empty.csv"], "0 byte"),
        (["data", "save", "digits", "visits.csv"], "visits.csv"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_1(table, tmp_path, capsys, arguments, said):
    (tmp_path / "empty.csv").touch()

    assert plures(*arguments) == 1
    shown = capsys.readouterr()
    assert said in shown.err + shown.out
    assert "Traceback" not in shown.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("auto", None), ("0", 0), ("8", 8), ("0.25", 0.25), ("a, b", ("a", "b")), ("-1", -1), ("inf", ("inf",))],
)
def test_who_is_held_out_is_read_from_text(text, expected):
    assert hold_out_of(text) == expected


def test_a_study_whose_inputs_changed_is_not_resumed(table, tmp_path, capsys):
    plures("compare", "--data", table, *COLUMNS, *QUICK, "--out", "out")
    changed = pl.read_csv(table).with_columns(age=pl.col("age") * pl.col("day"))
    changed.write_csv(table)
    before = Path("out/data.json").read_text()

    assert plures("resume", "out") == 1
    assert "the data changed since" in capsys.readouterr().err
    assert Path("out/data.json").read_text() == before


@pytest.mark.parametrize("gone", [[], ["steps.json"]], ids=["found", "cut short"])
def test_step_sizes_that_were_found_from_other_data_are_not_taken(found_steps, table, capsys, gone):
    plures("compare", "--data", table, *COLUMNS, *QUICK, "--out", "out")
    for name in gone:
        (Path("out/tuning") / name).unlink()
    pl.read_csv(table).with_columns(age=pl.col("age") * pl.col("day")).write_csv(table)
    kept = {file: file.read_bytes() for file in Path("out/tuning").iterdir()}

    assert plures("resume", "out") == 1
    said = capsys.readouterr().err
    assert (
        "the data changed since the trials in" in said if gone else "the data changed since the step sizes" in said
    )
    assert {file: file.read_bytes() for file in Path("out/tuning").iterdir()} == kept


def test_names_in_brackets_are_shown_as_they_are(tmp_path, capsys):
    rows = [{"who": who, "income [eur]": float(k), "y": k % 2} for who in ("[/x]", ":b:") for k in range(9)]
    pl.DataFrame([*rows, {"who": "[dept]", "income [eur]": 1.0, "y": 1}]).write_csv("t.csv")

    assert plures("data", "check", "t.csv", "--target", "y", "--client", "who") == 0
    assert plures("data", "describe", "t.csv", "--target", "y", "--client", "who", "--picture", "p.png") == 0
    said = capsys.readouterr().out
    assert "income [eur]" in said
    assert "warning: 1 client without test rows: [dept]" in said


def test_the_check_refuses_what_cannot_be_compared(tmp_path, capsys):
    rows = [{"who": "ab"[k % 2], "part": "train", "x": float(k), "y": k % 3} for k in range(12)]
    pl.DataFrame(rows).write_csv("t.csv")

    assert plures("data", "check", "t.csv", "--target", "y", "--client", "who", "--split", "part") == 1
    assert "wrong: no client has test rows" in capsys.readouterr().out


def test_a_folder_named_like_a_data_set_is_reached_by_its_path(tmp_path, capsys):
    (tmp_path / "digits").mkdir()
    for who in "ab":
        rows = [{"x": float(k), "y": k % 2} for k in range(9)]
        pl.DataFrame([*rows, {"x": float(ord(who)), "y": 1}]).write_csv(tmp_path / "digits" / f"{who}.csv")

    assert plures("data", "check", "./digits", "--target", "y") == 0
    assert "2 clients" in capsys.readouterr().out


def test_pictures_of_different_partitions_have_different_names():
    assert file_name_of("digits|iid") != file_name_of("digits|zipf")
