"""Models of a regression on disk: they predict in the user's unit, and say which it is."""

import json

import numpy as np
import pytest

import plures
from plures.data import from_arrays
from plures.errors import BadFile
from plures.study import build_method, build_model
from plures.types import Plan

PLAN = Plan(epochs=1, batch=8, lr=0.05)
METHODS = ["fedavg", "ditto", "fedclup", "fedavg|mapper", "fedavg|finetune"]


def federation():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(4 * 20, 3)).astype(np.float32)
    y = 300 + 40 * (x @ [1.0, -0.5, 0.2] + 0.1 * draw.normal(size=80))
    return from_arrays(x, y.astype(np.float32), np.repeat(list("abcd"), 20), task="regression")


def saved(text, folder):
    """A finished run, and the folder with one client's model of it."""
    found = federation()
    method = build_method(text, build_model("least_squares", found), plan=PLAN, facts=found.known)
    run = plures.run(method, found, rounds=5)
    plures.save_model(run, "b", folder, method=text, model="least_squares")
    return run


@pytest.mark.parametrize("text", METHODS)
def test_a_stored_model_predicts_the_same_bits_in_the_users_unit(text, tmp_path):
    run = saved(text, tmp_path)
    x, y = federation().rows_of("b", "test")

    found = np.asarray(plures.load_model(tmp_path).predict(x))

    np.testing.assert_array_equal(found, run.model_for("b").predict(x))
    assert np.sqrt(np.mean((found - y) ** 2)) < 0.7 * y.std()


def test_the_file_says_the_unit_and_a_damaged_one_is_refused(tmp_path):
    run = saved("fedavg", tmp_path)
    file = tmp_path / "model.json"
    about = json.loads(file.read_text())

    assert about["unit"] == run.runner.method.model.unit._asdict()
    file.write_text(json.dumps({**about, "unit": {"shift": 1.0}}))
    with pytest.raises(BadFile, match="damaged"):
        plures.load_model(tmp_path)


def test_a_model_of_before_units_loads_plain(tmp_path):
    saved("fedavg", tmp_path)
    file = tmp_path / "model.json"
    about = json.loads(file.read_text())
    unit = about.pop("unit")
    x, _ = federation().rows_of("b", "test")
    inside = np.asarray(plures.load_model(tmp_path).predict(x))

    file.write_text(json.dumps(about))

    plain = np.asarray(plures.load_model(tmp_path).predict(x))
    np.testing.assert_allclose(unit["shift"] + unit["scale"] * plain, inside, rtol=1e-6)
