"""Methods in pairs: differences over the same clients, corrected for how many pairs are looked at."""

from itertools import combinations

import jax
import numpy as np
import pytest

from plures.study.pairs import in_pairs

CLIENTS = 40
NOISE = np.asarray(jax.random.normal(jax.random.key(3), (30, CLIENTS)), float)
NAN = float("nan")


def test_a_difference_is_paired_over_clients():
    """Clients differ wildly, the two methods by exactly 0.1 each: there is no doubt about it."""
    base = np.linspace(0, 100, CLIENTS)

    (pair,) = in_pairs({"a": base + 0.1, "b": base}, [("a", "b")])

    assert pair.mean == pytest.approx(0.1)
    assert (pair.low, pair.high) == pytest.approx((0.1, 0.1), abs=1e-9)
    assert pair.clear
    assert pair.p < 0.001


def test_one_pair_alone_has_the_interval_of_the_normal_law():
    gap = NOISE[0]

    (pair,) = in_pairs({"a": gap, "b": np.zeros(CLIENTS)}, [("a", "b")])

    half = 1.96 * gap.std() / np.sqrt(CLIENTS)
    assert (pair.low, pair.high) == pytest.approx((gap.mean() - half, gap.mean() + half), abs=0.15 * half)


def test_more_pairs_widen_every_interval():
    scores = {str(number): values for number, values in enumerate(NOISE)}
    some = in_pairs(scores, [("0", "1")])[0]

    among_many = in_pairs(scores, [("0", str(other)) for other in range(1, 30)])[0]

    assert among_many.mean == some.mean
    assert among_many.high - among_many.low > 1.2 * (some.high - some.low)
    assert among_many.p >= some.p


def test_of_many_methods_that_do_not_differ_few_studies_call_one_clear():
    """Twenty studies of 29 comparisons each: without a correction about one comparison in twenty is clear."""
    clear = 0
    for study in range(20):
        drawn = np.asarray(jax.random.normal(jax.random.key(study), (30, CLIENTS)), float)
        scores = {str(number): values for number, values in enumerate(drawn)}
        clear += any(pair.clear for pair in in_pairs(scores, [("0", str(other)) for other in range(1, 30)]))

    assert clear <= 4


def test_the_best_of_equal_methods_is_not_called_better_either():
    """The method with the largest mean was picked by the same data; compared with the others alone, one in four is clear."""
    clear = 0
    for study in range(40):
        drawn = np.asarray(jax.random.normal(jax.random.key(200 + study), (8, CLIENTS)), float)
        scores = {str(number): values for number, values in enumerate(drawn)}
        best = max(scores, key=lambda name: scores[name].mean())
        pairs = in_pairs(scores, list(combinations(scores, 2)))
        clear += any(pair.clear for pair in pairs if best in (pair.method, pair.other))

    assert clear <= 6


def test_few_clients_have_intervals_of_students_law():
    """Three clients, differences 4, 5 and 6: half the interval is 4.30 standard errors."""
    (pair,) = in_pairs({"a": np.array([4.0, 5.0, 6.0]), "b": np.zeros(3)}, [("a", "b")])

    half = 4.303 * np.sqrt(1 / 3)
    assert (pair.high - pair.low) / 2 == pytest.approx(half, rel=0.15)


def test_one_client_tells_nothing_of_others():
    (pair,) = in_pairs({"a": np.array([0.61]), "b": np.array([0.60])}, [("a", "b")])

    assert not pair.clear
    assert pair.p == 1


def test_an_interval_leaves_zero_out_just_where_p_is_below_a_twentieth():
    shifts = np.linspace(0, 1, 29)
    scores = {str(number): values + (shifts[number - 1] if number else 0) for number, values in enumerate(NOISE)}

    pairs = in_pairs(scores, [("0", str(other)) for other in range(1, 30)])

    assert {pair.clear for pair in pairs} == {True, False}
    assert all(pair.clear == (pair.p < 0.05) for pair in pairs if abs(pair.p - 0.05) > 0.005)


def test_the_other_way_round_is_the_opposite():
    scores = {"a": NOISE[0], "b": NOISE[1]}

    (one,), (other,) = in_pairs(scores, [("a", "b")]), in_pairs(scores, [("b", "a")])

    assert (other.mean, other.low, other.high, other.p) == pytest.approx((-one.mean, -one.high, -one.low, one.p))


def test_equal_scores_are_within_noise():
    (pair,) = in_pairs({"a": NOISE[0], "b": NOISE[0]}, [("a", "b")])

    assert (pair.mean, pair.low, pair.high, pair.p) == (0, 0, 0, 1)
    assert not pair.clear


def test_a_pair_without_a_common_client_is_unknown_and_spoils_no_other():
    scores = {"a": np.array([1.0, 1.0, NAN]), "b": np.array([NAN, NAN, 1.0]), "c": np.zeros(3)}

    unknown, known = in_pairs(scores, [("a", "b"), ("a", "c")])

    assert np.isnan(unknown.mean)
    assert unknown.p == 1
    assert not unknown.clear
    assert known.mean == 1


def test_no_pairs_are_no_comparisons():
    assert in_pairs({"a": NOISE[0]}, []) == []
