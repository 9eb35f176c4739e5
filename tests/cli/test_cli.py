"""The commands as a user types them: results, exit codes, one-line messages."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from typed import complaint, plures

from plures import app, cli, registry
from plures.app import running
from plures.contract import check_method

QUICK = ["--rounds", "2", "--seeds", "1", "--hold-out", "2", "--model", "softmax", "--executor", "vectorized"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "out"
    code = cli.run(["compare", "-m", "local_only", "-m", "fedavg", *QUICK, "--out", str(out)])
    assert code == 0
    return out


def test_compare_writes_the_per_client_table(compared):
    table = pl.read_parquet(compared / "clients.parquet")

    assert table.height == 2 * 40
    assert set(table["method"].unique()) == {"local_only", "fedavg"}
    assert table.filter(pl.col("seen"))["personal_test_accuracy"].is_not_null().all()


def test_compare_writes_a_leaderboard_that_follows_from_the_table(compared):
    table = pl.read_parquet(compared / "clients.parquet").filter(pl.col("seen"))
    board = pl.read_csv(compared / "leaderboard.csv")

    expected = table.group_by("method").agg(pl.col("personal_test_accuracy").mean())
    for method, mean in expected.iter_rows():
        assert board.filter(pl.col("method") == method)["mean"].item() == pytest.approx(mean, abs=1e-6)
    assert board["mean"].is_sorted(descending=True)


def test_records_carry_a_header_with_settings_seed_and_versions(compared):
    about = pl.read_parquet_metadata(compared / "runs" / "fedavg" / "seed-0" / "record.parquet")
    header = json.loads(about["plures"])

    assert header["method"] == "fedavg"
    assert header["seed"] == 0
    assert header["config"]["rounds"] == 2
    assert {"plures", "jax", "python"} <= set(header["versions"])


def test_another_study_in_the_same_folder_is_refused(compared, capsys):
    code = plures("compare", "-m", "local_only", "-m", "fedavg", *QUICK, "--lr", "0.3", "--out", str(compared))

    assert code == 1
    assert "holds a study with other settings (plan); use another folder" in complaint(capsys)


def test_the_picture_is_written(compared):
    assert (compared / "overview.png").stat().st_size > 10_000


def test_resume_runs_only_what_is_missing(compared, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(compared, folder)
    finished = folder / "runs" / "local_only" / "seed-0" / "done.json"
    stamp = finished.stat().st_mtime_ns
    shutil.rmtree(folder / "runs" / "fedavg")

    assert plures("resume", str(folder)) == 0
    assert finished.stat().st_mtime_ns == stamp
    again, before = (pl.read_parquet(where / "clients.parquet") for where in (folder, compared))
    assert again.equals(before, null_equal=True)


def test_a_study_file_runs(tmp_path, capsys):
    (tmp_path / "study.toml").write_text(
        """
        methods = ["fedavg"]
        seeds = [0]
        rounds = 1
        model = "softmax"
        [data]
        name = "logistic_clusters"
        hold_out = 0
        options = { num_clients = 4 }
        """
    )

    assert plures("run", "study.toml", "--out", "out") == 0
    assert json.loads((tmp_path / "out" / "study.json").read_text())["rounds"] == 1
    assert "fedavg" in capsys.readouterr().out


def test_methods_lists_and_shows(capsys):
    assert plures("methods") == 0
    assert "ditto" in capsys.readouterr().out
    assert plures("methods", "ditto") == 0
    page = capsys.readouterr().out
    assert "(lam / 2) |v_k - w|^2" in page
    assert "in model sizes: join 0.00, down 1.00, up 1.00" in page.replace("\n", " ")


def test_data_list_names_data_sets_and_worlds(capsys):
    assert plures("data", "list") == 0
    said = capsys.readouterr().out
    assert "digits" in said
    assert "mean_estimation" in said


@pytest.mark.parametrize(("command", "name"), [("models", "emnist_cnn"), ("channels", "drop_out")])
def test_models_and_channels_are_listed(command, name, capsys):
    assert plures(command) == 0
    assert name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["models", "mlp"], "hidden ints joined by x 128 Widths of the hidden layers"),
        (["data", "list", "digits"], "spread float 0.5 How unequal sizes are"),
        (["data", "list", "rotation"], "degrees float 30.0 Largest angle"),
        (["data", "list", "quadratics"], "gap float 20.0 Distance between the optima"),
    ],
)
def test_an_entry_is_shown_with_the_meaning_of_its_options(arguments, option, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")

    assert plures(*arguments) == 0

    assert option in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("command", "kind"), [("models", "model"), ("channels", "channel")])
def test_an_entry_that_is_not_there_is_refused(command, kind, capsys):
    assert plures(command, "nothing") == 1

    assert f"no {kind} is called 'nothing'" in capsys.readouterr().err


def test_the_version_is_printed(capsys):
    assert plures("--version") == 0
    assert capsys.readouterr().out.strip() == "0.2.0"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "-m", "fedporx"], "no method is called 'fedporx'; did you mean 'fedprox'?"),
        (["compare", "-m", "ditto:lamb=1"], "no option of ditto is called 'lamb'; did you mean 'lam'?"),
        (["compare", "-m", "ditto:lam=much"], "lam must be of type float, got 'much'"),
        (["compare", "-m", "ditto:lam=-1"], "lam must be 0 or more, got -1.0"),
        (["compare", "-m", "ditto:lam"], "option of ditto must be name=value, got 'lam'"),
        (["compare", "-m", "fedavg|finetun"], "no personalizer is called 'finetun'; did you mean 'finetune'?"),
        (["compare", "-m", "local_only|guard"], "guard needs a base with a model common to all clients"),
        (["compare", "--data", "digit"], "no data set, file or folder is called 'digit'; did you mean 'digits'?"),
        (["compare", "--model", "mpl"], "no model is called 'mpl'; did you mean 'mlp'?"),
        (["compare", "--rounds", "0"], "rounds must be"),
        (["compare", "--rounds", "many"], "--rounds"),
        (["compare", "--seeds", "0"], "seeds must be 1 or more, got 0"),
        (["compare", "--lr", "-1"], "plan.lr must be"),
        (["compare", "--hold-out", "99"], "hold_out must be between 0 and 39 of the 40 clients, got 99"),
        (["compare", "--cohort", "some"], "cohort must be 'all', a number of clients"),
        (["compare", "--cohort", "99"], "cohort must be between 1 and 32"),
        (["compare", "--executor", "fast"], "no executor is called 'fast'"),
        (["compare", "--channel", "drop_out:share=2"], "share must be a number in [0, 1), got 2.0"),
        (["compare", "--data", "digits:num_client=9"], "did you mean 'num_clients'?"),
        (["compare", "--executor", "vectorized:3"], "vectorized without a number"),
        (["compare", "--optimizer", "sdg"], "plan.optimizer must be"),
        (["compare", "--tune", "-1"], "tune.trials must be greater than or equal to 1, got -1"),
        (["compare", "-m", "fedavg", "-m", "fedavg"], "methods must be a list without repeats"),
        (["compare", "--out", "file"], "out must be a folder, got 'file'"),
        (["compare", "--colour"], "--colour"),
        (["compair"], "compair"),
        (["run", "nothing.toml"], "there is no file nothing.toml"),
        (["resume", "nowhere"], "nowhere holds no study"),
        (["methods", "fedporx"], "did you mean 'fedprox'?"),
        (["new-method", "Bad Name"], "name must be a new name in snake_case"),
        (["new-method", "ditto"], "name must be a name that no method or personalizer has yet, got 'ditto'"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_1(arguments, said, capsys):
    Path("file").write_text("")

    code = plures(*arguments)

    assert code == 1
    assert said in complaint(capsys)


def test_all_mistakes_of_a_study_are_named_at_once(tmp_path, capsys):
    (tmp_path / "study.toml").write_text('rounds = 0\nsedes = [1]\n[plan]\nlr = "fast"\n')

    assert plures("run", "study.toml") == 1
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "plures: study.toml has 3 mistakes:"
    assert [line.split(";")[0] for line in others] == [
        "  line 1: rounds must be greater than or equal to 1, got 0",
        "  line 2: no setting is called 'sedes'",
        "  line 4: plan.lr must be a positive number or \"auto\", got 'fast'",
    ]


def test_a_mistake_that_only_the_data_show_has_a_line_too(tmp_path, capsys):
    (tmp_path / "study.toml").write_text(
        '# mine\nmethods = [\n  "fedavg",\n  "oracle",\n]\ndata.name = "mean_estimation"\n'
    )

    assert plures("run", "study.toml") == 1
    assert complaint(capsys).startswith("plures: study.toml, line 4: oracle needs num_groups")


def test_a_defect_of_ours_exits_with_2_and_a_traceback(monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise RuntimeError("not the user's fault")

    monkeypatch.setattr(app.Study, "prepare", broken)

    assert plures("compare", *QUICK) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "not the user's fault" in said


def test_a_full_disk_is_said_in_one_line(monkeypatch, capsys):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(running.grid, "run_grid", full)

    assert plures("compare", *QUICK) == 1
    assert "No space left on device" in complaint(capsys)


@pytest.mark.slow
def test_the_skeleton_of_a_new_method_keeps_the_contract(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry.METHODS, "_entries", dict(registry.METHODS.entries))

    assert plures("new-method", "my_own", "--to", str(tmp_path)) == 0
    exec(compile((tmp_path / "my_own.py").read_text(), "my_own.py", "exec"), {"__name__": "my_own"})

    check_method(registry.METHODS["my_own"])


def test_an_existing_file_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "my_own.py").write_text("precious")

    assert plures("new-method", "my_own", "--to", str(tmp_path)) == 1
    assert (tmp_path / "my_own.py").read_text() == "precious"
    assert "is not there yet" in complaint(capsys)


def test_the_command_is_installed():
    found = subprocess.run(
        [sys.executable, "-m", "plures", "--version"], capture_output=True, text=True, check=True
    )

    assert found.stdout.strip() == "0.2.0"


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("hypcluster", "HypCluster"),
        ("hypcluster_auto", "any number of clusters"),
        ("ifca", "IFCA"),
        ("agnostic", "Agnostic"),
        ("dapper", "Dapper"),
        ("mapper", "Mapper"),
    ],
)
def test_methods_with_other_rounds_before_or_after_have_a_page(name, title, capsys):
    assert plures("methods", name) == 0
    assert title in capsys.readouterr().out


def test_what_methods_say_of_their_training_stands_under_the_leaderboard_once(capsys):
    data = ["--data", "logistic_clusters:num_clients=6,num_groups=1,rows=20", "--model", "mlp", "--batch", "0"]
    code = plures("compare", "-m", "hypcluster:num_clusters=5,init=random", *data, "--rounds", "14", "--seeds", "2")

    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert code == 0
    assert len(said) == len(set(said))
    assert any("chosen by nobody" in line and line.endswith("reseed_after=10") for line in said), said


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["compare", "--nothing"], "plures compare"),
        (["data", "check"], "plures data check"),
        (["nothing"], "plures"),
    ],
)
def test_a_mistake_in_options_names_the_help_of_its_command(words, where, capsys):
    assert cli.run(words) == 1
    assert capsys.readouterr().err.strip().endswith(f"(see {where} --help)")


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_the_help_has_brackets(words, capsys):
    assert cli.run(words) == 0
    assert "[vary]" in capsys.readouterr().out
