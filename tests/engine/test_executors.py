"""Executors: the same results, the right amount of idle work, and names when something fails."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.contract import worlds
from plures.engine import Executor, chunked, executors
from plures.errors import BadValue, ClientFailure, UnknownChoice
from plures.methods.fedavg import fedavg


@pytest.mark.parametrize(
    ("text", "expected"),
    [("vectorized", Executor(None)), ("chunked:3", Executor(3)), ("one_by_one", Executor(0)), ("auto", None)],
)
def test_executors_go_by_name(text, expected):
    assert executors.executor(text) == expected


@pytest.mark.parametrize("text", ["vectorised", "chunked:-1x"])
def test_an_unknown_executor_is_refused(text):
    with pytest.raises((UnknownChoice, BadValue)):
        executors.executor(text)


def test_a_chunk_must_hold_a_client():
    with pytest.raises(BadValue, match="chunk size must be 1 or more, got 0"):
        chunked(0)


def test_equal_clients_leave_nothing_idle():
    assert executors.idle_share([7] * 20, 10, 10) == 0.0


def test_idle_share_counts_waiting_for_the_largest_of_a_chunk():
    """Four clients of 1, 1, 3, 3: together 8 of 12 steps are work; in sorted pairs all are."""
    assert executors.idle_share([1, 1, 3, 3], 4, 4) == pytest.approx(1 - 8 / 12)
    assert executors.idle_share([1, 1, 3, 3], 4, 2) == 0.0


def test_auto_keeps_idle_work_low_when_sizes_differ():
    sizes = np.exp(0.91 * np.linspace(-2, 2, 40)).tolist()

    chosen = executors.choose(message_bytes=1000, work=sizes, num_clients=20)

    assert chosen.size is not None
    assert executors.idle_share(sizes, 20, chosen.size) <= executors.WASTE


def test_auto_trains_large_models_client_after_client_on_a_cpu():
    assert executors.choose(message_bytes=10 * executors.CACHE_BYTES, work=[5] * 20, num_clients=20) == Executor(1)


def test_auto_bounds_the_rows_held_at_a_time():
    chosen = executors.choose(
        message_bytes=100, work=[5] * 10_000, num_clients=10_000, data_bytes=executors.DATA_BYTES // 50
    )

    assert 40 <= chosen.size <= 50


def test_one_by_one_names_stage_round_client_and_shapes():
    seen, _ = worlds.awkward()
    base = fedavg(worlds.model(), plan=worlds.PLAN)

    def train(key, shared, private, data):
        raise ValueError("something is wrong here")

    with pytest.raises(ClientFailure) as failure:
        run(replace(base, train=train), seen, rounds=1, executor="one_by_one", cohort=2, seed=3)

    said = str(failure.value)
    assert "train failed in round 0 for the client with uid" in said
    assert "something is wrong here" in said
    assert "float32[3, 3]" in said


def test_a_failing_serve_is_named_too():
    seen, _ = worlds.awkward()
    base = fedavg(worlds.model(), plan=worlds.PLAN)

    def serve(key, shared, private, data):
        return jnp.zeros(3) @ jnp.zeros(4)

    with pytest.raises(ClientFailure, match="score failed in round 1"):
        run(replace(base, serve=serve), seen, rounds=1, executor="one_by_one")
