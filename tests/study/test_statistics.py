"""Statistics over clients: means with intervals, the worst decile, the share worse off."""

import math

import jax
import numpy as np
import pytest

from plures.study.statistics import Interval, bootstrap, share_worse, worst_decile

NAN = float("nan")
THIRTY = np.asarray(jax.random.normal(jax.random.key(0), (30,)), float)


def test_the_mean_is_over_clients_after_seeds():
    """Client means 2 and 5 (one seed missing): 3.5, not the mean of the three numbers there are."""
    found = bootstrap(np.array([[1.0, 5.0], [3.0, NAN]]))

    assert found.mean == 3.5


def test_the_interval_is_that_of_the_normal_law_for_many_clients():
    half = 1.96 * THIRTY.std() / math.sqrt(30)

    found = bootstrap(THIRTY)

    assert (found.low, found.high) == pytest.approx((THIRTY.mean() - half, THIRTY.mean() + half), abs=0.15 * half)


def test_seeds_do_not_narrow_the_interval():
    """The interval is over clients: copies of the same seed say nothing new."""
    repeated, once = bootstrap(np.stack([THIRTY] * 10)), bootstrap(THIRTY)

    assert repeated.high - repeated.low == pytest.approx(once.high - once.low)


def test_equal_clients_leave_no_doubt():
    assert bootstrap(np.full(30, 0.25)) == Interval(0.25, 0.25, 0.25)


def test_the_same_seed_gives_the_same_interval():
    assert bootstrap(THIRTY) == bootstrap(THIRTY)
    assert bootstrap(THIRTY) != bootstrap(THIRTY, seed=1)


def test_a_client_without_a_score_does_not_count():
    found = bootstrap(np.array([[NAN, 1.0, 1.0], [NAN, 1.0, 1.0]]))

    assert found == Interval(1.0, 1.0, 1.0)


def test_no_scores_at_all_are_an_unknown_interval():
    found = bootstrap(np.full(3, NAN))

    assert math.isnan(found.mean)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.1, False), (0.0, 0.1, False), (NAN, NAN, False)],
)
def test_zero_is_excluded_when_it_lies_strictly_outside(low, high, expected):
    assert Interval(0.0, low, high).excludes_zero is expected


@pytest.mark.parametrize(("higher_is_better", "expected"), [(True, 10.0), (False, 90.0)])
def test_nine_tenths_reach_the_worst_decile(higher_is_better, expected):
    values = np.append(np.arange(101.0), [NAN, NAN])

    assert worst_decile(values, higher_is_better=higher_is_better) == expected


def test_the_worst_decile_of_nothing_is_unknown():
    assert math.isnan(worst_decile(np.array([NAN]), higher_is_better=True))


@pytest.mark.parametrize(("higher_is_better", "expected"), [(True, 0.25), (False, 0.5)])
def test_the_share_worse_counts_strict_losses_only(higher_is_better, expected):
    """Of four clients one scores less, one the same, two more."""
    values = np.array([0.1, 0.5, 0.9, 0.9])

    assert share_worse(values, np.full(4, 0.5), higher_is_better=higher_is_better) == expected


def test_a_difference_of_rounding_is_no_loss():
    values = np.array([0.1 + 0.2])

    assert share_worse(np.array([0.3]), values, higher_is_better=True) == 0.0


def test_clients_unknown_on_either_side_do_not_count():
    values, reference = np.array([NAN, 0.0, 0.0, 1.0]), np.array([1.0, NAN, 1.0, 0.0])

    assert share_worse(values, reference, higher_is_better=True) == 0.5


def test_the_share_worse_of_nobody_is_unknown():
    assert math.isnan(share_worse(np.array([NAN]), np.array([1.0]), higher_is_better=True))
