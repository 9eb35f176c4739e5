"""report, show and diff: a study read back on the command line."""

import json
import re

import numpy as np
import pytest
from studies import client_table, write_run, write_study

from plures.cli import run

ALONE = np.linspace(0.3, 0.7, 12)
SCORES = {"local_only": ALONE, "fedavg": ALONE + 0.05, "ifca": ALONE + 0.2}
SMALL = ["--data", "linear_clusters", "--rounds", "2", "--seeds", "2", "--batch", "0", "--executor", "vectorized"]


@pytest.fixture
def study(tmp_path):
    return write_study(tmp_path / "study", SCORES, unseen=2, groups=[k % 3 for k in range(12)])


def said(capsys):
    """What was printed, without line breaks."""
    out, err = capsys.readouterr()
    return " ".join((out + err).split())


def test_report_writes_the_page_and_gives_the_answer(study, capsys):
    assert run(["report", str(study)]) == 0

    text = said(capsys)
    assert "Use ifca: mean test accuracy" in text
    assert (study / "report.html").exists()
    assert "report.html" in text


def test_the_page_may_go_elsewhere(study, tmp_path):
    assert run(["report", str(study), "--out", str(tmp_path / "pages" / "one.html")]) == 0

    assert (tmp_path / "pages" / "one.html").exists()


def test_a_page_cannot_be_a_folder(study, tmp_path, capsys):
    assert run(["report", str(study), "--out", str(tmp_path)]) == 1

    assert "out must be a file" in said(capsys)


@pytest.mark.parametrize("command", ["report", "show"])
def test_a_folder_that_holds_no_study_is_refused_in_one_line(command, tmp_path, capsys):
    assert run([command, str(tmp_path)]) == 1

    assert capsys.readouterr().err.count("\n") == 1


def test_a_half_written_study_is_shown_with_a_note(study, capsys):
    for file in study.glob("runs/*/seed-1/done.json"):
        file.unlink()

    assert run(["report", str(study)]) == 0

    assert "note: ifca, seed 1: not finished" in said(capsys)
    assert "not finished" in (study / "report.html").read_text()


def test_show_prints_the_leaderboard(study, capsys):
    assert run(["show", str(study)]) == 0

    text = said(capsys)
    assert text.index("ifca") < text.index("fedavg") < text.index("local_only")
    assert "Use ifca" in text


@pytest.mark.parametrize("client", ["3", "client-003"])
def test_show_tells_what_one_client_gets(study, client, capsys):
    assert run(["show", str(study), "--client", client]) == 0

    text = said(capsys)
    assert "client-003 (uid 3), in training, group 0: 13 train, 4 valid, 5 test rows" in text
    assert f"{ALONE[3] + 0.205:.3f}" in text
    assert "+0.200 +0.150" in text


def test_show_names_the_clients_there_are(study, capsys):
    assert run(["show", str(study), "--client", "client-33"]) == 1

    assert "no client is called 'client-33'; did you mean 'client-003'?" in said(capsys)


def test_diff_pairs_methods_and_tells_settings(study, tmp_path, capsys):
    other = write_study(tmp_path / "other", {"fedavg": ALONE, "ditto": ALONE})
    settings = json.loads((other / "study.json").read_text())
    (other / "study.json").write_text(json.dumps({**settings, "rounds": 9}))

    assert run(["diff", str(study), str(other)]) == 0

    text = said(capsys)
    assert "rounds 6 9" in text
    assert "+0.050 +0.050 +0.050 better" in text
    assert re.search(r"only in \S+: local_only, ifca", text)


def test_diff_of_a_study_and_itself_says_so(study, capsys):
    assert run(["diff", str(study), str(study)]) == 0

    assert "every client scores the same in both" in said(capsys)


def test_an_older_run_is_read_and_said_to_be_old(tmp_path, capsys):
    write_run(tmp_path / "old", "fedavg", 0, client_table(ALONE), version="0.0.1")

    assert run(["show", str(tmp_path / "old")]) == 0

    assert "written by plures 0.0.1" in said(capsys)


def page_of(folder):
    """What the page of a study holds, but for the times."""
    text = (folder / "report.html").read_text()
    start = text.index('id="data">') + len('id="data">')
    found = json.loads(text[start : text.index("</script>", start)])
    return {name: value for name, value in found.items() if name != "times"}


def test_the_same_seeds_give_the_same_page_but_for_the_times(tmp_path):
    for name in ("one", "two"):
        assert run(["compare", "-m", "local_only", "-m", "fedavg", *SMALL, "--out", str(tmp_path / name)]) == 0

    one, two = page_of(tmp_path / "one"), page_of(tmp_path / "two")
    assert one == two
    assert one["command"] == f"plures compare -m local_only -m fedavg {' '.join(SMALL)}"
    assert [curve["rounds"] for curve in one["curves"]] == [[2], [2]]
    assert one["newcomers"]
