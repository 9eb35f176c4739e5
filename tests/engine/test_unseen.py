"""What newcomers get, by how much data they bring."""

import numpy as np
import polars as pl
import pytest

from plures import run
from plures.contract import worlds
from plures.engine import newcomers
from plures.methods.fedavg import fedavg
from plures.methods.local_only import local_only
from plures.types import Plan

PLAN = Plan(epochs=3, batch=None, lr=0.5)


@pytest.fixture(scope="module")
def finished():
    seen, unseen = worlds.awkward()
    method = local_only(worlds.model(), plan=PLAN)
    return run(method, seen, unseen=unseen, rounds=2, executor="vectorized")


def test_all_rows_give_the_scores_of_the_run(finished):
    found = newcomers(finished).filter(pl.col("all")).sort("uid")
    mine = finished.clients.filter(~pl.col("seen")).sort("uid")

    assert found["uid"].to_list() == mine["uid"].to_list()
    np.testing.assert_allclose(
        found["personal_test_loss"].cast(float), mine["personal_test_loss"].cast(float), rtol=1e-5
    )


def test_a_newcomer_is_served_as_if_it_had_only_what_it_brings(finished):
    """The same as a run in which the unseen clients own no more rows."""
    seen, unseen = worlds.awkward()
    amount = int(unseen.count[:, 0].max()) // 2
    share = np.minimum(amount / np.maximum(unseen.count[:, 0], 1), 1)
    count = unseen.count.copy()
    count[:, 0] = np.minimum(count[:, 0], amount)
    count[:, 1] = np.round(share * count[:, 1])
    from dataclasses import replace

    fewer = run(finished.runner.method, seen, unseen=replace(unseen, count=count), rounds=2, executor="vectorized")

    found = newcomers(finished, [amount]).filter(pl.col("rows") == amount, ~pl.col("all")).sort("uid")
    mine = fewer.clients.filter(pl.col("uid").is_in(found["uid"].implode())).sort("uid")
    assert found.height > 0
    np.testing.assert_allclose(
        found["personal_test_loss"].cast(float), mine["personal_test_loss"].cast(float), rtol=1e-5
    )


def test_one_model_for_all_does_not_ask_what_newcomers_bring():
    seen, unseen = worlds.awkward()
    done = run(fedavg(worlds.model(), plan=PLAN), seen, unseen=unseen, rounds=1, executor="vectorized")

    spread = newcomers(done).group_by("uid").agg(pl.col("personal_test_loss").cast(float))

    for values in spread["personal_test_loss"].to_list():
        assert np.ptp(np.array(values, float)) == pytest.approx(0, abs=1e-6)


def test_without_unseen_clients_there_is_nothing_to_say():
    seen, _ = worlds.awkward()

    assert newcomers(run(fedavg(worlds.model(), plan=PLAN), seen, rounds=1, executor="vectorized")) is None
