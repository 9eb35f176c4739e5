"""HypCluster: assignments, empty clusters, starts that part, natural clusters found, nothing learned from test rows."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from plures import run, tree
from plures.data.worlds import density, linear_clusters, mean_estimation
from plures.errors import BadValue, MethodWarning, UnknownChoice, Unsupported
from plures.local import losses_of
from plures.methods.clustering.hypcluster import (
    ClusterChoices,
    ClusterUpload,
    choose_cluster,
    hypcluster,
    margin,
    posterior,
)
from plures.methods.clustering.starting_centers import pick_centers
from plures.methods.fedavg import fedavg
from plures.models.linear import least_squares
from plures.types import Data, Plan, Rows

WORLD = linear_clusters(num_clients=12, num_groups=3, dim=3, rows=30, gap=4.0, sigma=0.1, seed=1)
FULL = Plan(batch=None, lr=0.2)
OPTIONS = {"num_clusters": 3, "plan": FULL, "warm": 2, "num_candidates": 12}


@pytest.fixture(scope="module")
def found():
    method = hypcluster(WORLD.model, **OPTIONS)
    return run(method, WORLD.federation, rounds=12, eval_every=12)


def test_the_planted_groups_are_found(found):
    served = np.stack([found.model_for(uid).predict(np.eye(3, dtype=np.float32)) for uid in range(12)])
    same = np.abs(served[:, None] - served[None]).max(2) < 1e-6  # clients with one model predict alike

    planted = WORLD.federation.group
    np.testing.assert_array_equal(same, planted[:, None] == planted[None])


def test_test_rows_change_no_assignment_and_no_model(found):
    federation = WORLD.federation
    y = federation.y.copy()
    for start, count in zip(federation.start[:, 2], federation.count[:, 2], strict=True):
        y[start : start + count] = 99.0
    spoiled = run(found.runner.method, replace(federation, y=y), rounds=12, eval_every=12)

    for one, other in zip(jax.tree.leaves(found.state), jax.tree.leaves(spoiled.state), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_full_batch_rounds_never_raise_the_objective():
    """With everyone taking part and small steps, assign and average are descent steps of one objective."""
    method = hypcluster(WORLD.model, **{**OPTIONS, "plan": Plan(batch=None, lr=0.02)})

    with pytest.warns(MethodWarning, match="cluster 0 was chosen by nobody for up to 10 rounds: 2 of 3"):
        table = run(method, WORLD.federation, rounds=14, eval_every=14).record.info_table()

    own = table.filter((pl.col("name") == "loss") & (pl.col("round") > 4))
    losses = own.group_by("round").agg(pl.col("value").mean())
    assert np.diff(losses.sort("round")["value"].to_numpy()).max() <= 1e-6


def server_of(*points):
    """ClusterServer at points of the line, with momentum buffers that are not zero."""
    model = mean_estimation(num_clients=2, dim=1).model
    method = hypcluster(model, num_clusters=len(points), init="partition", plan=FULL, momentum=0.9)
    server = method.start(jax.random.key(0), 9)
    base = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.5), server.base)
    weights = jax.tree.map(lambda leaf: jnp.asarray(points, jnp.float32).reshape(leaf.shape), base.weights)
    return method, server._replace(base=base._replace(weights=weights))


def update_of(method, amounts, cluster):
    one = jax.tree.map(lambda leaf: leaf[0], method.start(jax.random.key(0), 9).base.weights)
    stacked = jax.tree.map(lambda leaf: jnp.asarray(amounts, jnp.float32).reshape(-1, *leaf.shape), one)
    return ClusterUpload(stacked, jnp.asarray(cluster), jnp.zeros(len(cluster)))


def test_a_cluster_that_nobody_chose_keeps_model_and_momentum():
    method, before = server_of(1.0, 5.0)

    after = method.merge(before, update_of(method, [1.0, 1.0], [0, 0]), jnp.ones(2), jnp.arange(2))

    for old, new in zip(jax.tree.leaves(before.base), jax.tree.leaves(after.base), strict=True):
        assert (old[1] == new[1]).all()
        assert (old[0] != new[0]).any()
    assert after.idle.tolist() == [0, 1]


def test_updates_of_a_cluster_are_averaged_by_rows():
    method, before = server_of(0.0, 0.0)
    still = before._replace(base=before.base._replace(optimizer=tree.zeros_like(before.base.optimizer)))

    after = method.merge(
        still, update_of(method, [1.0, 4.0, 7.0], [0, 0, 1]), jnp.array([2.0, 1.0, 5.0]), jnp.arange(3)
    )

    assert np.asarray(jax.tree.leaves(after.base.weights)[0]).ravel().tolist() == [2.0, 7.0]


def test_a_client_without_rows_gets_the_largest_cluster():
    rows = Rows(jnp.zeros((1, 0)), jnp.zeros((1, 1)), 0, 0, 1)
    choice = ClusterChoices(None, jnp.array([3.0, 8.0, 5.0]), jnp.array(-1))

    assert int(choose_cluster(jnp.zeros(3), choice, Data(rows, rows))) == 1


def test_the_margin_is_the_gap_to_the_second_best():
    assert float(margin(jnp.array([3.0, 1.0, 1.5]))) == 0.5
    assert float(margin(jnp.array([3.0]))) == 0.0


def test_the_posterior_is_proportional_to_the_likelihood():
    found = posterior(jnp.log(jnp.array([2.0, 4.0])), 3)

    np.testing.assert_allclose(found, [8 / 9, 1 / 9], rtol=1e-5)


LOSSES = jnp.array([[0.0, 4.0, 9.0], [1.0, 0.0, 9.0], [9.0, 9.0, 5.0], [8.0, 7.0, 1.0]])


@pytest.mark.parametrize("seed", range(4))
def test_centers_are_chosen_for_the_client_that_is_worst_off(seed):
    """Excess, not loss: client 2 has a high loss under every candidate and is not far for that."""
    first, second, third = pick_centers(
        jax.random.key(seed), LOSSES, jnp.ones(4), jnp.ones(3, bool), 3, "farthest"
    ).tolist()

    own = np.asarray(LOSSES.min(1))
    far = int(np.argmax(np.asarray(LOSSES)[:, first] - own))
    assert second == int(np.argmin(np.where(np.arange(3) == first, np.inf, np.asarray(LOSSES)[far])))
    assert sorted((first, second, third)) == [0, 1, 2]


def test_empty_places_and_lost_clients_are_never_centers():
    filled, weights = jnp.array([True, False, True]), jnp.array([1.0, 1.0, 0.0, 1.0])
    spoiled = LOSSES.at[:, 1].set(-99.0).at[2].set(jnp.nan)

    for seed in range(5):
        for rule in ("farthest", "kmeans++"):
            picks = pick_centers(jax.random.key(seed), spoiled, weights, filled, 2, rule).tolist()
            assert sorted(picks) == [0, 2]


def test_an_idle_cluster_is_seeded_by_the_client_that_gains_most():
    model = mean_estimation(num_clients=2, dim=1).model
    method = hypcluster(model, num_clusters=2, init="partition", plan=FULL, reseed_after=2)
    _, before = server_of(1.0, 5.0)
    start = method.start(jax.random.key(0), 9)
    before = start._replace(base=start.base._replace(weights=before.base.weights), idle=jnp.array([0, 1]))
    uploads = update_of(method, [10.0, 20.0], [0, 0])._replace(gain=jnp.array([0.1, 0.7]))

    after = method.merge(before, uploads, jnp.ones(2), jnp.arange(2))

    assert np.asarray(jax.tree.leaves(after.base.weights)[0]).ravel().tolist() == [16.0, 21.0]
    assert after.idle.tolist() == [0, 0]


@pytest.mark.parametrize("init", ["kmeans++", "partition"])
def test_other_starts_train_as_well(init):
    method = hypcluster(WORLD.model, **{**OPTIONS, "init": init})

    result = run(method, WORLD.federation, rounds=6, eval_every=6)

    assert np.isfinite(result.clients["personal_test_rmse"].to_numpy()).all()


def test_of_several_starts_the_best_on_valid_rows_goes_on():
    """Many starts by k-means++ find the groups that a single one may miss."""
    method = hypcluster(WORLD.model, **{**OPTIONS, "init": "kmeans++", "num_starts": 6, "race": 6})

    result = run(method, WORLD.federation, rounds=20, eval_every=20)

    assert result.clients["personal_test_rmse"].mean() < 0.3


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_clusters": 0}, BadValue, "num_clusters must be 1 or more, got 0"),
        ({"init": "farthets"}, UnknownChoice, "did you mean 'farthest'"),
        ({"num_candidates": 1}, BadValue, r"num_candidates must be at least num_clusters \(2\), got 1"),
        ({"num_starts": 3, "init": "partition"}, BadValue, "num_starts must be 1 with init=partition"),
        ({"reseed_after": 0}, BadValue, "reseed_after must be 1 or more, got 0"),
    ],
)
def test_options_out_of_range_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        hypcluster(WORLD.model, **options)


def test_models_that_always_start_alike_are_refused_at_random():
    with pytest.raises(Unsupported, match="always starts alike"):
        hypcluster(density(num_clients=4).model, init="random")


def test_more_clusters_than_clients_are_refused_before_the_first_round():
    method = hypcluster(least_squares((3,)), num_clusters=13, num_candidates=13, plan=FULL)

    with pytest.raises(BadValue, match="num_clusters must be at most the 12 clients there are, got 13"):
        run(method, WORLD.federation, rounds=20)


def test_the_record_tells_how_many_clusters_are_in_use(found):
    table = found.record.info_table().pivot("name", index="round", values="value").sort("round")
    table = table.filter(pl.col("share_0").is_not_null())

    shares = table.select("share_0", "share_1", "share_2").to_numpy()
    assert table["round"].to_list() == list(range(5, 13))
    np.testing.assert_allclose(shares.sum(1), 1.0, atol=1e-6)
    np.testing.assert_allclose(shares[-1], 1 / 3, atol=1e-6)  # three groups of four clients
    assert table["switched"][-1] == 0.0
    assert "share_0" not in run(fedavg(WORLD.model), WORLD.federation, rounds=1).record.info_table()["name"]


def test_a_model_that_broke_down_attracts_nobody():
    model = mean_estimation(num_clients=2, dim=1).model
    rows = Rows(jnp.zeros((2, 0)), jnp.ones(2), 0, 2, 2)
    models = jax.tree.map(lambda leaf: jnp.stack([leaf * jnp.nan, leaf]), model.init(jax.random.key(0)))

    losses = losses_of(model, models, Data(rows, rows))

    assert losses.tolist() == [float("inf"), 0.5]
