"""``plures decide`` as a user types it."""

import json

import polars as pl
import pytest
from typed import complaint, plures

from plures import cli

DATA = ["--data", "logistic_clusters:num_clients=8,num_groups=2,rows=40", "--hold-out", "2", "--model", "logistic"]
METHODS = ["-m", "local_only", "-m", "fedavg", "-m", "oracle"]
QUICK = [*DATA, "--rounds", "8", "--batch", "0", "--lr", "0.5", "--executor", "vectorized"]


@pytest.fixture(scope="module")
def decided(tmp_path_factory):
    out = tmp_path_factory.mktemp("decide") / "out"
    assert cli.run(["decide", *METHODS, *QUICK, "--out", str(out)]) == 0
    return out


def test_every_client_seen_and_unseen_has_a_decision(decided):
    table = pl.read_parquet(decided / "decisions.parquet")

    assert table["uid"].to_list() == list(range(8))
    assert table["seen"].sum() == 6
    assert set(table["family"]) <= {"global", "clusters", "alone"}
    assert table["test_gain"].is_not_null().all()
    assert pl.read_csv(decided / "decisions.csv").columns == table.columns


def test_gains_are_the_differences_of_the_losses_in_the_table(decided):
    for row in pl.read_parquet(decided / "decisions.parquet").iter_rows(named=True):
        gain = row["test_loss_fedavg"] - row[f"test_loss_{row['method']}"]
        assert row["test_gain"] == pytest.approx(gain, abs=1e-6)


def test_the_summary_follows_from_the_table(decided):
    about = json.loads((decided / "summary.json").read_text())
    table = pl.read_parquet(decided / "decisions.parquet")

    assert about["summary"].startswith(f"{table['family'].value_counts()['count'].max()} of 8 clients: ")
    assert about["families"] == {"fedavg": "global", "oracle": "clusters", "local_only": "alone"}
    assert sum(row["clients"] for row in about["decisions"]) == 8
    first = about["evidence"][0]
    assert (first["policy"], first["against"], first["num_clients"]) == ("client by client", "global", 6)
    assert first["mean"] == pytest.approx(table.filter(pl.col("seen"))["test_gain"].mean(), abs=1e-6)


def test_the_picture_is_written(decided):
    assert (decided / "decisions.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_table_and_the_sentence_are_printed(decided, capsys):
    """The same study in the same folder is run again: nothing of it is kept."""
    assert plures("decide", *METHODS, *QUICK, "--out", str(decided)) == 0
    said = capsys.readouterr().out

    assert "Decisions of 6 clients in training and 2 unseen ones" in said
    assert "Deciding client by client" in said
    assert "decisions.csv" in said


def test_another_study_in_the_same_folder_is_refused(decided, capsys):
    assert plures("decide", *METHODS, *QUICK, "--rounds", "3", "--out", str(decided)) == 1
    assert "holds a study with other settings (rounds); use another folder" in complaint(capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-m", "fedporx"], "no method is called 'fedporx'; did you mean 'fedprox'?"),
        (["-m", "fedavg"], "methods must be of two families or more, such as fedavg and local_only"),
        (["-m", "fedavg", "-m", "fedprox"], "got 'fedavg (global), fedprox (global)'"),
        (["-m", "local_only", "-m", "fedavg|finetune"], "a global one to start from, such as fedavg"),
        (["-m", "fedavg", "-m", "fedavg"], "methods must be a list without repeats"),
        ([*QUICK, *METHODS, "--errors", "-1"], "errors must be a number of standard errors, 0 or more, got -1.0"),
        (["--seeds", "0"], "seeds must be 1 or more, got 0"),
        (["--rounds", "2"], "rounds must be"),
        (["--data", "mean_estimation"], "no client has test rows"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_1(arguments, said, capsys):
    code = plures("decide", *arguments)

    assert code == 1
    assert said in complaint(capsys)


def test_data_without_valid_rows_are_refused(tmp_path, capsys):
    rows = [f"{i % 3},{i % 2},{part},{i}" for i, part in enumerate(["train"] * 12 + ["test"] * 6)]
    (tmp_path / "visits.csv").write_text("\n".join(["clinic,label,part,age", *rows]))
    own = ["--data", "visits.csv", "--client", "clinic", "--target", "label", "--split", "part", "--hold-out", "0"]

    assert plures("decide", "-m", "fedavg", "-m", "local_only", *own) == 1
    assert "no client has two valid rows to decide by" in complaint(capsys)
