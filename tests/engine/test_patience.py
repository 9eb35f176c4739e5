"""Patience: a run ends when valid rows have stopped improving; and the work that it took."""

import jax
import numpy as np
import pytest

from plures import run, then
from plures.contract import worlds
from plures.engine import Settings
from plures.engine.identity import identify
from plures.errors import BadValue
from plures.method import closed
from plures.methods.fedavg import fedavg
from plures.methods.local_only import local_only
from plures.types import Plan

SEEN = worlds.awkward()[0]
METHOD = fedavg(worlds.model(), plan=Plan(batch=None, lr=0.5))
PATIENT = {"executor": "vectorized", "eval_every": 2, "patience": 2}


def valid_losses(done):
    found = [one for one in done.record.scores if (one.kind, one.split) == ("personal", "valid")]
    has = SEEN.count[np.argsort(SEEN.uid), 1] > 0
    return [(one.round, float(np.asarray(one.metrics["loss"], float)[has].mean())) for one in found]


@pytest.fixture(scope="module")
def whole():
    return run(METHOD, SEEN, rounds=400, **PATIENT)


def test_a_run_ends_after_two_evaluations_that_are_no_half_percent_better(whole):
    losses, best, waited = valid_losses(whole), np.inf, 0
    for number, (_, loss) in enumerate(losses):
        assert waited < 2, f"evaluation {number} came too late"
        best, waited = (loss, 0) if loss < best * (1 - 0.005) or best == np.inf else (best, waited + 1)

    assert waited == 2
    assert int(whole.state.round) == losses[-1][0] < 400


def test_test_rows_are_scored_at_the_early_end_and_there_alone(whole):
    rounds = [one.round for one in whole.record.scores if one.split == "test"]

    assert set(rounds) == {int(whole.state.round)}


def test_resumed_is_uninterrupted(whole, tmp_path):
    first = int(whole.state.round) // 4 * 2
    kept = {"checkpoint": tmp_path, "checkpoint_every": 1}
    run(METHOD, SEEN, rounds=first, executor="vectorized", eval_every=2, patience=2, **kept)

    resumed = run(METHOD, SEEN, rounds=400, **PATIENT, **kept)
    again = run(METHOD, SEEN, rounds=400, **PATIENT, **kept)

    assert resumed.record.table().equals(whole.record.table(), null_equal=True)
    for found, wanted in zip(jax.tree.leaves(resumed.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert int(again.state.round) == int(whole.state.round)


def test_a_warm_up_is_played_whole_and_then_patience_counts():
    done = run(then(METHOD, 30, METHOD), SEEN, rounds=400, **PATIENT)

    assert 30 < int(done.state.round) < 400


def test_a_closing_round_follows_at_once_and_is_the_one_that_is_scored(whole):
    done = run(closed(METHOD, METHOD, hand_over=lambda key, fresh, before: before), SEEN, rounds=400, **PATIENT)

    (main,) = done.record.past
    assert main.rounds == int(whole.state.round)
    assert int(done.state.round) == 400, "it keeps its number"
    assert {one.round for one in done.record.scores if one.split == "test"} == {400}


def test_patience_is_part_of_the_identity():
    parts = [identify(METHOD, SEEN, Settings(rounds=9, patience=one)) for one in (None, 2, 3)]

    assert len({one.digest for one in parts}) == 3


def test_no_patience_at_all_is_refused():
    with pytest.raises(BadValue, match="patience must be 1 or more"):
        Settings(rounds=1, patience=0)


def test_steps_are_counted_over_rounds_warm_ups_and_cohorts():
    """Full batches make one step an epoch; half of the clients take part in a round, all in the warm-up."""
    plan = Plan(batch=None, lr=0.1, epochs=3)
    clients = SEEN.num_clients
    with_rows = (SEEN.count[:, 0] > 0).mean()

    alone = run(local_only(worlds.model(), plan=plan), SEEN, rounds=4, cohort=1, executor="vectorized")
    warmed = then(METHOD, 2, fedavg(worlds.model(), plan=plan), everyone=True)
    both = run(warmed, SEEN, rounds=5, executor="vectorized")

    assert alone.clients["steps_per_client"][0] == pytest.approx(4 * 3 * with_rows)
    assert both.clients["steps_per_client"][clients - 1] == pytest.approx((2 * 1 + 3 * 3) * with_rows)
