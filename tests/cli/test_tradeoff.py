"""``plures tradeoff`` as a user types it: tables, files and pictures; mistakes are one line, before anything runs."""

import inspect
import io
import json
import shlex
import sys
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from sweeps import curve, made
from typed import complaint, plures

from plures import cli
from plures.advise.advice_tables import tradeoff_table
from plures.advise.tradeoff_runs import with_estimate
from plures.cli.registry_tables import laid_out
from plures.cli.terminal import say
from plures.engine import Progress
from plures.registry import METHODS, PERSONALIZERS
from plures.study import StudyProgress

DATA = ["--data", "logistic_clusters:num_clients=6,num_groups=2,rows=20", "--hold-out", "0", "--model", "logistic"]
FAST = ["--rounds", "4", "--seeds", "1", "--batch", "0", "--lr", "0.3", "--executor", "vectorized"]
QUICK = [*DATA, *FAST]
SWEEP = ["tradeoff", "-m", "ditto", "--values", "0.1,1", "--eval-every", "2", *QUICK]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a finished sweep."""
    out = tmp_path_factory.mktemp("tradeoff") / "out"
    assert cli.run([*SWEEP, "--out", str(out)]) == 0
    return out


def test_files_and_pictures_are_written(swept):
    points, values = pl.read_csv(swept / "points.csv"), pl.read_csv(swept / "values.csv")

    assert values["value"].to_list() == ["0.1", "1", "local_only", "fedavg"]
    assert points.height == 4 * 2
    assert json.loads((swept / "summary.json").read_text())["option"] == "lam"
    for name in ("degree.png", "front.png"):
        assert (swept / name).read_bytes().startswith(b"\x89PNG")


def test_a_budget_is_weighed_without_running_anything_again(swept, capsys):
    done = swept / "runs" / "ditto%3Alam=1" / "seed-0" / "done.json"
    stamp = done.stat().st_mtime_ns

    assert plures(*SWEEP, "--out", str(swept), "--budget-rounds", "2") == 0

    lines = capsys.readouterr().out.splitlines()
    best = json.loads((swept / "summary.json").read_text())["best"]
    assert done.stat().st_mtime_ns == stamp
    assert lines[0].startswith("4 finished runs kept from before")
    assert best["round"] == 2
    assert any(line.startswith(f"best within 2 rounds: lam={best['value']} at round 2") for line in lines)
    assert any(line.startswith("picture: ") for line in lines)
    assert "at end" in " ".join(lines)


def test_the_command_that_reads_test_rows_at_the_budget_can_be_pasted(swept, capsys, tmp_path, monkeypatch):
    """It gives the valid loss that the sweep has at that round."""
    assert plures(*SWEEP, "--out", str(swept), "--budget-rounds", "2") == 0
    best = json.loads((swept / "summary.json").read_text())["best"]
    command = next(line for line in capsys.readouterr().out.splitlines() if "plures compare" in line)
    words = shlex.split(command.partition("plures ")[2])

    assert plures(*words, "--out", str(tmp_path / "again")) == 0

    rows = pl.read_csv(tmp_path / "again" / "clients.csv")
    assert rows["personal_valid_loss"].mean() == pytest.approx(best["valid_loss"], rel=1e-5)


def test_the_time_left_is_told_after_the_first_finished_run(tmp_path, capsys):
    """Two runs are kept from before: of four runs two are left, and of those the first takes 50 s here."""
    sweep = SimpleNamespace(built=dict.fromkeys(["a", "b"]), seeds=(0, 1))
    for seed in (0, 1):
        (tmp_path / "runs" / "a" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "runs" / "a" / f"seed-{seed}" / "done.json").write_text("{}")
    passed, clock = [], iter([0.0, 50.0])
    tell = with_estimate(passed.append, sweep, tmp_path, say, clock=lambda: next(clock))

    for index, round_ in ((2, 5), (2, 10), (3, 5), (3, 10)):
        tell(StudyProgress("b", index - 2, index, 4, Progress(round_, 10, 0, "loss", None, 1.0, 1.0)))

    assert len(passed) == 4
    assert capsys.readouterr().out.splitlines() == ["about 50 s left: 1 more run like the first"]


def test_the_time_left_is_told_without_a_terminal(capsys, tmp_path):
    assert plures(*SWEEP, "--out", str(tmp_path / "out")) == 0
    assert "left: 3 more runs like the first" in capsys.readouterr().out


def test_marks_are_whole_beside_huge_numbers():
    """In 80 columns, with a loss that is huge and yet none that diverged."""
    curves = [
        curve(said, [loss, loss], gradients=np.array([[3e8, 6e9]])) for said, loss in (("1", 1.8e29), ("2", 9e28))
    ]
    screen = Console(width=80, file=io.StringIO())

    table = tradeoff_table(made(*curves, curve("local_only", [1e30, 1e36], kind="end")))
    screen.print(table)

    lines = [line.rstrip() for line in screen.file.getvalue().splitlines()]
    assert any(line.endswith("best front") for line in lines)
    assert any(line.endswith(" diverged") for line in lines)
    assert any("1.8e29" in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert (table.columns[-1].no_wrap, table.columns[-1].min_width) == (True, len("best front"))


def test_the_help_says_what_the_grid_is(capsys):
    assert plures("tradeoff", "--help") == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "from 0.001 to 100 where the default is auto" in said


def test_the_table_shows_what_stands_in_the_file(swept, capsys):
    assert plures(*SWEEP, "--out", str(swept)) == 0

    said = capsys.readouterr().out
    for row in pl.read_csv(swept / "values.csv").iter_rows(named=True):
        line = next(one for one in said.splitlines() if one.split()[:1] == [row["value"]])
        assert f"{row['test_loss']:.3f}" in line
        assert f" {row['rounds_needed']} " in line
        assert ("best" in line) == ("best" in row["mark"])


def test_another_study_in_the_folder_is_refused(swept, capsys):
    assert plures(*SWEEP, "--lr", "0.2", "--out", str(swept)) == 1
    assert "holds a study with other settings (plan); use another folder" in complaint(capsys)


def test_the_page_of_a_method_names_its_degree(capsys):
    assert plures("methods", "squared_penalty") == 0
    assert "degree of collaboration: gamma (plures tradeoff sweeps it)" in capsys.readouterr().out
    assert plures("methods", "fedavg") == 0
    assert "degree" not in capsys.readouterr().out


def test_the_page_of_a_method_says_what_its_options_mean(capsys):
    assert plures("methods", "squared_penalty") == 0
    assert "Penalty of every pair of" in " ".join(capsys.readouterr().out.split())


def test_a_formula_stays_whole_where_it_fits_and_is_broken_at_a_gap_where_not():
    text = "Words that\ngo on.\n\n    y  =  a + b c,   m = mean of all\n    z  =  1"

    assert laid_out(text, 80) == ["Words that go on.", "", "    y  =  a + b c,   m = mean of all", "    z  =  1"]
    assert laid_out(text, 30)[2:] == ["    y  =  a + b c,", "       m = mean of all", "    z  =  1"]


@pytest.mark.parametrize("entry", [*METHODS.values(), *PERSONALIZERS.values()], ids=lambda one: one.name)
def test_no_word_of_a_page_is_lost(entry):
    text = f"{sys.modules[entry.factory.__module__].__doc__}\n{inspect.getdoc(entry.factory)}"

    for width in (60, 80, 120):
        lines = laid_out(text, width)
        assert " ".join(lines).split() == text.split()
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "method must be one method whose option is swept, such as -m ditto, got []"),
        (["-m", "ditto", "-m", "fedprox"], "method must be one method whose option is swept"),
        (["-m", "fedporx"], "no method is called 'fedporx'; did you mean 'fedprox'?"),
        (["-m", "fedavg"], "fedavg declares no degree of collaboration; name a number of its own with --option"),
        (["-m", "ditto", "--option", "lamb"], "no option of ditto is called 'lamb'; did you mean 'lam'?"),
        (
            ["-m", "ditto", "--option", "aggregate"],
            "option must be one that takes a number: lam, momentum, newcomer_epochs, server_lr",
        ),
        (["-m", "ditto", "--values", "0.1,much"], "values must be numbers such as 0.01,0.1,1"),
        (["-m", "ditto", "--values", "0.1,nan"], "values must be finite numbers, such as 0.01,0.1,1, got nan"),
        (["-m", "ditto", "--values", "0.1,0.10"], "values must be a list without repeats"),
        (["-m", "ditto", "--values", "1,-1"], "lam must be 0 or more, got -1.0"),
        (["-m", "hypcluster", "--values", "1.5", "--rounds", "9"], "num_clusters must be of type int, got '1.5'"),
        (
            ["-m", "hypcluster:warm=1", "--values", "7"],
            "num_clusters must be at most the 6 clients there are, got 7",
        ),
        (["-m", "hypcluster", "--values", "2"], "rounds must be more than the 7 before and after the method's own"),
        (["-m", "ditto", "--budget-mb", "0"], "budget_mb must be a positive number, got 0.0"),
        (["-m", "ditto", "--budget-rounds", "-3"], "budget_rounds must be 1 or more, got -3"),
        (["-m", "ditto", "--values", "1", "--budget-mb", "1e-9"], "budget_mb must be at least"),
        (
            ["-m", "ditto", "--values", "1", "--eval-every", "3", "--budget-rounds", "2"],
            "must be at least 3, the first",
        ),
        (["-m", "ditto", "--eval-every", "0"], "eval_every must be greater than or equal to 1, got 0"),
        (["-m", "ditto", "--rounds", "0"], "rounds must be greater than or equal to 1, got 0"),
        (["-m", "ditto", "--out", "file"], "out must be a folder, got 'file'"),
    ],
)
def test_a_mistake_is_one_clear_line_before_anything_is_written(arguments, said, tmp_path, capsys):
    (tmp_path / "file").write_text("")

    assert plures("tradeoff", *QUICK, "--out", "out", *arguments) == 1
    assert said in complaint(capsys)
    assert not (tmp_path / "out").exists()
