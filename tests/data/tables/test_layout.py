"""Splits and notes: stratified by default, by time, by recording, or as a column says."""

import numpy as np
import pytest

from plures.data.tables import TableOptions, inspect_own, read_own
from plures.errors import BadData

LONG = [f"{site},{row},{row * 0.37 % 1:.3f},{'xyz'[row % 3]}" for row in range(40) for site in "ab"]


def targets(federation, client):
    """The targets of a client's train, valid and test rows."""
    return [federation.rows_of(client, split)[1].tolist() for split in ("train", "valid", "test")]


def test_every_class_has_its_share_of_each_split_within_a_row(csv):
    path = csv("site,row,size,kind", *LONG)

    federation = read_own(path, TableOptions(client="site", target="kind", ignore=("row",)))

    # 40 rows per client: 14, 13 and 13 of the three classes.
    for client in "ab":
        for part, share in zip(targets(federation, client), (0.6, 0.2, 0.2), strict=True):
            assert np.abs(np.bincount(part, minlength=3) - share * np.array([14, 13, 13])).max() <= 1
            assert len(part) == share * 40


def test_another_seed_draws_another_split(csv):
    path = csv("site,row,size,kind", *LONG)

    one, other = (read_own(path, TableOptions(client="site", target="row", seed=seed)) for seed in (0, 1))

    assert targets(one, "a") != targets(other, "a")


def test_shares_are_the_users(csv):
    path = csv("site,row,size,kind", *LONG)

    federation = read_own(path, TableOptions(client="site", target="kind", shares=(0.5, 0.0, 0.5)))

    assert federation.count.tolist() == [[20, 0, 20], [20, 0, 20]]
    assert federation.notes == ()


@pytest.mark.parametrize(
    "moments",
    [
        ["9", "10", "8", "7", "11"],
        ["2024-02-09", "2024-02-10", "2024-02-08", "2023-12-31", "2024-03-01"],
        ["09.02.2024 10:00", "10.02.2024 00:00", "09.02.2024 09:59", "08.02.2024 23:00", "01.01.2025 00:00"],
        ["09:05", "10:00", "09:04", "09:03", "23:00"],
        ["02/13/2024", "02/14/2024", "02/12/2024", "02/11/2024", "01/01/2025"],
    ],
)
def test_later_rows_are_test(csv, moments):
    path = csv("site,size,when,y", *(f"a,{row},{moment},{row}.5" for row, moment in enumerate(moments)))

    federation = read_own(path, TableOptions(client="site", target="y", time="when"))

    train, valid, test = targets(federation, "a")
    assert (sorted(train), valid, test) == ([0.5, 2.5, 3.5], [1.5], [4.5])


def test_the_time_column_is_no_input(csv):
    path = csv("site,size,when,y", "a,1,1,1.5", "a,2,2,2.5", "a,3,3,3.5")

    assert inspect_own(path, TableOptions(client="site", target="y", time="when")).feature_names == ("size",)


def test_a_client_with_one_moment_has_no_test_rows_and_is_named(csv):
    path = csv("site,size,when,y", "a,1,1,1.5", "a,2,2,2.5", "a,3,3,3.5", "b,1,5,1.5", "b,2,5,2.5", "b,3,5,3.5")

    federation = read_own(path, TableOptions(client="site", target="y", time="when"))

    assert federation.notes == ("1 client without valid rows: b", "1 client without test rows: b")


def test_recordings_never_straddle_splits(csv):
    # Recordings of 3 rows; row r of a client belongs to recording r // 3.
    rows = [f"{site},{row % 5},r{row // 3},{row + 0.5}" for row in range(60) for site in "ab"]
    path = csv("site,size,take,y", *rows)

    federation = read_own(path, TableOptions(client="site", target="y", recording="take"))

    for client in "ab":
        takes = [{int(y) // 3 for y in part} for part in targets(federation, client)]
        assert [len(part) for part in takes] == [12, 4, 4]
        assert sorted([*takes[0], *takes[1], *takes[2]]) == list(range(20))


def test_a_split_column_is_followed_in_any_case(csv):
    words = ["train", "TRAIN", "Valid", "validation", "val", " Test "]
    path = csv("site,size,part,y", *(f"a,{row},{word},{row}.5" for row, word in enumerate(words)))

    federation = read_own(path, TableOptions(client="site", target="y", split="part"))

    assert targets(federation, "a") == [[0.5, 1.5], [2.5, 3.5, 4.5], [5.5]]


def test_without_valid_rows_a_share_of_train_is_taken(csv):
    rows = [f"{site},{row},{'train' if row < 12 else 'test'},{row}.5" for row in range(16) for site in "ab"]
    path = csv("site,size,part,y", *rows)

    federation = read_own(path, TableOptions(client="site", target="y", split="part"))

    # 0.2 / (0.6 + 0.2) of 12 train rows
    assert federation.count.tolist() == [[9, 3, 4], [9, 3, 4]]
    assert targets(federation, "a")[2] == [12.5, 13.5, 14.5, 15.5]
    assert federation.notes == (
        "no row is marked as valid; a share of 0.25 of each client's train rows is taken for it",
    )


def test_no_valid_rows_are_taken_where_none_are_wanted(csv):
    path = csv("site,size,part,y", "a,1,train,1.5", "a,2,train,2.5", "a,3,test,3.5")

    federation = read_own(path, TableOptions(client="site", target="y", split="part", shares=(0.5, 0.0, 0.5)))

    assert federation.count.tolist() == [[2, 0, 1]]
    assert federation.notes == ("there is only one client, 'a'",)


def test_tiny_clients_are_named_in_notes(csv):
    big = [f"big,{row},{row}.5" for row in range(10)]
    tiny = [f"t{number},1,{number}.5" for number in range(7)]
    path = csv("site,size,y", *big, *tiny, "pair,1,1.5", "pair,2,2.5")

    federation = read_own(path, TableOptions(client="site", target="y"))

    assert federation.notes == (
        "8 clients without valid rows: pair, t0, t1, t2, t3 and 3 more",
        "7 clients without test rows: t0, t1, t2, t3, t4 and 2 more",
    )


def test_a_single_client_is_noted(csv):
    path = csv("site,size,y", *(f"a,{row},{row}.5" for row in range(10)))

    assert read_own(path, TableOptions(client="site", target="y")).notes == ("there is only one client, 'a'",)


def test_a_split_that_leaves_a_client_without_train_rows_is_refused(csv):
    path = csv("site,size,part,y", "a,1,train,1.5", "b,2,test,2.5", "b,3,valid,3.5")

    with pytest.raises(BadData) as refusal:
        read_own(path, TableOptions(client="site", target="y", split="part"))

    assert str(refusal.value) == "client 'b' has no training rows; give some, or leave the client out"


def test_all_clients_without_train_rows_are_counted(csv):
    path = csv("site,size,part,y", "a,1,train,1.5", "b,2,test,2.5", "c,3,valid,3.5")

    errors = inspect_own(path, TableOptions(client="site", target="y", split="part")).errors

    assert errors == ("2 clients (b, c) have no training rows; give some, or leave the client out",)
