"""What every dealer keeps: each example once, inside its group and domain, nobody below the smallest size."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from plures.data import from_arrays
from plures.data.partition import classes, dirichlet, iid, label_set_groups, lognormal, shards, zipf
from plures.data.partition.redistribution import Dealing, redistribute
from plures.data.splits import sizes_of
from plures.errors import BadValue, Unsupported

KEY = jax.random.key(0)
# Row i holds the number i, so that a row can be followed; classes are of unequal size.
TOTALS = (100, 80, 60, 40, 20)
LABELS = np.repeat(np.arange(5), TOTALS)
POOL = from_arrays(np.arange(300.0)[:, None], LABELS, np.zeros(300, int), title="pool").noted("a first note")
# Two domains with two groups each, of which one (domain 1, group 1) is missing; every part has every class.
PART = np.arange(300) % 3
PARTED = from_arrays(
    np.arange(300.0)[:, None],
    LABELS,
    np.arange(300) % 6,
    domain={str(k): int(k % 3 == 2) for k in range(6)},
    group={str(k): int(k % 3 == 1) for k in range(6)},
)
BY_LABEL = {
    "dirichlet": dirichlet,
    "dirichlet, equal sizes": partial(dirichlet, sizes="equal"),
    "dirichlet, zipf sizes": partial(dirichlet, sizes="zipf", alpha=0.1),
    "classes": classes,
    "shards": shards,
    "label_set_groups": label_set_groups,
}
DEALERS = {"iid": iid, "lognormal": lognormal, "zipf": zipf, **BY_LABEL}
every_dealer = pytest.mark.parametrize("dealer", DEALERS.values(), ids=DEALERS)


def numbers_of(federation, row):
    """The numbers of the examples that a client has, in all splits."""
    first, size = federation.start[row, 0], federation.count[row].sum()
    return federation.x[first : first + size, 0].astype(int)


def all_numbers(federation):
    return np.sort(np.concatenate([numbers_of(federation, row) for row in range(federation.num_clients)]))


def bits(federation):
    return [part.tobytes() for part in (federation.x, federation.y, federation.start, federation.count)]


@pytest.mark.slow
@every_dealer
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_example_is_there_once_with_its_label(dealer, seed):
    dealt_out = dealer(POOL, num_clients=12, seed=seed)

    np.testing.assert_array_equal(all_numbers(dealt_out), np.arange(300))
    np.testing.assert_array_equal(dealt_out.y, LABELS[dealt_out.x[:, 0].astype(int)])


@every_dealer
def test_the_seed_decides_every_bit(dealer):
    drawn = [bits(dealer(POOL, num_clients=12, seed=seed)) for seed in (0, 0, 1)]

    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@every_dealer
def test_new_clients_have_numbers_and_names_in_order(dealer):
    dealt_out = dealer(POOL, num_clients=12)

    assert dealt_out.uid.tolist() == list(range(12))
    assert dealt_out.names == tuple(f"client-{k:03d}" for k in range(12))


@every_dealer
def test_offsets_tile_the_arrays(dealer):
    dealt_out = dealer(POOL, num_clients=12)

    ends = np.cumsum(dealt_out.count.ravel())
    np.testing.assert_array_equal(dealt_out.start.ravel(), np.append(0, ends[:-1]))
    assert ends[-1] == 300


@every_dealer
def test_what_is_known_of_the_data_is_kept(dealer):
    dealt_out = dealer(POOL, num_clients=12)

    assert (dealt_out.title, dealt_out.task, dealt_out.num_classes) == ("pool", "classification", 5)
    assert dealt_out.notes[0] == "a first note"


@every_dealer
def test_rows_are_split_anew_by_the_shares(dealer):
    shares = (0.5, 0.2, 0.3)

    dealt_out = dealer(POOL, num_clients=12, shares=shares)

    np.testing.assert_array_equal(dealt_out.count, np.stack(sizes_of(dealt_out.count.sum(1), shares), 1))


@every_dealer
def test_every_class_of_a_client_has_its_share_of_the_test_rows(dealer):
    dealt_out = dealer(POOL, num_clients=12)

    for row in range(12):
        own = dealt_out.y[dealt_out.start[row, 0] :][: dealt_out.count[row].sum()]
        test = dealt_out.rows_of(dealt_out.names[row], "test")[1]
        share = len(test) / len(own)
        assert (abs(np.bincount(test, minlength=5) - share * np.bincount(own, minlength=5)) < 1).all()


def test_the_rows_of_a_part_are_split_by_their_own_labels():
    dealt_out = iid(PARTED.take([5, 4]), num_clients=2)

    for row in range(2):
        own = dealt_out.y[dealt_out.start[row, 0] :][: dealt_out.count[row].sum()]
        test = dealt_out.rows_of(dealt_out.names[row], "test")[1]
        share = len(test) / len(own)
        assert (abs(np.bincount(test, minlength=5) - share * np.bincount(own, minlength=5)) < 1).all()


@every_dealer
def test_a_client_has_the_rows_of_one_group_of_one_domain(dealer):
    dealt_out = dealer(PARTED, num_clients=12)

    for row in range(12):
        parts = np.unique(PART[numbers_of(dealt_out, row)])
        assert len(parts) == 1
        assert dealt_out.domain[row] == (parts[0] == 2)
        inner = dealt_out.num_groups // PARTED.num_groups
        assert dealt_out.group[row] // inner == (parts[0] == 1)


@every_dealer
def test_inside_groups_every_example_is_there_once(dealer):
    np.testing.assert_array_equal(all_numbers(dealer(PARTED, num_clients=12)), np.arange(300))


def test_groups_and_domains_get_equally_many_clients():
    """Fourteen clients for three parts: five, five and four, the first parts first."""
    dealt_out = iid(PARTED, num_clients=14)

    found = [PART[numbers_of(dealt_out, row)[0]] for row in range(14)]
    assert found == [0] * 5 + [1] * 5 + [2] * 4


@every_dealer
def test_a_part_of_a_federation_deals_its_own_rows_alone(dealer):
    part = PARTED.take([4, 1])

    dealt_out = dealer(part, num_clients=4)

    np.testing.assert_array_equal(all_numbers(dealt_out), np.flatnonzero(np.isin(np.arange(300) % 6, [1, 4])))
    assert len(dealt_out.x) == 100


@every_dealer
def test_a_part_of_a_federation_keeps_the_number_of_groups_and_domains(dealer):
    """The clients taken are all of domain 0 and group 1, but two of each were there."""
    dealt_out = dealer(PARTED.take([1, 4]), num_clients=4)

    inner = 2 if dealer is label_set_groups else 1
    assert (dealt_out.num_groups, dealt_out.num_domains) == (2 * inner, 2)


def test_held_out_rows_are_not_dealt():
    seen, unseen = PARTED.hold_out(clients=["5", "0"])

    dealt_out = iid(seen, num_clients=6)

    assert not set(all_numbers(dealt_out)) & set(all_numbers(unseen))


@every_dealer
def test_dealing_in_place_gives_the_same_in_the_same_memory(dealer):
    given = from_arrays(np.arange(300.0)[:, None], LABELS, np.zeros(300, int))

    expected = bits(dealer(given, num_clients=12))
    dealt_out = dealer(given, num_clients=12, in_place=True)

    assert bits(dealt_out) == expected
    assert dealt_out.x is given.x
    assert dealt_out.y is given.y


@every_dealer
def test_dealing_leaves_the_given_federation_alone(dealer):
    before = bits(POOL)

    dealer(POOL, num_clients=12)

    assert bits(POOL) == before


@every_dealer
def test_a_part_dealt_in_place_leaves_the_rest_alone(dealer):
    """Its rows are only some of the shared arrays, so it gets arrays of its own."""
    before = bits(PARTED)

    dealer(PARTED.take([0, 3]), num_clients=4, in_place=True)

    assert bits(PARTED) == before


@every_dealer
@pytest.mark.parametrize("num_clients", [0, -1, 301])
def test_a_number_of_clients_that_cannot_be_is_refused(dealer, num_clients):
    with pytest.raises(BadValue, match=f"^num_clients must be .*, got {num_clients}$"):
        dealer(POOL, num_clients=num_clients)


@every_dealer
def test_fewer_clients_than_groups_are_refused(dealer):
    with pytest.raises(BadValue, match=r"^num_clients must be at least [36], one .*, got 2$"):
        dealer(PARTED, num_clients=2)


@every_dealer
def test_shares_that_do_not_add_up_are_refused(dealer):
    with pytest.raises(BadValue, match=r"^shares must be three numbers"):
        dealer(POOL, num_clients=12, shares=(0.5, 0.2, 0.2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clients": 0}, "num_clients must be between 1 and 100 (3 rows or more each), got 0"),
        ({"num_clients": 101}, "num_clients must be between 1 and 100 (3 rows or more each), got 101"),
        ({"min_size": 0}, "min_size must be between 1 and the 300 rows there are, got 0"),
        ({"min_size": 301}, "min_size must be between 1 and the 300 rows there are, got 301"),
    ],
)
@pytest.mark.parametrize("dealer", [lognormal, zipf, dirichlet])
def test_sizes_that_cannot_be_are_refused_in_these_words(dealer, options, message):
    with pytest.raises(BadValue) as refusal:
        dealer(POOL, **options)

    assert str(refusal.value) == message


def test_as_many_clients_as_rows_are_dealt_a_row_each():
    assert iid(POOL, num_clients=300).count.tolist() == [[1, 0, 0]] * 300


def test_a_group_too_small_for_its_clients_is_named():
    """Two groups of five rows get three clients and two: six rows are wanted of the first."""
    given = from_arrays(np.zeros((10, 1)), np.zeros(10, int), np.repeat([0, 1], 5), group={"0": 0, "1": 1})

    with pytest.raises(BadValue) as refusal:
        lognormal(given, num_clients=5, min_size=2)

    wanted = "fewer: a group or domain of 5 rows is too small for 3 clients (2 rows or more each)"
    assert str(refusal.value) == f"num_clients must be {wanted}, got 5"


def test_the_dealt_rule_sees_each_part_and_its_labels():
    seen = []

    def rule(key, labels, number):
        seen.append((np.bincount(labels).tolist(), number))
        return np.arange(len(labels)) % number

    redistribute(PARTED, rule, Dealing(num_clients=4), step="test")

    # Parts in the order of (domain, group): a third of every class each, up to one.
    expected = [[np.sum(LABELS[part == PART] == c) for c in range(5)] for part in (0, 1, 2)]
    assert seen == [(expected[0], 2), (expected[1], 1), (expected[2], 1)]


def test_groups_draw_differently():
    """Two groups with the same rows are not dealt alike."""
    given = from_arrays(
        np.tile(np.arange(50.0), 2)[:, None], np.zeros(100, int), np.repeat([0, 1], 50), group={"0": 0, "1": 1}
    )

    dealt_out = iid(given, num_clients=4)

    assert set(numbers_of(dealt_out, 0)) not in (set(numbers_of(dealt_out, 2)), set(numbers_of(dealt_out, 3)))


@pytest.mark.parametrize("min_size", [1, 5, 15])
def test_nobody_has_fewer_rows_than_the_smallest_size(min_size):
    """With a tiny alpha, five classes go to about five of the clients; the others are topped up."""
    dealt_out = dirichlet(POOL, num_clients=12, alpha=1e-3, min_size=min_size)

    assert dealt_out.count.sum(1).min() == min_size


def test_a_note_counts_those_who_were_topped_up():
    """Each class goes to one client alone, so at least seven of twelve draw nothing and end with one row."""
    dealt_out = dirichlet(POOL, num_clients=12, alpha=1e-9, min_size=1)

    poor = int((dealt_out.count.sum(1) == 1).sum())
    note = f"{poor} clients drew fewer than 1 rows and were topped up from larger ones"
    assert poor >= 7
    assert dealt_out.notes == ("a first note", note)


def test_notes_of_all_groups_are_one_note():
    dealt_out = dirichlet(PARTED, num_clients=12, alpha=1e-9, min_size=1)

    poor = int((dealt_out.count.sum(1) == 1).sum())
    assert dealt_out.notes == (f"{poor} clients drew fewer than 1 rows and were topped up from larger ones",)


@every_dealer
def test_without_topping_up_there_is_no_note(dealer):
    """No dealer leaves one of twelve clients below three of 300 rows, but Dirichlet with its small alpha might."""
    options = {"alpha": 100.0} if "dirichlet" in str(dealer) else {}

    assert dealer(POOL, num_clients=12, **options).notes == ("a first note",)


@every_dealer
def test_what_dealing_undoes_is_noted(dealer):
    """Recordings are torn apart, and clients held out as unseen are no longer."""
    given = replace(PARTED, held_out=np.arange(6) < 2, unit="recording")

    dealt_out = dealer(given, num_clients=12)

    assert dealt_out.notes[-2:] == (
        "rows of one recording may now lie in train and in test: scores will be too good",
        "the rows of 2 clients that were held out as unseen are dealt with the others",
    )
    assert (dealt_out.held_out, dealt_out.unit) == (None, "")


@every_dealer
def test_names_of_classes_are_kept(dealer):
    given = replace(POOL, class_names=("a", "b", "c", "d", "e"))

    assert dealer(given, num_clients=12).class_names == given.class_names


@every_dealer
def test_real_targets_can_be_dealt(dealer):
    target = LABELS * 1.5
    given = from_arrays(np.arange(300.0)[:, None], target, np.zeros(300, int), task="regression")

    dealt_out = dealer(given, num_clients=12)

    np.testing.assert_array_equal(all_numbers(dealt_out), np.arange(300))
    np.testing.assert_array_equal(dealt_out.y, target[dealt_out.x[:, 0].astype(int)])


@every_dealer
def test_labels_of_a_density_can_be_dealt(dealer):
    given = from_arrays(np.arange(300.0)[:, None], LABELS, np.zeros(300, int), task="density")

    dealt_out = dealer(given, num_clients=12)

    np.testing.assert_array_equal(all_numbers(dealt_out), np.arange(300))
    np.testing.assert_array_equal(dealt_out.count, np.stack(sizes_of(dealt_out.count.sum(1), (0.6, 0.2, 0.2)), 1))


SEQUENCES = from_arrays(
    np.arange(40)[:, None], np.arange(160).reshape(40, 4) % 3, np.zeros(40, int), task="sequence"
)
LAST_WORDS = from_arrays(np.arange(40)[:, None], np.arange(40) % 3, np.zeros(40, int), task="sequence")
VECTORS = from_arrays(np.arange(40.0)[:, None], np.ones((40, 2)), np.zeros(40, int), task="regression")


@pytest.mark.parametrize("given", [SEQUENCES, LAST_WORDS, VECTORS])
@pytest.mark.parametrize("dealer", [iid, lognormal, zipf])
def test_rows_without_a_single_label_can_be_dealt_by_size(dealer, given):
    np.testing.assert_array_equal(all_numbers(dealer(given, num_clients=5)), np.arange(40))


@pytest.mark.parametrize("given", [SEQUENCES, LAST_WORDS, VECTORS])
@pytest.mark.parametrize("dealer", BY_LABEL.values(), ids=BY_LABEL)
def test_rows_without_a_single_label_cannot_be_dealt_by_label(dealer, given):
    name = getattr(dealer, "func", dealer).__name__

    with pytest.raises(Unsupported) as refusal:
        dealer(given, num_clients=5)

    wanted = "deals by label, but a row of these data has no single label; use iid or lognormal"
    assert str(refusal.value) == f"{name} {wanted}"
