"""Runs: protocol, records, progress, stores, models for clients."""

import numpy as np
import polars as pl
import pytest

from plures import run
from plures.contract import worlds
from plures.contract.watched_runs import outcome
from plures.data.worlds import mean_estimation
from plures.engine import Settings, prepare
from plures.errors import BadData, BadValue, UnknownChoice
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.types import Plan


@pytest.fixture(scope="module")
def method():
    return ditto(worlds.model(), plan=worlds.PLAN)


@pytest.fixture(scope="module")
def finished(method):
    seen, unseen = worlds.awkward()
    told = []
    settings = {"rounds": 4, "eval_every": 2, "executor": "vectorized", "cohort": 4}
    result = run(method, seen, unseen=unseen, progress=told.append, **settings)
    return result, told


def test_test_rows_are_read_once_at_the_end(finished):
    table = finished[0].record.table()

    assert table.filter(pl.col("split") == "valid")["round"].unique().sort().to_list() == [2, 4]
    assert table.filter(pl.col("split") == "test")["round"].unique().to_list() == [4]


def test_a_row_per_round_client_split_kind_and_metric(finished):
    table = finished[0].record.table()

    keys = ["round", "uid", "split", "kind", "metric"]
    assert table.select(keys).is_duplicated().sum() == 0
    assert set(table["kind"].unique()) == {"personal", "global"}
    assert set(table["metric"].unique()) == {"accuracy", "loss"}
    assert table["uid"].n_unique() == 8


def test_the_client_table_says_who_took_part_and_what_it_cost(finished):
    result = finished[0]
    table = result.clients

    assert table["seen"].to_list() == [True] * 6 + [False] * 2
    assert table["rounds"].sum() == 4 * 4
    assert table["rounds"].to_list()[:6] == result.state.visits.tolist()
    size = 4 * (3 * 3 + 3)
    assert (table["bytes_down"] == table["rounds"] * size).all()
    assert (table["bytes_up"] == table["rounds"] * size).all()
    assert result.num_bytes == 2 * 16 * size


def test_progress_tells_rounds_bytes_and_score(finished):
    told = finished[1]

    assert [one.round for one in told] == [2, 4]
    assert told[-1].num_bytes == finished[0].num_bytes
    assert told[-1].metric == "accuracy"
    assert 0 <= told[-1].score <= 1
    assert told[-1].rounds_per_second > 0


def test_a_clients_model_predicts_what_was_scored(finished):
    result = finished[0]
    seen, _ = worlds.awkward()
    x, y = seen.rows_of("client-1", "test")

    predicted = np.asarray(result.model_for(1).predict(x)).argmax(1)

    assert (predicted == y).mean() == pytest.approx(result.clients["personal_test_accuracy"][1])


def test_an_unknown_uid_is_refused(finished):
    with pytest.raises(BadValue, match="uid must be between 0 and 7, got 8"):
        finished[0].model_for(8)


def test_private_rows_on_disk_give_the_same_run(method, finished, tmp_path):
    seen, unseen = worlds.awkward()

    stored = run(
        method,
        seen,
        unseen=unseen,
        rounds=4,
        eval_every=2,
        executor="vectorized",
        cohort=4,
        store=tmp_path / "rows",
    )

    expected, found = outcome(finished[0]), outcome(stored)
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)
    uid = int(np.argmax(stored.state.visits))
    served = stored.model_for(uid).weights.params["head"]["kernel"]
    np.testing.assert_allclose(served, finished[0].model_for(uid).weights.params["head"]["kernel"], atol=1e-6)


def test_a_disk_store_resumes_too(method, tmp_path):
    seen, _ = worlds.awkward()
    common = {"executor": "vectorized", "cohort": 4, "eval_every": 1}
    whole = run(method, seen, rounds=3, **common)
    kept = {**common, "checkpoint": tmp_path / "kept", "checkpoint_every": 1, "store": tmp_path / "rows"}

    run(method, seen, rounds=2, **kept)
    resumed = run(method, seen, rounds=3, **kept)

    np.testing.assert_array_equal(
        resumed.clients["personal_test_loss"].to_numpy(), whole.clients["personal_test_loss"].to_numpy()
    )


def test_one_round_of_exact_local_means_averages_to_the_pooled_mean():
    world = mean_estimation(num_clients=6, dim=3)
    pooled = np.mean(
        [world.federation.rows_of(name, "train")[1].mean(0) for name in world.federation.names], axis=0
    )

    result = run(fedavg(world.model, plan=Plan(batch=None, lr=1.0)), world.federation, rounds=1)

    np.testing.assert_allclose(result.state.server.weights.params["point"], pooled, atol=1e-5)


def test_diagnostics_are_recorded_every_round(finished):
    table = finished[0].record.info_table()

    assert table.filter(pl.col("name") == "loss")["round"].to_list() == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["rounds", "eval_every", "checkpoint_every"])
def test_settings_must_be_positive(name, method):
    seen, _ = worlds.awkward()

    with pytest.raises(BadValue, match=f"{name} must be 1 or more, got 0"):
        run(method, seen, **{"rounds": 1, name: 0})


def test_a_setting_that_does_not_exist_is_refused(method):
    seen, _ = worlds.awkward()

    with pytest.raises(UnknownChoice, match="no setting of a run is called 'round'; did you mean 'rounds'"):
        run(method, seen, round=3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"rounds": 1.5}, "rounds must be 1 or more, got 1.5"),
        ({"checkpoint_every": 1}, "checkpoint must be a folder when checkpoint_every is set"),
        ({"channels": [1]}, "channels must be a tuple of channels"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments, said, method):
    seen, _ = worlds.awkward()

    with pytest.raises(BadValue, match=said):
        run(method, seen, **{"rounds": 1, **arguments})


def test_a_factory_instead_of_a_method_is_refused():
    with pytest.raises(BadValue, match="method must be a Method, such as fedavg"):
        run(fedavg, worlds.awkward()[0], rounds=1)


def test_a_client_goes_by_its_name_too(finished):
    by_name, by_uid = (finished[0].model_for(client).weights for client in ("client-2", 2))

    np.testing.assert_array_equal(by_name.params["head"]["kernel"], by_uid.params["head"]["kernel"])
    with pytest.raises(UnknownChoice, match="no client is called 'client-99'"):
        finished[0].model_for("client-99")


def test_a_prepared_run_may_be_asked_about_its_traffic_first(method):
    """Asking traces the method; nothing traced may be kept for the run."""
    seen, _ = worlds.awkward()
    runner = prepare(method, seen, settings=Settings(rounds=1, executor="vectorized"))

    before = runner.traffic(method)

    assert runner.run().num_bytes == 6 * (before.down + before.up + before.answer)


def test_training_clients_need_the_uids_from_zero_on(method):
    seen, unseen = worlds.awkward()

    with pytest.raises(BadValue, match="uid must be"):
        run(method, unseen, rounds=1)
    with pytest.raises(BadData, match="share uids"):
        run(method, seen, unseen=seen, rounds=1)


def test_seen_and_unseen_must_have_one_shape(method):
    seen, _ = worlds.awkward()
    other = mean_estimation(num_clients=2).federation

    with pytest.raises(BadData, match="one shape and task"):
        run(method, seen, unseen=other.renumbered(6), rounds=1)
