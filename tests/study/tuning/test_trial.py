"""Tuning with shared programs comes to the same as tuning without, and is compiled once."""

import numpy as np
import pytest

from plures.data import load
from plures.engine.rounds import play
from plures.errors import BadValue, UserError
from plures.registry import METHODS, PERSONALIZERS
from plures.study import build_method, build_model, tune
from plures.study.tuning import trial as trials
from plures.study.tuning.search_space import numbers_in, space_of
from plures.types import Plan

WORLD = load("logistic_clusters", num_clients=5, num_groups=2, rows=20)
PLAN = Plan(epochs=1, batch=None, lr=0.2)
QUICK = {"rounds": 2, "plan": PLAN, "model": "logistic", "executor": "vectorized", "trials": 3}


def scores(result):
    """What every trial came to."""
    return result.table.select("setting", "lr", "valid_score", "valid_loss", "outcome").rows()


@pytest.fixture
def alone(monkeypatch):
    """Tuning in which every trial has programs of its own."""

    def tuned(methods, **options):
        with monkeypatch.context() as patch:
            patch.setattr(trials.Families, "of", lambda self, *given: None)
            return tune(methods, WORLD, **{**QUICK, **options})

    return tuned


def assert_same(mine, other):
    for one, two in zip(scores(mine), scores(other), strict=True):
        assert one[:2] == two[:2]
        assert one[4] == two[4]
        np.testing.assert_allclose(np.array(one[2:4], float), np.array(two[2:4], float), atol=1e-5)
    assert mine.chosen == other.chosen


def test_trials_that_share_programs_come_to_the_same(alone):
    expected = alone(["ditto", "fedavg"], seeds=(0, 1))
    before = play._cache_size()

    found = tune(["ditto", "fedavg"], WORLD, **QUICK, seeds=(0, 1))

    assert_same(found, expected)
    assert play._cache_size() - before == 3  # ditto as given, ditto with a drawn lam, fedavg


def test_a_method_that_must_know_its_numbers_is_compiled_for_each(alone, monkeypatch):
    expected = alone(["fedavg"])
    build = trials.build_trial
    traced = []

    def knowing(*args):
        lr = args[5]
        if not isinstance(lr, float):
            traced.append(lr)
            float(lr)
        return build(*args)

    monkeypatch.setattr(trials, "build_trial", knowing)

    assert_same(tune(["fedavg"], WORLD, **QUICK), expected)
    assert len(traced) == 1


def test_a_defect_in_a_trial_is_raised_at_once(monkeypatch):
    """It is not taken for a method that has to know its numbers, and nothing is run again."""
    runs = []

    def broken(method, *given, **more):
        runs.append(method)
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(trials, "prepare", broken)

    with pytest.raises(ZeroDivisionError):
        tune(["fedavg"], WORLD, **QUICK)
    assert len(runs) == 1


def test_whole_numbers_make_another_program_and_others_do_not():
    text = "hypcluster|mapper:epochs=2"
    space = space_of(text, PLAN, {"mapper.lam": (0.1, 1.0)})
    values = {one.name: value for one, value in zip(space, (0.1, 3, 0.5), strict=True)}

    shape, numbers = numbers_in(text, space, values)

    assert [one.name for one in space] == ["lr", "hypcluster.num_clusters", "mapper.lam"]
    assert shape == "hypcluster:num_clusters=3|mapper:epochs=2"
    assert numbers == {(1, "lam"): 0.5}


SHARING = {
    "agnostic", "apfl", "ditto", "fedala", "fedavg", "fedper", "fedprox", "fedrep", "lg_fedavg", "local_only", "oracle",
    "per_fedavg", "scaffold",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("text", [*METHODS, *(f"fedavg|{name}" for name in PERSONALIZERS)])
def test_every_method_comes_to_the_same(alone, text, monkeypatch):
    given = {"rounds": 6, "model": "mlp:hidden=4"}
    try:
        expected = alone([text], **given)
    except UserError as error:
        pytest.skip(str(error))
    made = []
    families = trials.Families

    def kept(make):
        made.append(families(make))
        return made[-1]

    monkeypatch.setattr(trials, "Families", kept)

    found = tune([text], WORLD, **{**QUICK, **given})

    for one, two in zip(scores(found), scores(expected), strict=True):
        np.testing.assert_allclose(np.array(one[2:4], float), np.array(two[2:4], float), atol=2e-3)
    if text in SHARING:
        assert None not in made[0].known.values()


@pytest.mark.parametrize(("text", "place"), [("ditto|guard", 0), ("fedavg|mapper:epochs=1", 1)])
def test_numbers_go_to_their_part_of_the_text(text, place):
    model = build_model("softmax", load("logistic_clusters", num_clients=3, rows=12))

    build_method(text, model, plan=PLAN, numbers={(place, "lam"): 0.5})
    with pytest.raises(BadValue, match="lam must be"):
        build_method(text, model, plan=PLAN, numbers={(place, "lam"): -1.0})
