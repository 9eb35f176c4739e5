"""``plures advise``: signs, a verdict and the study to run; mistakes are one line."""

import re
import shlex
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.status import Status
from typed import complaint, plures
from written import COMMAND

from plures.app import make_study, read_study
from plures.cli import advise as advise_module
from plures.cli.advise import command_of
from plures.cli.study_options import study_of

WORLD = "linear_clusters:num_clients=12,num_groups=3,gap=4"


def study_in(line):
    """The study that a command line stands for."""
    _, name, *words = shlex.split(line)
    with COMMAND.commands[name].make_context(name, words) as context:
        return study_of(context.params)


def plainly(study):
    return study.model_dump(mode="json")


def table(path):
    """A table of 8 clients, 12 rows each, in which a second column flips the sign of the first for half of them."""
    lines = ["the clinic,dose,later [mg]"]
    for client in range(8):
        for row in range(12):
            dose = (row * 7 + client) % 12 - 5.5
            lines.append(f"c{client},{dose},{(1 if client % 2 else -1) * dose + 0.1 * ((row * 5 + client) % 7)}")
    path.write_text("\n".join(lines) + "\n")


def test_signs_a_verdict_and_the_study_are_said(capsys):
    assert plures("advise", "--data", WORLD) == 0

    said = " ".join(capsys.readouterr().out.split())
    for part in ("label skew", "feature shift", "noise, differences", "3 clusters", "too small to tell"):
        assert part in said
    assert "Personalization can pay: on rows held out, one model per cluster saves" in said
    assert "The family that fits is clusters" in said
    assert not Path("runs").exists()


def test_the_command_and_the_file_are_the_same_study(capsys):
    assert plures("advise", "--data", WORLD, "--hold-out", "2", "--out", "out") == 0

    command = re.search(r"to run: (.*)", capsys.readouterr().out)[1]
    study = read_study(Path("out/study.toml"))
    assert plainly(study) == plainly(study_in(command))
    assert "ifca:num_clusters=3" in study.methods
    study.check()
    for name in ("advice.json", "advice.png", "clients.csv"):
        assert (Path("out") / name).exists()


def test_the_options_of_an_own_table_go_into_the_study(tmp_path, capsys):
    table(tmp_path / "my visits.csv")
    options = ["--target", "later [mg]", "--client", "the clinic", "--shares", "0.5,0.25,0.25", "--split-seed", "3"]

    assert plures("advise", "--data", "my visits.csv", *options, "--out", "out") == 0

    command = re.search(r"to run: (.*)", capsys.readouterr().out)[1]
    study = read_study(Path("out/study.toml"))
    assert plainly(study) == plainly(study_in(command))
    assert study.data.options["target"] == "later [mg]"
    assert study.check()[0].num_clients == 8


def test_a_model_goes_into_the_command():
    data = {"name": "digits", "hold_out": 0.25}
    study = make_study({"data": data, "model": "mlp_norm", "methods": ["fedavg", "fedavg|norm:policy=recalibrate"]})

    with COMMAND.commands["advise"].make_context("advise", ["--hold-out", "0.25"]) as context:
        command = command_of(study, context.params)

    assert plainly(study_in(command)) == plainly(study)


def test_a_study_in_toml_reads_back_as_itself(tmp_path):
    data = {"name": 'a \\ "b" é.csv', "hold_out": ["x, y", "z"], "options": {"ignore": ["p", "q"], "seed": 4}}
    study = make_study({"data": data, "model": "mlp_norm", "methods": ["fedavg", "fedbn"]})

    (tmp_path / "study.toml").write_text(study.text)

    assert plainly(read_study(tmp_path / "study.toml")) == plainly(study)


def test_a_line_tells_the_stage(monkeypatch):
    """The line is drawn a few times a second; here at every change."""
    screen, told = Console(file=StringIO(), force_terminal=True, width=100), Status.update
    monkeypatch.setattr(advise_module, "console", screen)
    monkeypatch.setattr(Status, "update", lambda status, text: (told(status, text), status._live.refresh()))

    assert plures("advise", "--data", "linear_clusters:num_clients=6,rows=20") == 0

    shown = screen.file.getvalue()
    for stage in ("rows: ", "one model for all, and models alone", "own models near", "clusters of clients"):
        assert stage in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "digitz"], "no data set, file or folder is called 'digitz'"),
        (["--data", "linear_clusters:num_clients=1,num_groups=1"], "two clients or more are needed, got 1"),
        (["--data", "linear_clusters", "--target", "came"], "--target must be left out"),
        (["--data", "linear_clusters", "--out", "a-file"], "out must be a folder"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments, said, capsys):
    Path("a-file").touch()

    assert plures("advise", *arguments) == 1
    assert said in complaint(capsys)
