"""Losses of one example: values by hand, derivatives against differences, bounds, and targets that are refused."""

import numpy as np
import pytest
from ellipses_world import LOSSES

from plures.errors import BadData, BadValue, UnknownChoice
from plures.solvers import LINEAR_LOSSES, as_clients
from plures.solvers.losses import huber, logistic, loss_named, multinomial

STEP = 1e-6


def made(name):
    return multinomial(3) if name == "multinomial" else LINEAR_LOSSES[name]()


def examples(link, seed=0, number=200):
    """Outputs and targets away from the kinks, where differences mean nothing."""
    rng = np.random.default_rng(seed)
    o = 1.7 * rng.normal(size=(number, link.num_outputs))
    y = rng.normal(size=number) if link.name in ("huber", "least_squares") else 1.0 * rng.integers(0, 2, number)
    if link.name == "huber":
        return o[np.abs(np.abs(o[:, 0] - y) - 1) > 1e-3], y[np.abs(np.abs(o[:, 0] - y) - 1) > 1e-3]
    return o, y


def test_there_are_six_losses():
    assert tuple(sorted(LINEAR_LOSSES)) == LOSSES


@pytest.mark.parametrize(
    ("name", "o", "y", "value"),
    [
        ("squared_hinge", 0.25, 1, 0.75**2),
        ("squared_hinge", 0.25, 0, 1.25**2),
        ("squared_hinge", 1.5, 1, 0.0),
        ("logistic", 0.0, 1, np.log(2)),
        ("logistic", 2.0, 0, np.log(1 + np.exp(2.0))),
        ("least_squares", 3.0, 1, 2.0),
        ("huber", 1.5, 1, 0.125),
        ("huber", 4.0, 1, 2.5),
        ("huber", -2.0, 1, 2.5),
        ("poisson", 0.5, 3, np.exp(0.5) - 1.5),
    ],
)
def test_values_are_those_of_the_formula(name, o, y, value):
    found = made(name).value(np.array([[o]]), np.array([1.0 * y]))

    np.testing.assert_allclose(found, [value], rtol=1e-14, atol=1e-15)


def test_value_of_multinomial_is_the_surprise_of_the_right_class():
    found = multinomial(3).value(np.log([[1.0, 2.0, 5.0]]), np.array([1.0]))

    np.testing.assert_allclose(found, [-np.log(2 / 8)], rtol=1e-14)


@pytest.mark.parametrize("name", LOSSES)
def test_slopes_are_those_of_the_values(name):
    link = made(name)
    o, y = examples(link)

    found = link.gradient(o, y)

    for c, way in enumerate(STEP * np.eye(link.num_outputs)):
        rise = (link.value(o + way, y) - link.value(o - way, y)) / (2 * STEP)
        np.testing.assert_allclose(found[:, c], rise, atol=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_curves_are_those_of_the_slopes(name):
    link = made(name)
    o, y = examples(link)

    found = link.curvature(o, y)

    for c, way in enumerate(STEP * np.eye(link.num_outputs)):
        rise = (link.gradient(o + way, y) - link.gradient(o - way, y)) / (2 * STEP)
        np.testing.assert_allclose(found[:, :, c], rise, atol=2e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_no_curvature_is_above_the_steepest_or_below_zero(name):
    link = made(name)
    o, y = examples(link)

    curvatures = np.linalg.eigvalsh(link.curvature(3 * o, y))

    assert curvatures.min() >= -1e-12
    assert curvatures.max() <= link.steepest + 1e-12


@pytest.mark.parametrize(
    ("name", "o", "steepest"),
    [
        ("logistic", [[0.0]], 0.25),
        ("multinomial", [[0.0, 0.0, -800.0]], 0.5),
        ("squared_hinge", [[0.0]], 2.0),
        ("huber", [[1.0]], 1.0),
        ("least_squares", [[5.0]], 1.0),
    ],
)
def test_the_steepest_curvature_is_reached(name, o, steepest):
    link = made(name)

    curvatures = np.linalg.eigvalsh(link.curvature(np.array(o), np.array([1.0])))

    assert link.steepest == steepest
    np.testing.assert_allclose(curvatures.max(), steepest, rtol=1e-12)


def test_two_classes_of_multinomial_are_logistic_in_the_difference():
    rng = np.random.default_rng(0)
    o, y = rng.normal(size=(50, 2)), 1.0 * rng.integers(0, 2, 50)

    found = multinomial(2).value(o, y)

    np.testing.assert_allclose(found, logistic().value(o[:, 1:] - o[:, :1], y), rtol=1e-12)


def test_wide_huber_is_least_squares():
    rng = np.random.default_rng(0)
    o, y = rng.normal(size=(50, 1)), rng.normal(size=50)

    found = huber(1e3).value(o, y)

    np.testing.assert_allclose(found, 0.5 * (o[:, 0] - y) ** 2, rtol=1e-14)


@pytest.mark.parametrize("name", LOSSES)
def test_far_outputs_stay_finite(name):
    link = made(name)
    o = np.array([[1.0], [-1.0]]) * 700.0 * np.ones(link.num_outputs)

    for function in (link.value, link.gradient, link.curvature):
        assert np.isfinite(function(o, np.ones(2))).all()


def test_classes_of_multinomial_are_counted():
    assert loss_named("multinomial", np.array([0.0, 3.0, 1.0])).num_outputs == 4


def test_an_unknown_loss_is_refused_with_the_known_ones():
    with pytest.raises(
        UnknownChoice, match=r"no loss is called 'logistics'; did you mean 'logistic'\? Known: huber, "
    ):
        loss_named("logistics", np.zeros(2))


@pytest.mark.parametrize("width", [0.0, -1.0, np.inf, np.nan])
def test_a_huber_width_must_be_positive(width):
    with pytest.raises(BadValue, match="width must be a positive number"):
        huber(width)


def test_one_class_is_too_few():
    with pytest.raises(BadValue, match="num_classes must be 2 or more, got 1"):
        multinomial(1)


@pytest.mark.parametrize(
    ("loss", "y", "wanted"),
    [
        ("logistic", [0.0, 2.0], "must be 0 or 1; got 0 to 2"),
        ("squared_hinge", [-1.0, 1.0], "must be 0 or 1; got -1 to 1"),
        ("poisson", [3.0, -1.0], "must be 0 or more; got -1 to 3"),
        ("multinomial", [0.5, 2.0], "must be whole numbers from 0 on, of two classes or more; got 0.5 to 2"),
    ],
)
def test_targets_that_do_not_fit_are_refused(loss, y, wanted):
    with pytest.raises(BadData, match=wanted):
        as_clients([[[1.0], [2.0]]], [y], loss=loss)


@pytest.mark.parametrize("y", [[-1.0, 0.0], [0.0, 0.0], [0.0, 0.5]])
def test_classes_that_make_no_sense_are_refused_as_targets(y):
    """The user gave targets, not a ``num_classes``: the message should be about targets."""
    with pytest.raises(BadData):
        as_clients([[[1.0], [2.0]]], [y], loss="multinomial")
