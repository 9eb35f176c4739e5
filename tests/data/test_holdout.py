"""Clients held out: by number, share or name, the same that ``hold_out`` draws."""

import numpy as np
import pytest

from plures.data import from_arrays
from plures.data.holdout import choose_held_out, mark_held_out
from plures.errors import BadValue, UnknownChoice

NAMES = [f"client-{k}" for k in range(10)]


@pytest.fixture
def federation():
    return from_arrays(np.zeros((30, 1)), np.arange(30) % 2, np.repeat(NAMES, 3))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_number_draws_the_clients_that_hold_out_draws(federation, seed):
    chosen = choose_held_out(NAMES, 3, seed)

    _, unseen = federation.hold_out(num_clients=3, seed=seed)
    assert [name for name, held_out in zip(NAMES, chosen, strict=True) if held_out] == list(unseen.names)


def test_a_share_draws_that_share_of_the_clients(federation):
    chosen = choose_held_out(NAMES, 0.4, 0)

    assert chosen.tolist() == choose_held_out(NAMES, 4, 0).tolist()


def test_another_seed_draws_other_clients():
    assert choose_held_out(NAMES, 5, 0).tolist() != choose_held_out(NAMES, 5, 1).tolist()


@pytest.mark.parametrize("names", [("client-7", "client-2"), ["client-2", "client-7"]])
def test_a_list_takes_the_clients_of_these_names(names):
    assert np.flatnonzero(choose_held_out(NAMES, names, 0)).tolist() == [2, 7]


@pytest.mark.parametrize("nothing", [0, 0.0])
def test_zero_is_none(nothing):
    assert choose_held_out(NAMES, nothing, 0).tolist() == [False] * 10


@pytest.mark.parametrize(
    ("unseen", "message"),
    [
        (10, "hold_out must be between 0 and 9 of the 10 clients, got 10"),
        (-1, "hold_out must be between 0 and 9 of the 10 clients, got -1"),
        (1.0, "hold_out must be a number of clients, a share between 0 and 1, or a list of names, got 1.0"),
        (-0.5, "hold_out must be a number of clients, a share between 0 and 1, or a list of names, got -0.5"),
        (True, "hold_out must be a number of clients, a share between 0 and 1, or a list of names, got True"),
        (
            "client-1",
            "hold_out must be a number of clients, a share between 0 and 1, or a list of names, got 'client-1'",
        ),
        (("client-1", "client-1"), "hold_out must be a list without repeats, got ['client-1', 'client-1']"),
        ((), "hold_out must be a list with at least one client that leaves at least one to train, got []"),
        (
            NAMES,
            f"hold_out must be a list with at least one client that leaves at least one to train, got {NAMES!r}",
        ),
    ],
)
def test_what_cannot_be_set_apart_is_refused(unseen, message):
    with pytest.raises(BadValue) as refusal:
        choose_held_out(NAMES, unseen, 0)

    assert str(refusal.value) == message


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownChoice, match=r"^no client is called 'client-x'; did you mean 'client-"):
        choose_held_out(NAMES, ("client-x",), 0)


def test_clients_set_apart_are_what_hold_out_takes_without_being_told(federation):
    seen, unseen = mark_held_out(federation, choose_held_out(NAMES, ("client-4",), 0)).hold_out()

    assert (seen.num_clients, unseen.names) == (9, ("client-4",))


def test_nobody_set_apart_leaves_no_mark(federation):
    assert mark_held_out(federation, np.zeros(10, bool)).held_out is None
