"""Methods below the better of the two ends: who is named, by how much, and whether what is advised is that end."""

import re

import numpy as np
import pytest
from comparisons import BASE, comparison

from plures.registry import METHODS, PERSONALIZERS
from plures.study.shortfalls import remedy, shortfalls
from plures.study.sweep import parts_of

LITTLE = np.where(np.arange(30) % 2, 0.001, -0.001)


def named(scores, **more):
    return {one.method: one for one in shortfalls(comparison(scores, **more))}


def test_who_is_below_the_better_end_is_named_with_the_gap():
    found = named({"local_only": BASE - 0.2, "fedavg": BASE, "ditto": BASE - 0.05 + LITTLE, "ifca": BASE + 0.1})

    assert set(found) == {"ditto"}
    assert found["ditto"].end == "fedavg"
    assert found["ditto"].gap == pytest.approx(0.05)
    assert found["ditto"].said.startswith("ditto: 0.050 below fedavg on valid rows: clients are more alike")


def test_training_alone_may_be_the_better_end():
    found = named({"local_only": BASE, "fedavg": BASE - 0.2, "ditto": BASE - 0.05 + LITTLE})

    assert found["ditto"].end == "local_only"
    assert "clients differ more" in found["ditto"].said


def test_two_points_are_no_shortfall_and_noise_must_be_five():
    """Signs of clients cancel: the same gap of 0.03 is sure in one study and luck in the other."""
    noise = np.where(np.arange(30) % 2, 0.4, -0.4)
    scores = {"local_only": BASE - 0.3, "fedavg": BASE}

    assert named(scores | {"ditto": BASE - 0.019 + LITTLE}) == {}
    assert set(named(scores | {"ditto": BASE - 0.03 + LITTLE})) == {"ditto"}
    assert named(scores | {"ditto": BASE - 0.03 + noise}) == {}
    assert set(named(scores | {"ditto": BASE - 0.06 + noise})) == {"ditto"}


def test_lower_is_better_for_errors():
    found = named({"local_only": BASE + 0.4, "fedavg": BASE, "ditto": BASE + 0.2}, higher=False, metric="rmse")

    assert set(found) == {"ditto"}


def test_without_an_end_nothing_is_said():
    assert named({"ditto": BASE - 0.2, "ifca": BASE}) == {}


def test_what_is_advised_is_a_method_that_can_be_built():
    """For every method, personalizer and end: a setting that its limits name, a sweep that exists, or another method."""
    for name in [*METHODS, *(f"fedavg|{one}" for one in PERSONALIZERS)]:
        for end in ("local_only", "fedavg"):
            advised = [part.split(" is ")[0] if " is " in part else part for part in remedy(name, end).split(", ")]
            for text in advised:
                swept = re.fullmatch(r"plures tradeoff -m (\S+|'.+') finds the best \w+", text)
                bare = (swept[1] if swept else text).strip("'").removeprefix("take ").split(" lets ")[0]
                assert parts_of(bare), (name, end)
