"""Federations: flat storage, splits, held-out clients."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from plures.data import SPLITS, from_arrays, load
from plures.data.federation import share_to_number
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.models import linear

# Interleaved on purpose: rows of a client do not lie together in what the user gives.
CLIENT = np.array(["b", "a", "c", "a", "b", "a", "c", "a", "b", "a"])
X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10) % 3


def federation(**options):
    return from_arrays(X, Y, CLIENT, **options)


def sized(*sizes, **options):
    """A federation of clients c0, c1, ... with these many rows, row i holding the number i."""
    client = np.repeat([f"c{k}" for k in range(len(sizes))], sizes)
    return from_arrays(np.arange(float(len(client)))[:, None], np.zeros(len(client), int), client, **options)


def test_every_client_keeps_exactly_its_own_rows():
    found = federation()

    for name in "abc":
        own = np.concatenate([found.rows_of(name, split)[0] for split in SPLITS])
        assert sorted(own[:, 0].tolist()) == X[name == CLIENT, 0].tolist()


def test_labels_stay_with_their_inputs():
    found = federation()

    np.testing.assert_array_equal(found.y, (found.x[:, 0] / 2).astype(int) % 3)


def test_offsets_tile_the_arrays_client_by_client_and_split_by_split():
    found = federation()

    ends = np.cumsum(found.count.ravel())
    np.testing.assert_array_equal(found.start.ravel(), np.append(0, ends[:-1]))
    assert ends[-1] == len(found.x) == len(X)


def test_clients_are_numbered_in_the_order_of_their_names():
    found = federation()

    assert (found.names, found.uid.tolist(), found.count.sum(1).tolist()) == (
        ("a", "b", "c"),
        [0, 1, 2],
        [5, 3, 2],
    )


def test_a_client_may_have_a_number_for_a_name():
    found = from_arrays(X, Y, np.where(CLIENT == "a", 7, 8))

    assert found.names == ("7", "8")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, [1, 0, 0]),
        (2, [1, 0, 1]),
        (3, [1, 1, 1]),
        (4, [2, 1, 1]),
        (5, [3, 1, 1]),
        (10, [6, 2, 2]),
        (11, [7, 2, 2]),
    ],
)
def test_shares_are_rounded_and_every_part_gets_a_row_from_three_on(size, expected):
    assert sized(size).count.tolist() == [expected]


def test_a_part_of_small_share_still_gets_a_row():
    assert sized(4, shares=(0.9, 0.05, 0.05)).count.tolist() == [[2, 1, 1]]


def test_a_part_of_share_zero_stays_empty():
    assert sized(10, 1, shares=(1.0, 0.0, 0.0)).count.tolist() == [[10, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("shares", [(0.1, 0.8, 0.1), (0.02, 0.49, 0.49)])
def test_training_always_keeps_a_row(shares):
    assert (sized(1, 2, 3, 4, 7, shares=shares).count[:, 0] >= 1).all()


@pytest.mark.parametrize("size", [3, 5])
def test_a_large_test_share_leaves_a_valid_row(size):
    assert (sized(size, shares=(0.1, 0.1, 0.8)).count >= 1).all()


def test_rows_are_shuffled_before_they_are_cut():
    trained = sized(50).rows_of("c0", "train")[0][:, 0]

    assert sorted(trained.tolist()) != list(range(30))


def test_the_seed_decides_the_cut():
    trained = [set(sized(50, seed=seed).rows_of("c0", "train")[0][:, 0]) for seed in (0, 0, 1)]

    assert trained[0] == trained[1]
    assert trained[0] != trained[2]


def test_given_splits_are_kept():
    split = np.array(["train", "valid", "train", "test", "test", "train", "train", "train", "train", "valid"])

    found = federation(split=split)

    for name in "abc":
        for part in SPLITS:
            mine = X[(name == CLIENT) & (split == part), 0]
            assert sorted(found.rows_of(name, part)[0][:, 0].tolist()) == mine.tolist()


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint8])
def test_splits_may_be_given_as_codes(kind):
    codes = np.array([0, 1, 0, 2, 2, 0, 0, 0, 0, 1])

    found, expected = federation(split=codes.astype(kind)), federation(split=np.array(SPLITS)[codes])

    np.testing.assert_array_equal(found.count, expected.count)
    np.testing.assert_array_equal(found.x, expected.x)


@pytest.mark.parametrize("code", [-1, 3])
def test_a_code_of_no_split_is_refused(code):
    with pytest.raises(BadValue) as refusal:
        federation(split=[0, 1, 2, 0, 0, 0, 0, 0, 0, code])

    assert str(refusal.value) == f"split must be 0, 1 or 2 (train, valid, test) where it is a number, got {code}"


def test_a_list_of_all_clients_changes_nothing():
    assert federation(clients=["c", "a", "b"]).names == ("a", "b", "c")


def test_groups_and_domains_follow_the_names():
    found = federation(group={"c": 0, "a": 1, "b": 2}, domain={"a": 0, "b": 0, "c": 1})

    assert (found.group.tolist(), found.domain.tolist()) == ([1, 2, 0], [0, 0, 1])


def test_facts_count_groups_and_domains():
    found = federation(group={"a": 0, "b": 2, "c": 1}, domain={"a": 0, "b": 0, "c": 1})

    assert found.facts == {"num_clients": found.num_clients, "num_groups": 3, "num_domains": 2}


def test_without_groups_the_number_of_clients_is_the_only_fact():
    found = federation()

    assert found.facts == {"num_clients": found.num_clients}


@pytest.mark.parametrize(
    ("y", "options", "expected"),
    [
        (Y, {}, 3),
        (Y, {"num_classes": 5}, 5),
        (Y * 1.0, {"task": "regression"}, 1),
        (np.ones((10, 4)), {"task": "regression"}, 4),
    ],
)
def test_outputs_are_the_classes_or_the_numbers_of_a_target(y, options, expected):
    assert from_arrays(X, y, CLIENT, **options).num_outputs == expected


def test_shape_is_that_of_one_input():
    assert from_arrays(np.zeros((10, 4, 5)), Y, CLIENT).shape == (4, 5)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_column_of_labels_is_stored_as_a_vector(task):
    assert from_arrays(X, Y[:, None], CLIENT, task=task).y.shape == (10,)


def test_taken_clients_keep_their_uids_and_share_the_examples():
    whole = federation(group={"a": 0, "b": 1, "c": 2})

    taken = whole.take([2, 0])

    assert (taken.names, taken.uid.tolist(), taken.group.tolist()) == (("c", "a"), [2, 0], [2, 0])
    assert taken.x is whole.x
    assert taken.y is whole.y


@pytest.mark.parametrize("split", SPLITS)
def test_taken_clients_have_the_rows_they_had(split):
    whole = federation()

    taken = whole.take([2, 0])

    np.testing.assert_array_equal(taken.rows_of("c", split)[0], whole.rows_of("c", split)[0])


def test_renumbering_keeps_the_order_of_uids():
    shuffled = federation().take([2, 0, 1])

    assert shuffled.renumbered(10).uid.tolist() == [12, 10, 11]


def test_a_subset_is_a_federation_of_its_own():
    part = federation().subset(["c", "b"])

    assert (part.names, part.uid.tolist()) == (("c", "b"), [1, 0])


def test_a_subset_of_an_unknown_client_is_refused():
    with pytest.raises(UnknownChoice) as refusal:
        federation().subset(["a", "d"])

    assert str(refusal.value) == "no client is called 'd'. Known: a, b, c"


MANY = sized(*[3] * 10, group={f"c{k}": k % 2 for k in range(10)})


def test_held_out_clients_are_numbered_after_the_seen_ones():
    seen, unseen = MANY.hold_out(num_clients=3)

    assert (seen.uid.tolist(), unseen.uid.tolist()) == (list(range(7)), [7, 8, 9])


def test_no_client_is_both_seen_and_unseen():
    seen, unseen = MANY.hold_out(num_clients=3)

    assert sorted(seen.names + unseen.names) == sorted(MANY.names)


def test_held_out_clients_share_the_examples():
    seen, unseen = MANY.hold_out(num_clients=3)

    assert all(part.x is MANY.x and part.y is MANY.y for part in (seen, unseen))


def test_the_seed_decides_who_is_held_out():
    drawn = [set(MANY.hold_out(num_clients=3, seed=seed)[1].names) for seed in (0, 0, 1, 2)]

    assert drawn[0] == drawn[1]
    assert len({frozenset(names) for names in drawn}) > 1


def test_the_order_of_rows_does_not_decide_who_is_held_out():
    order = np.asarray(jax.random.permutation(jax.random.key(0), 10))

    shuffled = MANY.take(order).hold_out(num_clients=3)

    for found, expected in zip(shuffled, MANY.hold_out(num_clients=3), strict=True):
        assert dict(zip(found.names, found.uid.tolist(), strict=True)) == dict(
            zip(expected.names, expected.uid.tolist(), strict=True)
        )


def test_named_clients_are_held_out():
    seen, unseen = MANY.hold_out(clients=["c7", "c2"])

    assert (unseen.names, unseen.uid.tolist(), unseen.group.tolist()) == (("c2", "c7"), [8, 9], [0, 1])
    assert seen.uid.tolist() == list(range(8))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, BadValue, "hold_out must be num_clients, share or clients: these data set no clients aside, got None"),
        ({"num_clients": 0}, BadValue, "num_clients must be between 1 and 9, got 0"),
        ({"num_clients": 10}, BadValue, "num_clients must be between 1 and 9, got 10"),
        (
            {"clients": list(MANY.names)},
            BadValue,
            f"clients must be a list that leaves at least one client to train, got {list(MANY.names)!r}",
        ),
        (
            {"clients": ["c11"]},
            UnknownChoice,
            "no client is called 'c11'; did you mean 'c1'? Known: c0, c1, c2, c3, c4, c5, c6, c7, c8, c9",
        ),
    ],
)
def test_a_hold_out_that_cannot_work_is_refused(options, error, message):
    with pytest.raises(error) as refusal:
        MANY.hold_out(**options)

    assert str(refusal.value) == message


@pytest.mark.parametrize(("share", "number"), [(0.3, 3), (0.34, 3), (0.36, 4), (0.01, 1), (0.99, 9)])
def test_a_share_of_the_clients_is_held_out(share, number):
    """Rounded, at least one and at least one left; the same clients as by that number."""
    seen, unseen = MANY.hold_out(share=share, seed=4)

    assert (seen.num_clients, unseen.num_clients) == (10 - number, number)
    assert unseen.names == MANY.hold_out(num_clients=number, seed=4)[1].names


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_is_none_or_all_is_refused(share):
    with pytest.raises(BadValue) as refusal:
        MANY.hold_out(share=share)

    assert str(refusal.value) == f"share must be a number between 0 and 1, got {share}"


@pytest.mark.parametrize(("share", "num_clients", "expected"), [(0.5, 2, 1), (0.9, 2, 1), (0.5, 7, 4), (0.5, 1, 1)])
def test_a_share_leaves_someone_where_it_can(share, num_clients, expected):
    assert share_to_number(share, num_clients) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"num_clients": 2, "share": 0.5},
        {"num_clients": 2, "clients": ["c1"]},
        {"share": 0.5, "clients": ["c1"]},
        {"num_clients": 2, "share": 0.5, "clients": ["c1"]},
    ],
)
def test_two_ways_to_hold_out_at_once_are_refused(options):
    with pytest.raises(BadValue, match=r"^hold_out must be one of num_clients, share and clients, got"):
        MANY.hold_out(**options)


SET_APART = replace(MANY, held_out=np.isin(np.arange(10), [1, 4]))


def test_without_a_number_those_that_the_data_set_aside_are_held_out():
    seen, unseen = SET_APART.hold_out()

    assert (unseen.names, unseen.uid.tolist()) == (("c1", "c4"), [8, 9])
    assert (seen.num_clients, seen.uid.tolist()) == (8, list(range(8)))


def test_who_is_set_aside_follows_the_clients():
    shuffled = SET_APART.take([4, 0, 1, 9])

    assert shuffled.held_out.tolist() == [True, False, True, False]
    assert shuffled.hold_out()[1].names == ("c4", "c1")


def test_a_part_without_clients_set_aside_sets_nobody_aside():
    assert SET_APART.take([0, 2, 3]).held_out is None


@pytest.mark.parametrize("options", [{}, {"num_clients": 3}, {"share": 0.2}, {"clients": ["c5"]}])
def test_parts_set_nobody_aside_any_more(options):
    assert [part.held_out for part in SET_APART.hold_out(**options)] == [None, None]


@pytest.mark.parametrize("held_out", [None, np.zeros(10, bool)])
def test_data_that_set_nobody_aside_say_so(held_out):
    with pytest.raises(BadValue, match=r"these data set no clients aside, got None$"):
        replace(MANY, held_out=held_out).hold_out()


@pytest.mark.parametrize("clients", [["c1", "c1"], []])
def test_a_hold_out_of_doubled_or_no_clients_is_refused(clients):
    with pytest.raises(BadValue):
        MANY.hold_out(clients=clients)


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("d", "train", "no client is called 'd'. Known: a, b, c"),
        ("a", "tset", "no split is called 'tset'; did you mean 'test'? Known: test, train, valid"),
    ],
)
def test_rows_of_unknown_clients_and_splits_are_refused(name, split, message):
    with pytest.raises(UnknownChoice) as refusal:
        federation().rows_of(name, split)

    assert str(refusal.value) == message


def test_describe_gives_the_size_and_shape_in_a_few_numbers():
    found = sized(10, 5, 1, title="three", group={"c0": 0, "c1": 1, "c2": 1}).describe()

    assert found == {
        "title": "three",
        "task": "classification",
        "clients": 3,
        "examples": {"train": 6 + 3 + 1, "valid": 2 + 1, "test": 2 + 1},
        # 6, 3 and 1 training rows: a twentieth from the lowest is a tenth of the way from 1 to 3.
        "train_rows_per_client": pytest.approx({"p5": 1.2, "median": 3.0, "p95": 5.7}),
        "largest_client": 6,
        "input_shape": [1],
        "classes": 1,
        "groups": 2,
        "domains": None,
        "without_valid_rows": ["c2"],
        "without_test_rows": ["c2"],
        "notes": [],
    }


def test_holding_out_has_nothing_to_do_with_sizes():
    """The seed that made the sizes must not choose the clients: over seeds, held-out clients are of average size."""
    ranks = []
    for seed in range(12):
        whole = load("digits", seed=seed)
        _, unseen = whole.hold_out(num_clients=8, seed=seed)
        order = {name: rank for rank, name in enumerate(np.array(whole.names)[np.argsort(whole.count.sum(1))])}
        ranks += [order[name] for name in unseen.names]

    assert abs(np.mean(ranks) - 19.5) < 4 * np.sqrt((40**2 - 1) / 12 / len(ranks))


def test_a_part_of_a_federation_keeps_the_number_of_groups():
    whole = load("digits", num_clients=8)

    seen, _ = whole.hold_out(
        clients=[name for name, group in zip(whole.names, whole.group, strict=True) if group == 3]
    )

    assert seen.facts == {"num_clients": 6, "num_groups": 4}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (linear.softmax((8, 8), 5), "puts out 5 numbers, but there are 10 classes"),
        (linear.softmax((7,), 10), r"does not take inputs of shape \(8, 8\)"),
        (
            linear.least_squares((8, 8)),
            "for regression, but the federation's task is classification with 10 classes",
        ),
        (linear.logistic((8, 8)), "for binary, but"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model, said):
    with pytest.raises(Unsupported, match=said):
        load("digits", num_clients=8).check_model(model)


def test_notes_are_added_in_order():
    noted = MANY.noted("first").noted("second", "third")

    assert (noted.notes, MANY.notes) == (("first", "second", "third"), ())
    assert noted.describe()["notes"] == ["first", "second", "third"]


def test_parts_keep_the_notes_of_the_whole():
    assert [part.notes for part in MANY.noted("small").hold_out(num_clients=2)] == [("small",)] * 2


def test_equal_federations_have_equal_fingerprints():
    assert federation().fingerprint == federation().fingerprint


@pytest.mark.parametrize(
    "other",
    [
        lambda whole: replace(whole, x=whole.x + np.eye(10, 2)),
        lambda whole: replace(whole, y=np.roll(whole.y, 1)),
        lambda whole: replace(whole, names=("a", "b", "d")),
        lambda whole: replace(whole, count=whole.count[:, ::-1]),
        lambda whole: replace(whole, start=whole.start + 1),
        lambda whole: whole.renumbered(1),
    ],
    ids=["input", "label", "name", "count", "start", "uid"],
)
def test_whatever_differs_changes_the_fingerprint(other):
    whole = federation()

    assert other(whole).fingerprint != whole.fingerprint
