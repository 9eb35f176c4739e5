"""Dealing by hand: who is topped up, what is rounded, which labels are dealt by, whose rows are in the pool."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plures.data import from_arrays
from plures.data.partition.redistribution import (
    key_of,
    labels_to_deal_by,
    names_of,
    pool_of,
    round_to_total,
    top_up,
)

KEY = jax.random.key(0)
LABELS = np.arange(60) % 5
# Row i holds the number i; its client is i mod 6 and its part i mod 3: domain 1, or group 1 of domain 0, or neither.
PARTED = from_arrays(
    np.arange(60.0)[:, None],
    LABELS,
    np.arange(60) % 6,
    domain={str(k): int(k % 3 == 2) for k in range(6)},
    group={str(k): int(k % 3 == 1) for k in range(6)},
)

# Topping up: ten, one, four and no rows, at least three each. Clients 1 and 3 need five; the others have 7 + 1 over.
UNEVEN = np.repeat([0, 1, 2], [10, 1, 4])


def test_topped_up_clients_have_exactly_the_smallest_size():
    owner, poor = top_up(KEY, UNEVEN, 4, 3)

    assert poor == 2
    assert np.bincount(owner)[[1, 3]].tolist() == [3, 3]
    assert len(owner) == 15


def test_donors_give_in_proportion_to_what_they_have_above_the_smallest_size():
    """Five rows from a surplus of 70 and one of 30: 3.5 and 1.5, so three or four and one or two."""
    owner, _ = top_up(KEY, np.repeat([0, 1], [75, 35]), 3, 5)

    assert np.bincount(owner).tolist() in ([71, 34, 5], [72, 33, 5])


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 48), min_size=1, max_size=7), min_size=st.integers(1, 6))
def test_donors_never_fall_below_the_smallest_size(cuts, min_size):
    """For any sizes of up to eight clients that add up to 48, six rows for everyone."""
    sizes = np.diff([0, *sorted(cuts), 48])
    before = np.repeat(np.arange(len(sizes)), sizes)

    owner, poor = top_up(KEY, before, len(sizes), min_size)

    after = np.bincount(owner, minlength=len(sizes))
    assert (after[sizes < min_size] == min_size).all()
    assert (after[sizes >= min_size] >= min_size).all()
    assert poor == (sizes < min_size).sum()
    # Only what is lacking moves.
    assert (owner != before).sum() == np.maximum(min_size - sizes, 0).sum()


def test_who_has_enough_keeps_every_row_of_its_own():
    owner, poor = top_up(KEY, np.repeat([0, 1], [3, 9]), 2, 3)

    assert (owner.tolist(), poor) == ([0] * 3 + [1] * 9, 0)


def test_rows_are_given_at_random():
    """The mean place of the rows given away is the middle, over keys, and for each of those who get them."""
    before = np.repeat([0], 40)
    places = [[np.flatnonzero(top_up(jax.random.key(k), before, 3, 5)[0] == c) for k in range(30)] for c in (1, 2)]

    for found in places:
        assert abs(np.mean(found) - 19.5) < 4 * np.sqrt((40**2 - 1) / 12 / 150)


def test_topping_up_does_not_change_what_it_is_given():
    before = UNEVEN.copy()

    top_up(KEY, before, 4, 3)

    np.testing.assert_array_equal(before, UNEVEN)


@settings(max_examples=60, deadline=None)
@given(
    amounts=st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 50)), min_size=1, max_size=9),
    total=st.integers(1, 200),
    start=st.floats(0, 0.999999),
)
def test_rounded_shares_add_up_and_are_within_one(amounts, total, start):
    amounts = np.array(amounts) + (not sum(amounts))
    exact = amounts / amounts.sum() * total

    found = round_to_total(amounts, total, start)

    assert found.sum() == total
    assert (abs(found - exact) < 1 + 1e-9).all()
    assert (found[amounts == 0] == 0).all()


def test_nobody_of_amount_0_gets_what_rounding_leaves():
    """Ten times 0.1 is a little below 1 in floating point: what is missing must not go to the last one."""
    amounts = np.append(np.full(10, 0.1), 0.0)

    assert amounts.cumsum()[-1] < 1
    assert round_to_total(amounts, 1, 0.0).tolist() == [0] * 9 + [1, 0]


def test_a_fraction_is_rounded_half_up_along_the_way():
    """1.4, 2.8, 4.2, 5.6, 7.0 become 1, 3, 4, 6, 7."""
    assert round_to_total(np.full(5, 1.4), 7).tolist() == [1, 2, 1, 2, 1]


def test_a_pool_has_the_rows_of_its_clients_with_their_labels_and_parts():
    part = PARTED.take([5, 0])

    pool = pool_of(part)

    numbers = part.x[pool.rows, 0].astype(int)
    np.testing.assert_array_equal(np.sort(numbers), np.flatnonzero(np.isin(np.arange(60) % 6, [0, 5])))
    np.testing.assert_array_equal(pool.labels, LABELS[numbers])
    assert pool.facts == [(0, 0), (1, 0)]
    np.testing.assert_array_equal(pool.part, numbers % 3 == 2)


def test_without_groups_and_domains_there_is_one_part():
    pool = pool_of(from_arrays(np.zeros((9, 1)), np.zeros(9, int), np.arange(9) % 3))

    assert (pool.facts, set(pool.part)) == ([(-1, -1)], {0})


def test_real_targets_are_dealt_by_their_deciles():
    target = np.asarray(jax.random.permutation(KEY, 200)) * 0.5 - 7.0

    labels = labels_to_deal_by("regression", target)

    np.testing.assert_array_equal(labels, np.argsort(np.argsort(target)) // 20)


@pytest.mark.parametrize("task", ["classification", "density"])
def test_classes_are_dealt_by_what_they_are(task):
    assert labels_to_deal_by(task, np.array([2.0, 0.0, 1.0])).tolist() == [2, 0, 1]


def test_steps_and_seeds_have_keys_of_their_own():
    keys = [key_of(seed, step) for seed in (0, 1) for step in ("iid", "zipf")]

    assert len({jax.random.key_data(key).tobytes() for key in keys}) == 4


@pytest.mark.parametrize(("number", "last"), [(1, "client-000"), (1000, "client-999"), (1001, "client-1000")])
def test_names_are_in_an_order_that_sorting_keeps(number, last):
    names = names_of(number)

    assert list(names) == sorted(set(names))
    assert (len(names), names[-1]) == (number, last)
