"""Gradients, their noise, what lies around a center, clusters and warnings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.aggregate import build_aggregator
from plures.data.worlds import mean_estimation
from plures.methods.threshold.gradients import (
    KeptPoints,
    OfferedModels,
    clusters_of,
    gap_warnings,
    gradient_at,
    noise_at,
    robust_centers,
    surroundings,
)
from plures.types import Data, Plan, Rows, Weights

STEP = Plan(steps=1, batch=None, lr=0.5)


def rows_of(world):
    x, y = (jnp.asarray(each) for each in world.federation.rows_of(world.federation.names[0], "train"))
    own = Rows(x, y, 0, len(y), len(y))
    return Data(own, own), np.asarray(y)


def test_one_step_of_the_plan_is_the_gradient():
    world = mean_estimation(num_clients=1, dim=3, rows=8)
    data, targets = rows_of(world)
    at = Weights({"point": jnp.array([1.0, 2.0, 3.0])})

    gradient, _ = gradient_at(world.model, STEP, jax.random.key(0), at, data)

    np.testing.assert_allclose(gradient.params["point"], np.array([1.0, 2.0, 3.0]) - targets.mean(0), rtol=1e-5)


def test_only_centers_that_are_asked_for_and_keep_any_are_replaced_and_statistics_are_medians():
    points = Weights(jnp.array([[0.0], [1.0], [5.0]]), {"var": jnp.array([1.0, 2.0, 9.0])})
    kept = jnp.array([[1, 1, 1], [1, 1, 1], [0, 0, 0]], bool)
    group = KeptPoints(points, jnp.ones(3), kept, jnp.array([True, False, True]))
    plain = Weights(jnp.full((3, 1), -7.0), {"var": jnp.full(3, -7.0)})

    found = robust_centers(build_aggregator("median"), group, plain, jnp.arange(3), jax.random.key(0))
    assert found.params[:, 0].tolist() == [1.0, -7.0, -7.0]
    assert found.stats["var"].tolist() == [2.0, -7.0, -7.0]

    found = robust_centers(None, group, plain, jnp.arange(3), jax.random.key(0))
    assert found.params[:, 0].tolist() == [-7.0, -7.0, -7.0]
    assert found.stats["var"].tolist() == [2.0, -7.0, -7.0]


@pytest.mark.parametrize(("known", "served", "cluster"), [(True, 100.0, 3), (False, "mean", 8)])
def test_a_client_gets_its_own_model_and_a_newcomer_the_best(known, served, cluster):
    world = mean_estimation(num_clients=1, dim=2, rows=8)
    data, targets = rows_of(world)
    best = targets.mean(0) if served == "mean" else np.full(2, served)
    others = jnp.stack([jnp.full(2, 50.0), jnp.asarray(targets.mean(0)), jnp.full(2, -50.0)])
    offer = OfferedModels(
        own=Weights({"point": jnp.full(2, 100.0)}),
        known=jnp.asarray(known),
        label=jnp.asarray(3),
        others=Weights({"point": others}),
        labels=jnp.array([7, 8, 9]),
    )

    np.testing.assert_allclose(offer.serve(world.model, data).params["point"], best, rtol=1e-6)
    assert int(offer.cluster(world.model, data)) == cluster


def test_clients_who_keep_mostly_the_same_are_a_cluster():
    kept = jnp.array(
        [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], bool
    )  # the last two share one of two: not more than half

    assert clusters_of(kept).tolist() == [0, 0, 0, 3, 4]


def test_the_noise_of_a_gradient_is_that_of_its_minibatch():
    """Mean estimation: the gradient of a batch of b rows has the variance of a row's target / b."""
    world = mean_estimation(num_clients=1, dim=3, rows=4000, radius=0.0, sigma=2.0)
    x, y = (jnp.asarray(one) for one in world.federation.rows_of(world.federation.names[0], "train"))
    own = Rows(x, y, 0, len(y), len(y))
    rows, one = Data(own, own), world.model.init(jax.random.key(0))
    plan = Plan(steps=3, batch=8, lr=0.1)
    keys = jax.random.split(jax.random.key(1), 2000)
    found = jax.vmap(lambda key: noise_at(world.model, plan, key, one, rows))(keys)

    exact = 3 * 3 * 2.0**2 / 8  # steps x dimensions x variance / rows
    assert float(found.mean()) == pytest.approx(exact, rel=0.1)
    assert float(noise_at(world.model, STEP, keys[0], one, rows)) == 0.0


def test_a_gap_below_three_deviations_is_said_in_plain_words():
    ones = jnp.ones(4)

    (said,) = gap_warnings(ones, 2.0 * ones, 0.25 * ones)
    assert "Delta/sigma is about 1.4, below 3" in said
    assert "A 0.5" in said
    assert gap_warnings(ones, 9.1 * ones, ones) == []
    assert gap_warnings(0 * ones, ones, ones) == []  # without noise there is nothing to compare with
    assert gap_warnings(jnp.array([0.0, 0.0, 0.0, 1e6]), ones, ones) == []  # and one attacker does not make any
    assert gap_warnings(ones, 0 * ones, ones) == []


def test_neither_an_attacker_far_away_nor_one_without_numbers_hides_where_a_cluster_ends():
    points = jnp.array([[0.0], [1.0], [-1.0], [10.0], [11.0], [1e6], [jnp.nan]])
    kept = jnp.array([[1, 1, 1, 0, 0, 0, 0]], bool)

    found = surroundings(points, jnp.ones(7), kept / 3.0, kept)

    np.testing.assert_allclose(found.gap, [100.0], rtol=1e-4)
