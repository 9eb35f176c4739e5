"""Regression in the targets' own unit: trained as if targets were standardized, read and scored in the unit."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.builders import build_model
from plures.data import from_arrays
from plures.data.partition.quantity import iid
from plures.data.worlds.known_optima import through_origin
from plures.engine import run
from plures.errors import BadValue, Unsupported
from plures.local import objective
from plures.methods.fedavg import fedavg
from plures.methods.penalized.vector import PartVector
from plures.models.build import half_squared_error
from plures.models.linear import least_squares, mean, softmax
from plures.models.units import in_units, plain_loss
from plures.recipe import recipe_of
from plures.types import Batch, Plan

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (30, 4))
Y = 300 + 40 * jax.random.normal(jax.random.key(1), (30,))
PAIRS = jnp.stack([Y, Y / 1000], 1)
MASK = jnp.arange(30) < 25
PLAN = Plan(epochs=2, batch=5, lr=0.05)


def some_weights(model):
    weights = model.init(KEY)
    return jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(KEY, leaf.shape), weights)


def federation(y, *, clients=4, **options):
    """Each client's 30 rows; the targets of client k are y plus k."""
    x = np.tile(np.asarray(X), (clients, 1))
    owner = np.repeat([f"c{k}" for k in range(clients)], 30)
    return from_arrays(x, np.tile(np.asarray(y), clients), owner, task="regression", **options)


@pytest.mark.parametrize(
    ("num_outputs", "y", "shift", "scale"), [(1, Y, 300.0, 40.0), (2, PAIRS, [300, 0.3], [40, 0.04])]
)
def test_the_loss_is_that_of_the_plain_model_on_standardized_targets(num_outputs, y, shift, scale):
    plain = least_squares((4,), num_outputs)
    weights, given = some_weights(plain), in_units(plain, shift, scale)
    standard = (y - jnp.asarray(shift)) / jnp.asarray(scale)

    ours, theirs = (
        jax.value_and_grad(lambda w, m=m, t=t: objective(m)(KEY, w, Batch(X, t, MASK))[0])(weights)
        for m, t in ((given, y), (plain, standard))
    )

    assert ours[0] == pytest.approx(float(theirs[0]), rel=1e-4)
    for one, other in zip(*map(jax.tree.leaves, (ours[1], theirs[1])), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_outputs_are_in_the_unit_in_both_passes():
    plain = least_squares((4,))
    weights, given = some_weights(plain), in_units(plain, 300.0, 40.0)

    np.testing.assert_allclose(given.apply(weights, X), 300 + 40 * plain.apply(weights, X), rtol=1e-6)
    np.testing.assert_allclose(
        given.forward(KEY, weights, X, MASK)[0], 300 + 40 * plain.forward(KEY, weights, X, MASK)[0], rtol=1e-6
    )


def test_rmse_is_in_the_unit_and_the_loss_is_standardized():
    given = in_units(least_squares((4,)), 300.0, 40.0)
    outputs = jnp.full(30, 300.0)
    spread = np.sqrt(np.mean((np.asarray(Y)[:25] - 300) ** 2))

    assert given.metrics["rmse"](outputs, Y, MASK) == pytest.approx(spread, rel=1e-5)
    assert given.metrics["loss"](outputs, Y, MASK) == pytest.approx(0.5 * (spread / 40) ** 2, rel=1e-4)


@pytest.mark.parametrize("make", [least_squares, mean])
def test_the_summary_determines_the_standardized_loss(make):
    plain = make((4,), 1)
    given, weights = in_units(plain, 300.0, 40.0), some_weights(plain)

    sums = given.summary.of(X, Y, MASK)

    losses = given.loss(given.apply(weights, X), Y)
    assert given.summary.loss(weights, sums) == pytest.approx(float(losses[:25].mean()), rel=1e-4)
    shapes = jax.tree.map(jnp.shape, given.summary.zeros(weights))
    assert shapes == jax.tree.map(jnp.shape, sums)


def test_parts_features_and_penalty_are_those_of_the_plain_model():
    plain = least_squares((4,), ridge=0.3)
    given, weights = in_units(plain, 300.0, 40.0), some_weights(plain)

    assert given.parts == plain.parts
    assert given.penalty is plain.penalty
    assert given.features is plain.features
    outputs, features, _ = given.featured(KEY, weights, X, MASK)
    np.testing.assert_array_equal(features, X)
    np.testing.assert_allclose(outputs, given.apply(weights, X), rtol=1e-6)
    assert PartVector(given, "head", 0.0).convex
    assert plain_loss(given) is half_squared_error is plain_loss(plain)


def test_the_recipe_says_the_unit():
    given = in_units(least_squares((4,)), 300.0, 40.0)

    assert recipe_of(given).text.startswith("in_units(shift=300, scale=40) of least_squares(")
    assert recipe_of(given).known


def test_what_has_no_unit_is_refused():
    given = in_units(least_squares((4,)), 300.0, 40.0)

    with pytest.raises(Unsupported, match="classification"):
        in_units(softmax((4,), 3), 0.0, 1.0)
    with pytest.raises(Unsupported, match="has a unit already"):
        in_units(given, 0.0, 1.0)
    with pytest.raises(BadValue, match="scale must be positive"):
        in_units(least_squares((4,)), 0.0, 0.0)
    with pytest.raises(BadValue, match="shift must be a finite number"):
        in_units(least_squares((4,)), np.nan, 1.0)


def test_a_model_built_by_name_has_the_unit_of_seen_training_rows():
    y = np.asarray(Y)
    split = np.where(np.tile(np.arange(30), 4) % 5 == 0, "test", "train")
    whole = federation(y, split=split)
    seen = replace(whole, held_out=np.array([False, False, False, True]))

    unit = build_model("least_squares", seen).unit

    learned = np.concatenate([seen.rows_of(name, "train")[1] for name in seen.names[:3]]).astype(float)
    assert len(learned) == 72
    assert unit.shift == pytest.approx(learned.mean(), rel=1e-6)
    assert unit.scale == pytest.approx(learned.std(), rel=1e-6)
    assert unit == build_model("least_squares", seen.hold_out()[0]).unit


def test_every_output_has_a_unit_of_its_own():
    found = from_arrays(np.asarray(X), np.asarray(PAIRS), np.zeros(30), task="regression", shares=(1.0, 0.0, 0.0))

    unit = build_model("least_squares", found).unit

    np.testing.assert_allclose(unit.shift, np.asarray(PAIRS).mean(0), rtol=1e-5)
    np.testing.assert_allclose(unit.scale, np.asarray(PAIRS).std(0), rtol=1e-5)


@pytest.mark.parametrize("value", [0.0, 7.0, -1e6])
def test_a_constant_target_has_scale_one_and_is_predicted(value):
    found = federation(np.full(30, value, np.float32))
    model = build_model("least_squares", found)

    result = run(fedavg(model, plan=PLAN), found, rounds=2)

    assert (model.unit.shift, model.unit.scale) == (value, 1.0)
    np.testing.assert_allclose(result.model_for("c0").predict(X), value, rtol=1e-6)


def test_worlds_and_models_made_in_python_stay_plain():
    assert build_model("least_squares", federation(Y, standardize_target=False)).unit is None
    assert least_squares((4,)).unit is None
    assert through_origin(3).unit is None


def test_a_real_set_keeps_its_unit_when_it_is_dealt_anew():
    assert iid(federation(Y), num_clients=3).standardize_target
    assert federation(Y).subset(["c1", "c2"]).standardize_target
