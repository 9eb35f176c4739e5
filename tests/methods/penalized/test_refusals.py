"""What FedCLUP and its relatives refuse, with what would do."""

import re

import jax.numpy as jnp
import pytest
from regressions import DIM, FEDERATION, LAM, MODEL

from plures import run
from plures.errors import BadValue, MethodWarning, UnknownChoice, Unsupported
from plures.methods.penalized.fedclup import fedclup
from plures.methods.penalized.l2gd import l2gd
from plures.methods.penalized.pfedme import pfedme
from plures.methods.penalized.statistics import blank
from plures.models.mlp import mlp
from plures.moreau import Bounds
from plures.types import Plan, Weights

FOUND = blank(Weights({"kernel": jnp.zeros(DIM)}), 4)._replace(
    bounds=Bounds(jnp.float32(0.5), jnp.float32(4.0)), lam=jnp.float32(1.0), heard=jnp.float32(4.0)
)


@pytest.mark.parametrize(
    ("build", "options", "said"),
    [
        (
            fedclup,
            {"lam": LAM, "alpha": 3.0},
            r"client steps of alpha = 3 diverge: .* below 2 / \(L \+ lam\) = 0\.\d+; 0\.\d+ would do",
        ),
        (
            fedclup,
            {"lam": "valid", "num_lams": 9, "alpha": 0.4},
            r"client steps of alpha = 0.4 diverge",
        ),
        (fedclup, {"lam": LAM, "gamma": 9.0}, r"server steps of gamma = 9 diverge: .* 2 / L_g = \d.* would do"),
        (pfedme, {"lam": LAM, "eta": 50.0}, r"steps of eta = 50 diverge: eta must be below 2 / L_g = .* would do"),
        (l2gd, {"lam": LAM, "alpha": 10.0}, r"steps of alpha = 10 diverge: alpha must be below .* would do"),
    ],
)
def test_a_step_that_diverges_is_refused_with_one_that_would_do(build, options, said):
    assert re.search(said, build(MODEL, **options).phases[-1].refuse(FOUND))


@pytest.mark.parametrize("options", [{"alpha": 0.3}, {"gamma": 2.0}, {"lam": "valid", "num_lams": 2, "alpha": 0.3}])
def test_a_step_that_converges_is_not_refused(options):
    assert fedclup(MODEL, **{"lam": LAM, **options}).phases[-1].refuse(FOUND) is None


def test_a_run_ends_where_its_prelude_says_so():
    with pytest.raises(Unsupported, match="client steps of alpha = 3 diverge"):
        run(fedclup(MODEL, lam=LAM, alpha=3.0), FEDERATION, rounds=5, executor="vectorized")


def test_where_no_client_has_rows_to_spare_there_is_no_automatic_lam():
    tight = FOUND._replace(spare=jnp.zeros(()))

    assert "no client has more rows than its model has numbers" in fedclup(MODEL).phases[-1].refuse(tight)
    assert fedclup(MODEL, lam="valid").phases[-1].refuse(tight) is None
    assert fedclup(MODEL, lam=LAM).phases[-1].refuse(tight) is None


def test_without_statistics_there_is_no_automatic_lam():
    silent = FOUND._replace(heard=jnp.zeros(()))

    said = fedclup(MODEL).phases[-1].refuse(silent)

    assert "lam='auto' needs statistics, and no client could give any" in said


def test_a_plan_that_diverges_is_named():
    with pytest.warns(MethodWarning, match=r"fedclup: training diverged, lr = 50 is too long a step"):
        run(
            fedclup(MODEL, lam=0.01, local="sgd", plan=Plan(lr=50.0, epochs=40)),
            FEDERATION,
            rounds=8,
            executor="vectorized",
        )


@pytest.mark.parametrize(
    ("build", "options", "said"),
    [
        (fedclup, {"lam": -0.1}, "lam must be 0 or more, or one of auto, own, valid, valid-own, got -0.1"),
        (fedclup, {"lam": float("nan")}, "lam must be 0 or more"),
        (fedclup, {"local": "sgd", "alpha": 0.1}, "alpha must be left out: clients train by the plan here"),
        (fedclup, {"local": "sgd", "inner": 7}, "inner must be left out: clients train by the plan here"),
        (l2gd, {"local": "sgd", "p": 0.5}, "p must be left out: clients train by the plan here"),
        (fedclup, {"lam": "aut"}, "one of auto, own, valid, valid-own, got 'aut'"),
        (fedclup, {"gamma": 0.0}, "gamma must be a positive number, or one of auto, mean"),
        (fedclup, {"gamma": "many"}, "gamma must be a positive number, or one of auto, mean"),
        (fedclup, {"alpha": -1.0}, "alpha must be a positive number"),
        (fedclup, {"inner": 0}, 'inner must be "auto" or a number of steps'),
        (fedclup, {"inner": "all"}, 'inner must be "auto" or a number of steps'),
        (fedclup, {"absent": "gone"}, "no absent is called 'gone'"),
        (fedclup, {"local": "newton"}, "no local is called 'newton'"),
        (fedclup, {"num_lams": 1}, "num_lams must be 2 or more"),
        (fedclup, {"newcomer_epochs": -1}, "newcomer_epochs must be 0 or more"),
        (
            fedclup,
            {"aggregate": "median", "absent": "stale"},
            'aggregate must be "mean" unless absent is "sampled"',
        ),
        (pfedme, {"eta": 0.0}, "eta must be a positive number"),
        (pfedme, {"beta": 3.0}, r"beta must be a number in \(0, 2\]"),
        (pfedme, {"local_rounds": 0}, "local_rounds must be 1 or more"),
        (l2gd, {"p": 1.0}, r"p must be a number in \(0, 1\)"),
        (l2gd, {"alpha": 0.0}, "alpha must be a positive number"),
        (l2gd, {"coin": "bent"}, "no coin is called 'bent'"),
        (l2gd, {"lam": "own"}, "all clients toss one coin"),
    ],
)
def test_options_that_make_no_sense_are_refused(build, options, said):
    with pytest.raises((BadValue, UnknownChoice), match=said):
        build(MODEL, **options)


def test_steps_from_curvature_are_refused_where_nothing_bounds_it():
    with pytest.raises(BadValue, match='local must be "auto" or "sgd": nothing bounds the curvature'):
        fedclup(mlp((DIM,), 2, hidden=(4,)), local="steps")
