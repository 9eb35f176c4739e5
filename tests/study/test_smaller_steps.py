"""A method that breaks down is run again with smaller steps."""

import json
from dataclasses import replace
from functools import partial

import polars as pl

from plures import Plan
from plures.builders import build_method
from plures.data.worlds import linear_clusters
from plures.models import linear
from plures.study.grid import plan_grid, run_grid
from plures.study.tuning.step_size import FoundSteps

SEEN = linear_clusters(num_clients=4, rows=30, seed=0).federation
MODEL = linear.least_squares(SEEN.shape)


def build(text, lr, epochs=200):
    return build_method(text, MODEL, plan=Plan(batch=None, epochs=epochs, lr=lr), facts=SEEN.known)


def played(lr, out, build=build):
    steps = FoundSteps({"fedavg": ("fedavg", lr)}, {}, build, out, ())
    grid = plan_grid(steps.methods(), SEEN, rounds=2, seeds=[0, 1], out=out)
    return steps, run_grid(replace(grid, again=steps.again))


def test_it_is_run_with_a_quarter_until_it_comes_to_a_sound_end_and_that_is_said(tmp_path):
    steps, result = played(4.0, tmp_path)

    assert 1 <= steps.times["fedavg"] <= 3
    assert result.clients["personal_test_loss"].cast(pl.Float64).is_finite().all()
    assert "it broke down, and was run again with steps of 1" in result.told[0]
    chosen = json.loads((tmp_path / "tuning" / "chosen.json").read_text())
    assert chosen["chosen"]["fedavg"]["lr"] == 4.0 / 4 ** steps.times["fedavg"]


def test_it_is_made_smaller_three_times_at_most():
    steps, result = played(1e6, None)

    assert steps.times == {"fedavg": 3}
    assert result.diverged("fedavg")


def test_a_loss_that_is_finite_and_huge_is_a_break_down_too():
    """Ten steps that each make the error several times as large: no number is infinite yet."""
    short = partial(build, epochs=5)
    alone = run_grid(plan_grid({"fedavg": short("fedavg", 4.0)}, SEEN, rounds=2, seeds=[0]))
    steps, result = played(4.0, None, short)

    assert not alone.diverged("fedavg")
    assert steps.times["fedavg"] >= 1
    assert result.clients["personal_test_loss"].mean() < alone.clients["personal_test_loss"].mean() / 1e6


def test_a_sound_method_is_left_alone():
    steps, result = played(0.01, None)

    assert steps.times == {}
    assert result.told == ()
