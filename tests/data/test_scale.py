"""Standardization from what clients could send: merged moments are those of all rows together."""

import jax
import numpy as np
import pytest

from plures.data.scale import ColumnMoments, ColumnScale, client_moments, federated_scale, merge_moments

KEY = jax.random.key(0)
# Four clients of unequal size whose rows are interleaved, columns of very different scale, one value in six missing.
OWNER = np.asarray(jax.random.permutation(KEY, np.repeat([0, 1, 2, 3], [1, 5, 20, 34])))
X = np.array(jax.random.normal(jax.random.key(1), (60, 3))) * [1.0, 1e-3, 1e4] + [5.0, 0.0, -1e5]
X[np.asarray(jax.random.uniform(jax.random.key(2), X.shape)) < 1 / 6] = np.nan


def test_the_moments_of_a_client_are_those_of_its_known_values():
    found = client_moments(X, OWNER)

    for client in range(4):
        for column in range(3):
            own = X[client == OWNER, column]
            known = own[~np.isnan(own)]
            mean = known.mean() if len(known) else 0.0
            expected = [len(known), mean, ((known - mean) ** 2).sum()]
            np.testing.assert_allclose([part[client, column] for part in found], expected, rtol=1e-12)


def test_merged_moments_are_those_of_all_rows_together():
    number, mean, square = merge_moments(client_moments(X, OWNER))

    np.testing.assert_array_equal(number, (~np.isnan(X)).sum(0))
    np.testing.assert_allclose(mean, np.nanmean(X, axis=0), rtol=1e-12)
    np.testing.assert_allclose(square / number, np.nanvar(X, axis=0), rtol=1e-10)


def test_merging_does_not_lose_a_small_spread_beside_a_large_mean():
    """The values are 1e8 + {0, 1}, one per client: a difference of squares would lose the variance of 1/4."""
    x = 1e8 + np.arange(100.0)[:, None] % 2

    square = merge_moments(client_moments(x, np.arange(100))).square

    np.testing.assert_allclose(square / 100, [0.25], rtol=1e-9)


def test_a_client_without_rows_sends_zeros():
    found = client_moments(np.array([[1.0], [5.0], [9.0]]), np.array([3, 0, 3]))

    assert [part.ravel().tolist() for part in found] == [[1, 0, 0, 2], [5, 0, 0, 5], [0, 0, 0, 32]]


def test_a_client_without_a_known_value_changes_nothing():
    with_it = client_moments(np.array([[1.0], [np.nan], [4.0]]), np.array([0, 1, 2]))

    assert [part.tolist() for part in merge_moments(with_it)] == [[2.0], [2.5], [4.5]]


def test_a_column_without_a_known_value_has_mean_0_and_deviation_1():
    scale = federated_scale(np.full((3, 1), np.nan), np.arange(3), np.full(3, True))

    assert (scale.mean.tolist(), scale.deviation.tolist()) == ([0.0], [1.0])


def test_standardized_columns_have_mean_0_and_deviation_1():
    scale = federated_scale(X, OWNER, np.full(60, True))

    known = np.where(np.isnan(X), np.nan, scale.apply(X))
    np.testing.assert_allclose(np.nanmean(known, axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(np.nanstd(known, axis=0), 1.0, rtol=1e-6)


def test_a_missing_value_becomes_0():
    scale = federated_scale(X, OWNER, np.full(60, True))

    assert (scale.apply(X)[np.isnan(X)] == 0.0).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -0.1, -3e7, 1e-20])
def test_a_constant_column_has_deviation_1_and_becomes_0(value):
    x = np.full((99, 1), value)

    scale = federated_scale(x, np.arange(99) % 7, np.full(99, True))

    assert scale.deviation.tolist() == [1.0]
    np.testing.assert_allclose(scale.apply(x), 0.0, atol=1e-6)


def test_a_column_of_small_numbers_is_not_constant():
    x = 1e-20 * np.arange(4.0)[:, None]

    scale = federated_scale(x, np.zeros(4, int), np.full(4, True))

    np.testing.assert_allclose(scale.deviation, x.std(0), rtol=1e-12)


def test_rows_that_are_not_used_have_no_influence():
    use = np.arange(60) % 3 > 0
    elsewhere = np.where(use[:, None], X, 1e9)

    found, expected = federated_scale(elsewhere, OWNER, use), federated_scale(X[use], OWNER[use], use[use])

    np.testing.assert_array_equal(found.mean, expected.mean)
    np.testing.assert_array_equal(found.deviation, expected.deviation)


def test_clients_may_have_names():
    names = np.array(["a", "d", "c", "b"])[OWNER]

    found, expected = (federated_scale(X, owner, np.full(60, True)) for owner in (names, OWNER))

    np.testing.assert_allclose(found.deviation, expected.deviation, rtol=1e-12)


def test_scaling_keeps_the_shape_and_gives_floats():
    scale = ColumnScale(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 4.0, 8.0]))

    found = scale.apply(np.arange(8).reshape(2, 2, 2))

    assert (found.dtype, found.tolist()) == (
        np.float32,
        [[[-1.0, -0.5], [-0.25, -0.125]], [[3.0, 1.5], [0.75, 0.375]]],
    )


def test_images_are_standardized_pixel_by_pixel():
    x = np.array(jax.random.uniform(KEY, (10, 2, 3)))

    scale = federated_scale(x, np.arange(10) % 2, np.full(10, True))

    np.testing.assert_allclose(scale.mean.reshape(2, 3), x.mean(0), rtol=1e-6)
    np.testing.assert_allclose(scale.deviation.reshape(2, 3), x.std(0), rtol=1e-5)


def test_three_numbers_per_column_are_sent():
    assert (
        [part.shape for part in client_moments(X, OWNER)] == [(4, 3)] * len(ColumnMoments._fields) == [(4, 3)] * 3
    )
