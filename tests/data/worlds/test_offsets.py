"""Worlds whose clients differ by a known amount."""

import math

import numpy as np
import pytest

from plures.data import load
from plures.data.worlds.offsets import linear_offsets, logistic_offsets, spectrum
from plures.errors import BadValue

WORLDS = pytest.mark.parametrize("world", [linear_offsets, logistic_offsets])


def stacked(world, split="train"):
    """(clients, rows, dim) inputs and (clients, rows) targets."""
    rows = [world.federation.rows_of(name, split) for name in world.federation.names]
    return np.stack([x for x, _ in rows]).astype(float), np.stack([y for _, y in rows])


@WORLDS
@pytest.mark.parametrize("num_clients", [2, 7, 20])
def test_offsets_have_exactly_the_given_norm_and_sum_to_zero(world, num_clients):
    truth = world(num_clients=num_clients, radius=0.3, center=2.0, rows=9).truth

    common = truth.mean(0)
    np.testing.assert_allclose(np.linalg.norm(truth - common, axis=1), 0.3, rtol=1e-12)
    assert np.linalg.norm(common) == pytest.approx(2.0, rel=1e-12)


@WORLDS
def test_rows_are_training_rows_and_a_third_as_many_are_valid_and_test_rows(world):
    federation = world(num_clients=4, rows=30).federation

    assert federation.count.tolist() == [[30, 10, 10]] * 4


def test_targets_differ_from_those_of_the_truth_by_noise_of_the_given_deviation():
    """A standard deviation over n draws has the relative standard error 1 / sqrt(2 n)."""
    world = linear_offsets(num_clients=10, rows=400, sigma=2.0)
    x, y = stacked(world)

    left = y - np.einsum("crd,cd->cr", x, world.truth)

    assert left.std() == pytest.approx(2.0, rel=4 / math.sqrt(2 * left.size))
    assert abs(left.mean()) < 4 * 2.0 / math.sqrt(left.size)


def test_without_noise_targets_are_those_of_the_truth():
    world = linear_offsets(num_clients=4, sigma=0.0)
    x, y = stacked(world, "test")

    np.testing.assert_allclose(y, np.einsum("crd,cd->cr", x, world.truth), atol=1e-5)


def test_inputs_have_the_given_eigenvalues():
    x, _ = stacked(linear_offsets(num_clients=10, rows=2000, least=0.5, most=4.0, dim=4))

    found = np.square(x).mean((0, 1))

    np.testing.assert_allclose(found, [0.5, 1.0, 2.0, 4.0], rtol=5 * math.sqrt(2 / 20000))


def test_training_alone_has_the_expected_risk():
    """Least squares on a Gaussian design: sigma^2 tr(C^-1) / (n - d - 1), here over 2,000 clients."""
    world = linear_offsets(num_clients=2000, rows=20, dim=3, sigma=0.7, least=0.5, most=2.0)
    x, y = stacked(world)
    own = np.linalg.solve(np.einsum("cri,crj->cij", x, x), np.einsum("cri,cr->ci", x, y)[..., None])[..., 0]

    risks = np.square(own - world.truth).sum(1)

    assert world.facts["local_risk"] == pytest.approx(0.49 * 3.5 / 16)
    assert risks.mean() == pytest.approx(world.facts["local_risk"], abs=4 * risks.std() / math.sqrt(2000))


def test_labels_have_the_frequency_of_the_logistic_model():
    """In ten bins of x . w the share of ones is the mean of 1 / (1 + exp(-x . w)), within four standard errors."""
    world = logistic_offsets(num_clients=20, rows=1000, radius=1.0)
    x, y = stacked(world)
    chance = 1 / (1 + np.exp(-np.einsum("crd,cd->cr", x, world.truth))).ravel()
    order = np.argsort(chance)

    for bin_ in np.array_split(order, 10):
        off = y.ravel()[bin_].mean() - chance[bin_].mean()
        assert abs(off) < 4 * math.sqrt(np.mean(chance[bin_] * (1 - chance[bin_])) / len(bin_))


def test_labels_change_with_the_radius_and_inputs_do_not():
    near, far = (logistic_offsets(num_clients=6, rows=60, radius=radius) for radius in (0.1, 2.0))

    np.testing.assert_array_equal(stacked(near)[0], stacked(far)[0])
    assert 0.02 < (stacked(near)[1] != stacked(far)[1]).mean() < 0.6


@pytest.mark.parametrize("name", ["linear_offsets", "logistic_offsets"])
def test_worlds_are_loaded_by_name_and_seeds_differ(name):
    one, same, other = (load(f"{name}:num_clients=4,rows=12,seed={seed}") for seed in (1, 1, 2))

    assert one.fingerprint == same.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rows": 0}, "rows"),
        ({"radius": -1.0}, "radius"),
        ({"num_clients": 1}, "num_clients"),
        ({"least": 2.0}, "least"),
    ],
)
@WORLDS
def test_impossible_worlds_are_refused(world, options, named):
    with pytest.raises(BadValue, match=named):
        world(**options)


def test_a_single_client_may_be_where_the_average_is():
    assert np.linalg.norm(linear_offsets(num_clients=1, radius=0.0).truth) == pytest.approx(1.0)


def test_eigenvalues_stand_in_equal_ratios():
    np.testing.assert_allclose(spectrum(3, 1.0, 9.0), [1.0, 3.0, 9.0])
