"""Splits: sizes by the shares, every class in its share, time in order, recordings in one piece."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plures.data.splits import at_random, by_order, by_unit, rank_within, sizes_of, stratified
from plures.errors import BadValue

KEY = jax.random.key(0)
SHARES = (0.6, 0.2, 0.2)
MANY_SHARES = [
    (0.6, 0.2, 0.2),
    (0.8, 0.0, 0.2),
    (0.5, 0.5, 0.0),
    (1.0, 0.0, 0.0),
    (0.1, 0.1, 0.8),
    (0.9, 0.05, 0.05),
]
SIZES = np.array([1, 2, 3, 4, 5, 17, 100])
# Interleaved on purpose: the rows of a client do not lie together.
OWNER = np.asarray(jax.random.permutation(KEY, np.repeat(np.arange(len(SIZES)), SIZES)))
LABELS = np.asarray(jax.random.randint(jax.random.key(1), OWNER.shape, 0, 4))
DRAWN = {
    "at_random": lambda key, owner: at_random(key, owner, SHARES),
    "stratified": lambda key, owner: stratified(key, owner, LABELS, SHARES),
    "by_unit": lambda key, owner: by_unit(key, owner, np.arange(len(owner)), SHARES),
}


def counts(owner, codes, num_clients=None):
    """(clients, 3): how many rows each client has in each split."""
    num_clients = num_clients or int(owner.max()) + 1
    return np.bincount(owner * 3 + codes, minlength=3 * num_clients).reshape(-1, 3)


@pytest.mark.parametrize(
    ("shares", "size", "expected"),
    [
        # Shares of the size, rounded.
        ((0.6, 0.2, 0.2), 10, (6, 2, 2)),
        ((0.6, 0.2, 0.2), 13, (7, 3, 3)),
        ((0.7, 0.1, 0.2), 20, (14, 2, 4)),
        # A wanted part gets a row from three rows on; test comes before valid below that.
        ((0.98, 0.01, 0.01), 3, (1, 1, 1)),
        ((0.1, 0.1, 0.8), 3, (1, 1, 1)),
        ((0.1, 0.1, 0.8), 4, (1, 1, 2)),
        ((0.1, 0.8, 0.1), 4, (1, 2, 1)),
        ((0.6, 0.2, 0.2), 2, (1, 0, 1)),
        ((0.6, 0.4, 0.0), 2, (1, 1, 0)),
        # Training always has a row, and a part of share 0 none.
        ((0.6, 0.2, 0.2), 1, (1, 0, 0)),
        ((0.1, 0.0, 0.9), 5, (1, 0, 4)),
        ((0.8, 0.0, 0.2), 10, (8, 0, 2)),
        ((1.0, 0.0, 0.0), 10, (10, 0, 0)),
        ((0.6, 0.2, 0.2), 0, (0, 0, 0)),
    ],
)
def test_sizes_are_the_rounded_shares_with_a_row_for_every_wanted_part(shares, size, expected):
    assert tuple(int(part[0]) for part in sizes_of(np.array([size]), shares)) == expected


@settings(deadline=None)
@given(size=st.integers(3, 500), valid=st.floats(0.01, 0.49), test=st.floats(0.01, 0.49))
def test_from_three_rows_on_every_part_has_one_and_nothing_is_lost(size, valid, test):
    parts = [int(part[0]) for part in sizes_of(np.array([size]), (1 - valid - test, valid, test))]

    assert min(parts) >= 1
    assert sum(parts) == size


@pytest.mark.parametrize("shares", MANY_SHARES)
@pytest.mark.parametrize("rule", ["at_random", "stratified", "by_order", "by_unit"])
def test_every_rule_gives_every_client_exactly_the_sizes(rule, shares):
    rows = np.arange(len(OWNER))
    codes = {
        "at_random": lambda: at_random(KEY, OWNER, shares),
        "stratified": lambda: stratified(KEY, OWNER, LABELS, shares),
        "by_order": lambda: by_order(OWNER, rows[::-1], shares),
        "by_unit": lambda: by_unit(KEY, OWNER, rows, shares),
    }[rule]()

    np.testing.assert_array_equal(counts(OWNER, codes), np.stack(sizes_of(SIZES, shares), 1))


@pytest.mark.parametrize("rule", DRAWN)
def test_the_same_key_gives_the_same_split_and_another_key_another(rule):
    drawn = [DRAWN[rule](jax.random.key(seed), OWNER).tolist() for seed in (0, 0, 1)]

    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.parametrize("rule", DRAWN)
def test_clients_may_have_names_and_gaps_in_their_numbers(rule):
    names = np.array([f"client {number}" for number in range(len(SIZES))])[OWNER]
    split = DRAWN[rule]

    by_name = split(KEY, names)

    np.testing.assert_array_equal(by_name, split(KEY, OWNER))
    np.testing.assert_array_equal(by_name, split(KEY, OWNER - 3))
    np.testing.assert_array_equal(counts(OWNER, split(KEY, OWNER * 2)), counts(OWNER, by_name))


@pytest.mark.parametrize("split", [1, 2])
def test_a_random_cut_takes_rows_from_everywhere(split):
    """A row's chance to be valid or test is its share wherever it lies: the mean place is the middle."""
    places = [np.flatnonzero(at_random(jax.random.key(k), np.zeros(50, int), SHARES) == split) for k in range(30)]

    found = np.concatenate(places)
    assert abs(found.mean() - 24.5) < 4 * np.sqrt((50**2 - 1) / 12 / len(found))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), shares=st.sampled_from(MANY_SHARES))
def test_every_class_has_its_share_of_test_and_valid_up_to_one_row(seed, shares):
    """Within one row of its part of the test rows, and of the valid rows among what is left."""
    key_owner, key_labels, key = jax.random.split(jax.random.key(seed), 3)
    owner = np.asarray(jax.random.randint(key_owner, (120,), 0, 3))
    labels = np.asarray(jax.random.randint(key_labels, (120,), 0, 5))

    codes = stratified(key, owner, labels, shares)

    for client in range(3):
        own, its_codes = labels[owner == client], codes[owner == client]
        for rows, split in [(np.full(len(own), True), 2), (its_codes < 2, 1)]:
            share = (its_codes == split).sum() / rows.sum()
            found = np.bincount(own[rows & (its_codes == split)], minlength=5)
            assert (abs(found - share * np.bincount(own[rows], minlength=5)) < 1).all()


def test_classes_whose_share_is_whole_have_exactly_that_many_rows():
    """Per class 20 rows: 4 of them test, and of the 16 left 4 valid, for each of two clients."""
    owner, labels = np.repeat([0, 1], 60), np.tile(np.repeat([0, 1, 2], 20), 2)

    codes = stratified(KEY, owner, labels, SHARES)

    np.testing.assert_array_equal(counts(owner * 3 + labels, codes), [[12, 4, 4]] * 6)


def test_every_third_of_a_real_target_is_in_every_split():
    target = np.asarray(jax.random.normal(KEY, (30,)))

    codes = stratified(jax.random.key(1), np.zeros(30, int), target, SHARES)

    third = np.argsort(np.argsort(target)) // 10
    np.testing.assert_array_equal(counts(third, codes), [[6, 2, 2]] * 3)


ONE_PART = pytest.mark.parametrize(("shares", "split"), [((0.8, 0.2, 0.0), 1), ((0.8, 0.0, 0.2), 2)])


@ONE_PART
def test_rows_of_equal_targets_are_picked_at_random(shares, split):
    """With one class alone the places of the picked rows are on average in the middle, and not at even steps."""
    labels, clients = np.zeros(50, int), np.zeros(50, int)
    drawn = [np.flatnonzero(stratified(jax.random.key(k), clients, labels, shares) == split) for k in range(30)]

    found = np.concatenate(drawn)
    assert abs(found.mean() - 24.5) < 4 * np.sqrt((50**2 - 1) / 12 / len(found))
    assert np.ptp(np.diff(drawn[0])) > 1


@ONE_PART
def test_the_start_of_the_even_steps_is_drawn(shares, split):
    """With different targets only the start is random: each of five rows is the one picked now and then."""
    target, clients = np.arange(5.0), np.zeros(5, int)

    picked = {int(np.argmax(stratified(jax.random.key(k), clients, target, shares))) for k in range(60)}

    assert picked == {0, 1, 2, 3, 4}


@ONE_PART
def test_starts_differ_from_client_to_client(shares, split):
    owner, target = np.repeat(np.arange(20), 5), np.tile(np.arange(5.0), 20)

    codes = stratified(KEY, owner, target, shares).reshape(20, 5)

    assert len({tuple(row) for row in codes.tolist()}) > 1


def test_valid_rows_are_drawn_independently_of_test_rows():
    """One test and one valid row out of five: over 400 clients, all twenty pairs of them occur."""
    owner, target = np.repeat(np.arange(400), 5), np.tile(np.arange(5.0), 400)

    codes = stratified(KEY, owner, target, SHARES).reshape(400, 5)

    assert len({tuple(row) for row in codes.tolist()}) == 20


def test_the_targets_of_one_client_do_not_touch_the_split_of_another():
    other = np.where(OWNER == 6, LABELS[::-1], LABELS)

    codes = stratified(KEY, OWNER, other, SHARES)

    np.testing.assert_array_equal(codes[OWNER != 6], stratified(KEY, OWNER, LABELS, SHARES)[OWNER != 6])


def latest_and_earliest(moments, codes, before, after):
    return moments[codes == before].max(initial=-1), moments[codes == after].min(initial=10**9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), moments=st.sampled_from([3, 10, 1000]), shares=st.sampled_from(MANY_SHARES))
def test_time_runs_from_train_over_valid_to_test(seed, moments, shares):
    """Strictly: rows of one moment are in one split, and every later split has later moments only."""
    key_owner, key_order = jax.random.split(jax.random.key(seed))
    owner = np.asarray(jax.random.randint(key_owner, (80,), 0, 3))
    order = np.asarray(jax.random.randint(key_order, (80,), 0, moments))

    codes = by_order(owner, order, shares)

    for client in range(3):
        for before, after in [(0, 1), (1, 2), (0, 2)]:
            latest, earliest = latest_and_earliest(order[owner == client], codes[owner == client], before, after)
            assert latest < earliest


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        # Ten rows: six train, two validate, two test.
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 0, 0, 0, 0, 1, 1, 2, 2]),
        ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], [2, 2, 1, 1, 0, 0, 0, 0, 0, 0]),
        # A moment goes where its first row goes: the fifth to eighth row of one moment all train.
        ([0, 1, 2, 3, 4, 4, 4, 4, 8, 9], [0, 0, 0, 0, 0, 0, 0, 0, 2, 2]),
        ([0, 1, 2, 3, 4, 5, 6, 7, 7, 7], [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]),
        ([5] * 10, [0] * 10),
    ],
)
def test_rows_of_one_moment_go_where_the_first_of_them_goes(order, expected):
    assert by_order(np.zeros(10, int), np.array(order), SHARES).tolist() == expected


def test_equal_moments_of_different_clients_are_different_moments():
    """Client 1's only moment is the last one of client 0, but its rows train all the same."""
    owner, order = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2, 2, 2, 2])

    assert by_order(owner, order, SHARES).tolist() == [0, 1, 2, 0, 0, 0]


def test_the_order_of_rows_does_not_matter_for_a_split_in_time():
    shuffle = np.asarray(jax.random.permutation(KEY, len(OWNER)))
    moments = LABELS * 10 + OWNER

    codes = by_order(OWNER[shuffle], moments[shuffle], SHARES)

    np.testing.assert_array_equal(codes, by_order(OWNER, moments, SHARES)[shuffle])


def test_no_unit_of_a_client_is_in_two_splits():
    unit = np.asarray(jax.random.randint(KEY, OWNER.shape, 0, 8))

    codes = by_unit(jax.random.key(1), OWNER, unit, SHARES)

    for pair in np.unique(OWNER * 8 + unit):
        assert len(np.unique(codes[OWNER * 8 + unit == pair])) == 1


def test_shares_of_units_are_counted_in_units():
    """Ten units of a client: six, two and two of them, whatever their sizes."""
    unit = np.repeat(np.arange(20), np.arange(20) % 4 + 1)
    owner = unit // 10

    codes = by_unit(KEY, owner, unit, SHARES)

    first = np.unique(unit, return_index=True)[1]
    np.testing.assert_array_equal(counts(owner[first], codes[first]), [[6, 2, 2]] * 2)


def test_units_of_one_name_at_two_clients_are_two_units():
    """Each of thirty clients has the units 0 to 4; if they were one, every client's split would be the same."""
    owner, unit = np.repeat(np.arange(30), 5), np.tile(np.arange(5), 30)

    codes = by_unit(KEY, owner, unit, SHARES)

    assert len({tuple(row) for row in codes.reshape(30, 5).tolist()}) > 1


def test_units_may_have_names():
    unit = np.array(["b", "a", "b", "c", "a", "c"])

    codes = by_unit(KEY, np.zeros(6, int), unit, SHARES)

    assert [codes[unit == name].tolist() for name in "abc"] == [[codes[1]] * 2, [codes[0]] * 2, [codes[3]] * 2]
    assert sorted(codes[[0, 1, 3]]) == [0, 1, 2]


def test_a_rank_counts_the_rows_of_the_client_that_come_before():
    owner, first, second = np.array([1, 0, 1, 0, 1]), np.array([2, 5, 1, 5, 1]), np.array([0, 2, 9, 1, 8])

    assert rank_within(owner, first, second).tolist() == [2, 1, 1, 0, 0]


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.5, 0.4, 0.2), (0.0, 0.5, 0.5), (1.2, -0.1, -0.1)])
@pytest.mark.parametrize(
    "split",
    [
        lambda shares: at_random(KEY, OWNER, shares),
        lambda shares: stratified(KEY, OWNER, LABELS, shares),
        lambda shares: by_order(OWNER, LABELS, shares),
        lambda shares: by_unit(KEY, OWNER, LABELS, shares),
    ],
)
def test_shares_that_do_not_add_up_are_refused(split, shares):
    with pytest.raises(BadValue) as refusal:
        split(shares)

    wanted = "three numbers >= 0 that add up to 1, the first above 0"
    assert str(refusal.value) == f"shares must be {wanted}, got {shares}"
