"""The small values: rows of a client, plans, and what a method's optional functions default to."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from plures.errors import BadValue
from plures.method import keep_download, stateless
from plures.methods.fedavg import fedavg
from plures.models import linear
from plures.types import Plan, Rows

MINE = Rows(jnp.arange(10.0), jnp.arange(10) * 100, start=4, count=3, capacity=5)


def test_taken_rows_start_where_the_client_starts():
    batch = MINE.take(jnp.array([2, 0]))

    assert (batch.x.tolist(), batch.y.tolist(), batch.mask.tolist()) == ([6.0, 4.0], [600, 400], [True, True])


def test_an_index_past_the_end_repeats_an_own_row_under_a_false_mask():
    batch = MINE.take(jnp.array([1, 3, 99]))

    assert (batch.x.tolist(), batch.mask.tolist()) == ([5.0, 6.0, 6.0], [True, False, False])


def test_all_rows_are_padded_to_the_capacity():
    batch = MINE.all()

    assert batch.mask.tolist() == [True, True, True, False, False]


def test_all_of_no_rows_is_one_row_that_does_not_count():
    batch = replace(MINE, count=0, capacity=0).all()

    assert batch.mask.tolist() == [False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr must be a positive number, got 0.0"),
        ({"lr": float("nan")}, "lr must be a positive number, got nan"),
        ({"epochs": -1}, "epochs must be 0 or more, got -1"),
        ({"steps": -2}, "steps must be 0 or more, got -2"),
        ({"batch": 0}, "batch must be 1 or more (or None for full batch), got 0"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(options, message):
    with pytest.raises(BadValue) as refusal:
        Plan(**options)

    assert str(refusal.value) == message


def test_a_client_is_offered_and_answered_what_it_is_sent():
    method = replace(fedavg(linear.mean((0,), 1)), send=lambda server, uid: server + uid)

    assert (method.offered(10, 3), method.answered(20, 4)) == (13, 24)


def test_own_offers_and_answers_win_over_what_is_sent():
    method = replace(
        fedavg(linear.mean((0,), 1)),
        offer=lambda server, uid: "offer",
        answer=lambda server, uid: "answer",
    )

    assert (method.offered(0, 0), method.answered(0, 0)) == ("offer", "answer")


def test_private_state_starts_empty_or_as_the_download():
    assert (stateless(None, "download"), keep_download(None, "download")) == ((), "download")
