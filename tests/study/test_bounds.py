"""The advice to join, with the numbers of their formulas."""

import jax
import numpy as np
import pytest

from plures.data.worlds import density_truth
from plures.errors import BadValue
from plures.study.bounds import Discrepancy, discrepancy_categorical, worth_joining


def normal(seed, *shape):
    return np.asarray(jax.random.normal(jax.random.key(seed), shape), float)


def test_a_small_client_joins_and_a_large_one_stays_alone():
    """sqrt(4/16) = 0.5 and sqrt(4/1600) = 0.05 alone; sqrt(4/40000) + 0.3 = 0.31 together."""
    small, large = (worth_joining(dim=4, own_rows=m, all_rows=40_000, discrepancy=0.3) for m in (16, 1600))

    assert (small.alone, large.alone) == pytest.approx((0.5, 0.05))
    assert (small.together, large.together) == pytest.approx((0.31, 0.31))
    assert str(small) == "join: together 0.310 < alone 0.500 (a relative guide)"
    assert str(large) == "stay alone: together 0.310 >= alone 0.050 (a relative guide)"


def test_a_client_that_is_everyone_gains_nothing():
    assert not worth_joining(dim=4, own_rows=16, all_rows=16, discrepancy=Discrepancy(0.0, exact=True)).worth


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"dim": 0}, "dim"),
        ({"own_rows": 0}, "own_rows"),
        ({"all_rows": 15}, "all_rows"),
        ({"discrepancy": -1}, "disc"),
    ],
)
def test_joining_refuses_what_cannot_be(given, name):
    with pytest.raises(BadValue, match=name):
        worth_joining(**{"dim": 4, "own_rows": 16, "all_rows": 400, "discrepancy": 0.1} | given)


def test_categorical_discrepancies_of_the_synthetic_world():
    truth = density_truth()
    groups = [truth[i::4].mean(0) for i in range(4)]

    to_all = np.array([float(discrepancy_categorical(law, truth.mean(0))) for law in truth])
    to_group = np.array([float(discrepancy_categorical(law, groups[k % 4])) for k, law in enumerate(truth)])

    assert (to_all.mean(), to_all.min(), to_all.max()) == pytest.approx((0.3875, 0.3675, 0.6175), abs=1e-9)
    assert (to_group.mean(), to_group.min(), to_group.max()) == pytest.approx((0.2384, 0.23, 0.24), abs=5e-5)


def test_the_categorical_discrepancy_is_attained_by_a_point_mass():
    """loss 1 - h(y), so L1 - L2 = sum_y h(y) (D2(y) - D1(y)): random h come close and never above."""
    one, other = (np.asarray(jax.nn.softmax(normal(seed, 6))) for seed in (0, 1))
    predictors = np.asarray(jax.nn.softmax(30 * normal(2, 5000, 6), axis=-1))
    brute = np.abs(predictors @ (other - one)).max()

    found = discrepancy_categorical(one, other)

    assert found.exact
    assert brute <= found.value + 1e-9
    assert found.value == pytest.approx(brute, abs=1e-4)


@pytest.mark.parametrize("other", [[0.5, 0.5], [0.5, 0.6, 0.1], [1.5, -0.5, 0.0], [[1.0, 0.0, 0.0]]])
def test_a_law_over_other_symbols_is_refused(other):
    with pytest.raises(BadValue, match="other"):
        discrepancy_categorical([0.2, 0.3, 0.5], other)
