"""Federations by text: names, options, partitioners and paths; who is held out, and what they may not influence."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from plures.data import DataSpec, load, save
from plures.data.holdout import with_held_out
from plures.data.loading import split_text
from plures.data.partition import draw_clients
from plures.errors import BadData, BadValue, UnknownChoice

POOL = "digits:num_clients=1,num_groups=1"
COLUMNS = {"client": "site", "target": "y"}


@pytest.fixture
def table(tmp_path):
    """Twelve sites of eight rows; every site's inputs lie around a level of its own."""
    rows = [{"site": f"s{k:02d}", "x": k + 0.1 * i, "y": (i + k) % 2} for k in range(12) for i in range(8)]
    path = tmp_path / "t.csv"
    pl.DataFrame(rows).write_csv(path)
    return str(path)


def trained_mean(federation):
    """The mean input over training rows."""
    return np.concatenate([federation.rows_of(name, "train")[0] for name in federation.names]).mean()


def test_steps_are_applied_from_left_to_right():
    federation = load(
        f"{POOL}|iid:num_clients=8|rotation_groups:num_groups=2|label_permutation_groups:num_groups=2"
    )

    assert (federation.num_clients, federation.num_groups) == (8, 4)


def test_every_combination_of_nested_groups_is_occupied_evenly():
    federation = load(f"{POOL}|iid:num_clients=24|rotation_groups:num_groups=4|concept_shift:num_groups=3")

    assert np.bincount(federation.group, minlength=12).tolist() == [2] * 12


def test_a_step_said_twice_draws_anew():
    federation = load(
        f"{POOL}|iid:num_clients=16|rotation_groups:num_groups=2|rotation_groups:num_groups=2,degrees=90"
    )

    assert np.bincount(federation.group, minlength=4).tolist() == [4] * 4


def test_unseen_clients_of_an_own_table_do_not_count_in_the_scale(table):
    seen, unseen = DataSpec(text=table, options=COLUMNS, hold_out=["s11", "s10"]).load()

    assert unseen.names == ("s10", "s11")
    assert trained_mean(seen) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("step", ["concept_shift:num_groups=2,dial=1", "label_permutation_groups:num_groups=2"])
def test_they_do_not_count_either_when_a_step_keeps_all_clients(table, step):
    seen, _ = DataSpec(text=f"{table}|{step}", options=COLUMNS, hold_out=["s11", "s10"]).load()

    assert trained_mean(seen) == pytest.approx(0, abs=1e-6)
    assert seen.notes == ()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["natural:min_rows=1", "iid:num_clients=12"])
def test_a_note_says_so_where_clients_are_chosen_or_dealt_after_scaling(table, step):
    seen, _ = DataSpec(text=f"{table}|{step}", options=COLUMNS, hold_out=2).load()

    assert seen.notes[-1].startswith("inputs were standardized with all clients")


def test_nobody_is_noted_where_nobody_is_held_out(table):
    seen, unseen = DataSpec(text=f"{table}|iid:num_clients=5", options=COLUMNS, hold_out=0).load()

    assert (seen.notes, unseen) == ((), None)


def test_a_fifth_is_held_out_by_default_from_ten_clients_on(table):
    many = DataSpec(text=table, options=COLUMNS).load()
    few = DataSpec(text="digits:num_clients=9").load()

    assert [one.num_clients for one in many] == [10, 2]
    assert few[1] is None


def test_the_options_of_the_data_may_say_who_is_held_out(table):
    _, unseen = DataSpec(text=table, options={**COLUMNS, "hold_out": ["s03"]}).load()

    assert unseen.names == ("s03",)


def test_who_is_held_out_is_said_once(table):
    with pytest.raises(BadValue, match="hold_out must be given once"):
        DataSpec(text=table, options={**COLUMNS, "hold_out": 1}, hold_out=2).load()


def test_another_hold_out_seed_draws_other_clients_and_the_same_splits(table):
    first, second = (DataSpec(text=table, options=COLUMNS, hold_out=3, seed=seed).whole() for seed in (0, 1))

    assert first.held_out.tolist() != second.held_out.tolist()
    np.testing.assert_array_equal(first.y, second.y)


def test_another_split_seed_holds_out_the_same_clients(table):
    first, second = (DataSpec(text=table, options={**COLUMNS, "seed": seed}, hold_out=3).whole() for seed in (0, 1))

    assert first.held_out.tolist() == second.held_out.tolist()


def test_a_saved_federation_holds_out_whom_it_set_apart_or_nobody(tmp_path):
    federation = load("digits:num_clients=12")
    save(federation, tmp_path / "plain")
    save(with_held_out(federation, ("client-003",), 0), tmp_path / "marked")

    assert DataSpec(text=str(tmp_path / "plain")).load()[1] is None
    assert DataSpec(text=str(tmp_path / "marked")).load()[1].names == ("client-003",)


def test_drawn_clients_follow_their_uids_not_their_place():
    federation = load("digits:num_clients=12")
    shuffled = federation.take(np.array([5, 3, 11, 0, 7, 1, 9, 2, 10, 4, 8, 6]))

    found = [one.hold_out()[1].names for one in (with_held_out(federation, 4, 0), with_held_out(shuffled, 4, 0))]

    assert sorted(found[0]) == sorted(found[1]) == sorted(federation.hold_out(num_clients=4)[1].names)


def test_dealing_warns_of_recordings_that_it_breaks_up(tmp_path):
    rows = [{"site": "ab"[i % 2], "visit": i // 4, "x": float(i), "y": i % 3} for i in range(60)]
    pl.DataFrame(rows).write_csv(tmp_path / "t.csv")

    federation = load(f"{tmp_path / 't.csv'}|iid:num_clients=4", **COLUMNS, recording="visit")

    assert "rows of one visit may now lie in train and in test: scores will be too good" in federation.notes


def test_dealing_warns_of_unseen_clients_that_it_mixes_in(table):
    federation = load(f"{table}|iid:num_clients=4", **COLUMNS, hold_out=3)

    assert "the rows of 3 clients that were held out as unseen are dealt with the others" in federation.notes


@pytest.mark.parametrize(("number", "expected"), [(1, (1, 0)), (4, (3, 1)), (8, (6, 2)), (12, (9, 3))])
def test_drawn_clients_keep_the_share_of_those_held_out(table, number, expected):
    federation = load(f"{table}|draw_clients:num_clients={number}", **COLUMNS, hold_out=3)

    held_out = 0 if federation.held_out is None else int(federation.held_out.sum())
    assert (number - held_out, held_out) == expected


def test_a_path_may_hold_a_bar(tmp_path):
    path = tmp_path / "a|b.csv"
    path.touch()

    assert split_text(str(path)) == (str(path), [])


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        ("digits:num_clients=9", {"num_clients": 8}, BadValue, "num_clients must be given once"),
        ("digits", {"target": "y"}, UnknownChoice, "no option of digits is called 'target'"),
        ("digits|natural:rows=3", {}, UnknownChoice, "no option of natural is called 'rows'"),
    ],
)
def test_what_makes_no_sense_is_refused(text, options, error, message):
    with pytest.raises(error, match=message):
        load(text, **options)


def test_the_fingerprint_changes_with_any_input():
    federation = load("digits:num_clients=9")
    other = load("digits:num_clients=9")
    other.x[3, 2, 2] += 1.0

    assert load("digits:num_clients=9").fingerprint == federation.fingerprint != other.fingerprint


def test_a_federation_set_apart_as_a_whole_has_nobody_to_train():
    federation = load("digits:num_clients=9")
    whole = replace(federation, held_out=np.ones(9, bool))

    with pytest.raises(BadData, match="set all clients aside"):
        whole.hold_out()
    assert draw_clients(whole, num_clients=4).num_clients == 4
