"""A finished run is used again only by whoever asks for the same run."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from plures import compare
from plures.builders import build_method, build_model
from plures.channel.clip import clip
from plures.contract import worlds
from plures.errors import BadFile
from plures.study.disk import layout
from plures.types import Plan

SEEN, UNSEEN = worlds.awkward()
PLAN = Plan(epochs=1, batch=2, lr=0.05)
ASKED = {"rounds": 1, "seeds": (0,), "plan": PLAN, "model": "softmax", "unseen": UNSEEN, "executor": "vectorized"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a finished run of FedAvg."""
    out = tmp_path_factory.mktemp("kept")
    compare(["fedavg"], SEEN, out=out, **ASKED)
    return out


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "softmax:ridge=0.5"}, "ridge"),
        ({"plan": replace(PLAN, optimizer=optax.adam)}, "adam"),
        ({"plan": replace(PLAN, lr=0.06)}, "lr=0.05"),
        ({"channels": (clip(norm=1e-3),)}, "python|channels"),
        ({"channels": (lambda key, uploads, weights, uids: uploads,)}, "python|channels"),
        ({"rounds": 2}, "rounds"),
        ({"cohort": 2}, "cohort"),
        ({"unseen": None}, "data"),
    ],
)
def test_another_setting_is_refused_and_not_answered_with_old_numbers(folder, changed, said):
    before = (folder / layout.STUDY).read_text()

    with pytest.raises(BadFile, match=rf"other settings \(.*({said})|data changed"):
        compare(["fedavg"], SEEN, out=folder, **{**ASKED, **changed})
    assert (folder / layout.STUDY).read_text() == before


def test_other_rows_are_refused(folder):
    with pytest.raises(BadFile, match="data"):
        compare(["fedavg"], replace(SEEN, x=SEEN.x + 1), out=folder, **ASKED)


def test_what_makes_no_difference_is_the_same_run(folder, monkeypatch):
    monkeypatch.setattr("plures.study.grid.run_one", lambda *_, **__: pytest.fail("run again"))

    again = compare(["fedavg"], SEEN, out=folder, **{**ASKED, "executor": "one_by_one"})

    assert again.methods == ["fedavg"]


def test_a_method_changed_in_a_notebook_is_told_apart_by_what_it_computes(tmp_path):
    base = build_method("fedavg", build_model("softmax", SEEN), plan=PLAN, facts=SEEN.known)

    def scaled(factor):
        def train(key, shared, private, data):
            upload, kept, info = base.train(key, shared, private, data)
            return jax.tree.map(lambda leaf: factor * leaf, upload), kept, info

        return {"mine": replace(base, train=train)}

    asked = {"rounds": 1, "seeds": (0,), "executor": "vectorized", "out": tmp_path}
    first = compare(scaled(0.5), SEEN, **asked)

    again = compare(scaled(0.5), SEEN, **asked)
    with pytest.raises(BadFile, match="other settings"):
        compare(scaled(0.25), SEEN, **asked)

    assert np.array_equal(first.scores("mine"), again.scores("mine"), equal_nan=True)
