"""A study in a folder has its references beside it, computed once for its data."""

from dataclasses import replace

import pytest

import plures
from plures.app import Listener, Study, run_study
from plures.cli import run as command
from plures.study.disk import references
from plures.study.disk.references import read_references

SETTINGS = {
    "data": {"name": "logistic_clusters", "options": {"num_clients": 4}, "hold_out": 1},
    "methods": ["local_only", "fedavg"],
    "model": "softmax",
    "rounds": 1,
    "seeds": [0],
}


@pytest.fixture
def computed(monkeypatch):
    """How often references were computed; they have no time for more than the trivial one."""
    found, quick = [], references.references_of

    def count(*given):
        found.append(given)
        return quick(*given)

    monkeypatch.setattr(references, "references_of", count)
    return found


def test_they_are_computed_once_and_said(tmp_path, computed):
    said = []
    listener = Listener(say=lambda text, style: said.append(text))

    for _ in range(2):
        run_study(Study(**SETTINGS), tmp_path, listener)

    found = read_references(tmp_path)
    assert len(computed) == 1
    assert found.table["seen"].to_list() == [True, True, True, False]
    (line,) = [text for text in said if text.startswith("references: ")]
    assert line.startswith(f"references: mean test accuracy trivial {found.means['trivial']:.3g} (")
    assert "no boosting alone: the time that references have was over before it was done" in said


def test_a_study_need_not_have_them_and_may_get_them_later(tmp_path, computed):
    Study(**SETTINGS, references=False).run(tmp_path)
    assert not computed

    Study(**SETTINGS).run(tmp_path)
    assert len(computed) == 1


def test_without_them_a_study_says_the_same_when_it_is_opened_again(tmp_path):
    """What is useless is judged by the trivial predictor, which is kept all the same."""
    far = {
        "data": {"name": "linear_clusters", "options": {"num_clients": 4}},
        "model": "least_squares",
        "plan": {"lr": 2.5},
    }
    study = Study(**{**SETTINGS, **far}, references=False).run(tmp_path)

    again = plures.open_study(tmp_path)

    assert study.leaderboard["against_best"].to_list() == ["useless", "useless"]
    assert again.recommendation == study.recommendation
    assert again.leaderboard["against_best"].to_list() == study.leaderboard["against_best"].to_list()
    assert list(read_references(tmp_path).means) == ["trivial"]


def test_compare_in_python_writes_them_for_its_data(tmp_path, computed):
    federation = plures.data.load("logistic_clusters", num_clients=4)
    settings = {"rounds": 1, "seeds": [0], "model": "softmax"}

    plures.compare(["local_only"], federation, **settings, out=tmp_path / "with")
    plures.compare(["local_only"], federation, **settings, out=tmp_path / "without", references=False)

    assert read_references(tmp_path / "with").data.startswith(federation.fingerprint)
    assert read_references(tmp_path / "without").data == ""


def test_other_data_have_other_references(tmp_path, computed):
    federation = plures.data.load("logistic_clusters", num_clients=4)
    model = plures.builders.build_model("softmax", federation)

    references.keep_references(tmp_path, federation, None, model)
    references.keep_references(tmp_path, replace(federation, x=-federation.x), None, model)

    assert len(computed) == 2


@pytest.mark.parametrize(("words", "there"), [([], True), (["--no-references"], False)])
def test_the_command_has_them_unless_told_otherwise(tmp_path, computed, capsys, words, there):
    line = "compare --data logistic_clusters -m local_only --model softmax --rounds 1 --seeds 1"

    assert command([*line.split(), *words, "--out", str(tmp_path)]) == 0

    assert bool(computed) == there
    assert ("references: mean test accuracy" in capsys.readouterr().out) == there
