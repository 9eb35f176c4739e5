"""Worlds of groups with one optimum each: the truth they carry is the one their rows have."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.data import load
from plures.data.worlds.known_optima import cube_regression, quadratics, through_origin
from plures.errors import BadValue
from plures.methods.clustering.oracle import oracle
from plures.types import Plan, Weights


@pytest.fixture(scope="module")
def cube():
    return cube_regression(num_clients=12, num_groups=3, seed=4)


def rows_of(world, client, split="train"):
    return world.federation.rows_of(world.federation.names[client], split)


@pytest.mark.parametrize("client", [0, 5, 10])
def test_targets_are_exactly_those_of_the_truth(cube, client):
    x, y = rows_of(cube, client)

    assert x.shape == (9, 10)
    np.testing.assert_allclose(y, x.astype(float) @ cube.truth[client], rtol=1e-6, atol=1e-4)


def test_coefficients_are_corners_that_a_group_shares(cube):
    assert set(np.unique(cube.truth)) == {0.0, 100.0}
    assert cube.federation.group.tolist() == [0, 1, 2] * 4
    np.testing.assert_array_equal(cube.truth[:3], cube.truth[9:])


def test_inputs_have_the_group_as_their_mean():
    """Over 400 inputs of 10 numbers each, a mean has the standard error 1 / sqrt(4000)."""
    world = cube_regression(num_clients=3, num_groups=3, rows=400)

    means = [rows_of(world, client)[0].mean() for client in range(3)]

    np.testing.assert_allclose(means, [0.0, 1.0, 2.0], atol=5 / math.sqrt(4000))


def test_noise_has_the_given_deviation():
    world = cube_regression(num_clients=2, num_groups=1, rows=1000, sigma=3.0)
    x, y = rows_of(world, 1)

    assert (y - x @ world.truth[1]).std() == pytest.approx(3.0, rel=5 / math.sqrt(2000))


def test_the_gradient_is_that_of_half_the_mean_squared_error(cube):
    """X'(Xw - y) / n, and no intercept."""
    x, y = rows_of(cube, 7)
    w = np.linspace(-1.0, 1.0, 10)

    def loss(params):
        return cube.model.loss(cube.model.apply(Weights(params), jnp.asarray(x)), jnp.asarray(y)).mean()

    found = jax.grad(loss)({"kernel": jnp.asarray(w)})

    assert set(found) == {"kernel"}
    np.testing.assert_allclose(found["kernel"], x.T @ (x @ w - y) / 9, rtol=1e-5)


def test_the_error_on_valid_rows_is_the_distance_from_the_truth(cube):
    """A model that stays at 0 is as far as its coefficients are long."""
    done = run(oracle(cube.model, num_groups=3, plan=Plan(steps=0)), cube.federation, rounds=1)

    for split in ("valid", "test"):
        found = done.record.latest("personal", split).metrics["rmse"]
        np.testing.assert_allclose(math.sqrt(10) * found, np.linalg.norm(cube.truth, axis=1), rtol=1e-5)


def test_a_group_finds_what_no_client_can(cube):
    for client in range(3):
        x, _ = rows_of(cube, client)
        assert np.linalg.matrix_rank(x) < 10
        parts = [rows_of(cube, one) for one in range(client, 12, 3)]
        whole, targets = np.concatenate([one[0] for one in parts]), np.concatenate([one[1] for one in parts])

        found, *_ = np.linalg.lstsq(whole.astype(float), targets.astype(float), rcond=None)

        np.testing.assert_allclose(found, cube.truth[client], atol=0.01)


def test_quadratics_have_exact_means_and_noise():
    world = quadratics(num_clients=6, num_groups=3, dim=4, rows=30, gap=7.0, sigma=2.0)

    for client in range(6):
        _, y = rows_of(world, client)
        np.testing.assert_allclose(y.mean(0), world.truth[client], atol=1e-5)
        assert np.square(y - world.truth[client]).sum(1).mean() == pytest.approx(4.0, rel=1e-5)
    assert world.truth[:3, 0].tolist() == [0.0, 7.0, 14.0]
    assert (world.truth[:, 1:] == 0).all()


def test_a_quadratic_on_a_line_without_noise_is_one_row():
    world = quadratics(num_clients=4, num_groups=2, dim=1, rows=1, sigma=0.0)

    assert [rows_of(world, client)[1].tolist() for client in range(4)] == [[0.0], [20.0]] * 2


@pytest.mark.slow
def test_averaging_noisy_steps_stays_as_near_as_the_formula_says():
    """lr sigma^2 / (n (2 - lr)) with n = 4; 160 draws in 10 dimensions have a standard error of 3.5 %."""
    world = quadratics(num_clients=64, num_groups=16, dim=10)
    method = oracle(world.model, num_groups=16, plan=Plan(steps=1, batch=1, lr=0.5))

    done = run(method, world.federation, rounds=60, eval_every=5)

    table = done.record.table().filter(kind="personal", split="valid", metric="loss")
    late = table.filter(table["round"] > 10)["value"].to_numpy()
    assert 2 * late.mean() == pytest.approx(0.5 / (4 * 1.5), rel=0.15)


@pytest.mark.parametrize("make", [cube_regression, quadratics])
def test_the_seed_decides_what_is_drawn(make):
    one, again, other = (make(seed=seed).federation.y for seed in (0, 0, 1))

    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (cube_regression, {"num_clients": 3}),
        (cube_regression, {"rows": 0}),
        (quadratics, {"num_groups": 0}),
        (quadratics, {"rows": 1}),
    ],
)
def test_sizes_that_cannot_work_are_refused(make, options):
    with pytest.raises(BadValue):
        make(**options)


def test_the_worlds_are_loaded_by_name():
    assert load("cube_regression:num_clients=6,num_groups=2").num_groups == 2
    assert load("quadratics:num_clients=6,dim=3").num_outputs == 3


def test_a_line_through_the_origin_has_no_intercept():
    weights = through_origin(3).init(jax.random.key(0))

    assert through_origin(3).apply(weights, jnp.zeros((2, 3))).tolist() == [0.0, 0.0]
