"""Federated-Clustering: exchanges, equal models, groups, momentum, rounds in between, attackers, newcomers, warnings."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run, tree
from plures.data.worlds import linear_clusters, mean_estimation
from plures.errors import BadValue, MethodWarning, UnknownChoice
from plures.method import Attack
from plures.methods.threshold.federated_clustering import federated_clustering
from plures.methods.threshold.gradients import (
    GradientUpload,
)
from plures.methods.threshold.model_table import draw_groups
from plures.models.mlp import mlp
from plures.types import Plan, Weights

WORLD = mean_estimation(num_clients=6, dim=2, rows=8, radius=1.0, sigma=0.1)
MEANS = np.stack([WORLD.federation.rows_of(name, "train")[1].mean(0) for name in WORLD.federation.names])
STEP = Plan(steps=1, batch=None, lr=0.5)
EVERYBODY = "fixed"
MODEL_BYTES = 2 * 4


def fc(**options):
    return federated_clustering(WORLD.model, **{"plan": STEP, "radius": EVERYBODY, **options})


def alone(**options):
    """Everybody for itself, which the method would warn of."""
    method = fc(radius="k_nearest:k=1", **options)
    return replace(method, views=replace(method.views, forecast=None))


def points(result):
    return np.asarray(result.state.server.models.params["point"])


def test_a_ball_for_everybody_moves_all_models_to_the_common_mean():
    result = run(fc(), WORLD.federation, rounds=2)

    # x <- x - lr (x - mean), twice from 0
    np.testing.assert_allclose(points(result), np.tile(0.75 * MEANS.mean(0), (6, 1)), atol=1e-5)


def test_the_nearest_alone_is_local_training():
    result = run(alone(), WORLD.federation, rounds=2)

    np.testing.assert_allclose(points(result), 0.75 * MEANS, atol=1e-5)
    np.testing.assert_allclose(result.state.server.collaboration, np.eye(6), atol=1e-6)


@pytest.mark.slow
def test_models_that_are_the_same_travel_once():
    """One model in the first round, six in the second: in blocks of two that is 1 + 3 exchanges."""
    result = run(alone(block=2), WORLD.federation, rounds=2)

    exchanges = 1 + 3
    assert result.state.exchanges.tolist() == [exchanges] * 6
    assert result.clients["bytes_up"].to_list() == [exchanges * 2 * (MODEL_BYTES + 4)] * 6
    offered = 7 * MODEL_BYTES + 6 * 4 + 4 * 3 + 1  # own and six others, their clusters, and what is known of it
    assert result.clients["bytes_down"].to_list() == [exchanges * 2 * MODEL_BYTES + offered] * 6


@pytest.mark.slow
def test_blocks_make_no_difference():
    one, all_at_once = (
        points(run(fc(radius="k_nearest:k=3", block=block), WORLD.federation, rounds=3)) for block in (1, 6)
    )

    np.testing.assert_allclose(one, all_at_once, atol=1e-6)


@pytest.mark.slow
def test_inside_groups_only_members_count():
    result = run(fc(groups=2, block=1), WORLD.federation, rounds=1)

    first = fc(groups=2, block=1).start(jax.random.key(0), 6)  # shapes alone; the run has its own draw
    assert first.members.shape == (2, 3)
    found = np.asarray(result.state.server.collaboration)
    np.testing.assert_allclose(found.sum(1), np.ones(6), atol=1e-5)
    assert ((found > 0.3).sum(1) == 3).all()  # a third each for the members of the own group
    np.testing.assert_allclose(points(result), 0.5 * found @ MEANS, atol=1e-5)


@pytest.mark.slow
def test_heavy_ball_and_running_mean_are_what_they_say():
    heavy = run(fc(momentum=0.5), WORLD.federation, rounds=2)
    mean = run(fc(momentum=0.5, dampened=True), WORLD.federation, rounds=2)

    target = MEANS.mean(0)
    # v_1 = -t, x_1 = t/2, v_2 = -t/2: b_2 is 0.5 v_1 + v_2, or half of each with a first step of v_1
    np.testing.assert_allclose(points(heavy)[0], target * (0.5 + 0.5 * 1.0), atol=1e-5)
    np.testing.assert_allclose(points(mean)[0], target * (0.5 + 0.5 * 0.75), atol=1e-5)


def test_rounds_in_between_send_one_gradient_and_use_the_weights_of_the_last_comparison():
    result = run(fc(every=2, block=1), WORLD.federation, rounds=2)

    # A ball for all: weights are 1/6 each. In the second round gradients are taken at equal models: as always.
    np.testing.assert_allclose(points(result), np.tile(0.75 * MEANS.mean(0), (6, 1)), atol=1e-5)
    assert result.state.exchanges.tolist() == [2] * 6


@pytest.mark.slow
def test_in_between_the_weights_of_who_is_absent_go_to_the_others():
    result = run(fc(every=2, block=1), WORLD.federation, rounds=1, cohort=4)
    server, first = result.state.server, np.asarray(result.state.visits) > 0
    later = np.array([0, 1, 2, 3])
    gradients = Weights({"point": jnp.asarray((points(result) - MEANS)[later][:, None])})

    after = fc(every=2, block=1).merge(
        server, GradientUpload(gradients, jnp.zeros((4, 1), jnp.int32)), jnp.ones(4), jnp.asarray(later)
    )

    there = np.isin(np.arange(6), later)
    weights = np.where(first[:, None], first[None] * 1.0, np.eye(6)) * there
    weights = weights / np.maximum(weights.sum(1, keepdims=True), 1e-9)
    expected = points(result) - 0.5 * there[:, None] * (weights @ (points(result) - MEANS))
    np.testing.assert_allclose(after.models.params["point"], expected, atol=1e-5)


def test_a_client_without_rows_is_served_like_a_newcomer():
    offer = fc().offer
    server = fc().start(jax.random.key(0), 6)
    server = server._replace(steps=jnp.array([1, 1, 0, 1, 1, 1]), label=jnp.array([3, 3, 2, 3, 3, 5]))

    assert bool(offer(server, jnp.asarray(1)).models.known)
    assert not bool(offer(server, jnp.asarray(2)).models.known)
    assert int(offer(server, jnp.asarray(2)).models.labels[0]) == 3  # the largest cluster comes first


def test_local_rounds_in_between_leave_momentum_out_but_feed_it():
    result = run(fc(every=3, between="local", momentum=0.5, block=1), WORLD.federation, rounds=3)

    common = 0.5 * MEANS.mean(0)
    after = common + 0.5 * (MEANS - common)
    after = after + 0.5 * (MEANS - after)
    np.testing.assert_allclose(points(result), after, atol=1e-5)
    memory = np.asarray(result.state.server.memory["point"])
    first = common + 0.5 * (MEANS - common)
    expected = 0.25 * -MEANS.mean(0) + 0.5 * (common - MEANS) + (first - MEANS)
    np.testing.assert_allclose(memory, expected, atol=1e-5)


@pytest.mark.slow
def test_united_models_are_equal_to_the_last_bit_and_then_travel_once():
    clusters = linear_clusters(num_clients=9, num_groups=3)
    method = federated_clustering(clusters.model, plan=STEP, radius="k_nearest:k=3", unite=2, block=1)

    result = run(method, clusters.federation, rounds=3)

    server = result.state.server
    # One model in the first round, nine in the second, three in the third.
    assert result.state.exchanges.tolist() == [1 + 9 + 3] * 9
    group = np.argsort(np.argsort(clusters.federation.uid))
    assert len(set(np.asarray(server.label).tolist())) == 3
    assert all(len({int(server.label[i]) for i in group[clusters.federation.group == g]}) == 1 for g in range(3))


def attack_with(value):
    """An attack outside every ball: clients 1 and 4 send ``value`` to everybody."""

    def forge(key, uploads, weights, uids, receivers):
        bad = (uids == 1) | (uids == 4)
        return jax.tree.map(lambda leaf: jnp.where(tree.along(bad, leaf), value, leaf), uploads)

    return Attack(name="attack_with", share=1 / 3, members=lambda uids: (uids == 1) | (uids == 4), forge=forge)


@pytest.mark.slow
def test_attacks_outside_the_ball_leave_the_same_bits():
    honest = [0, 2, 3, 5]
    found = [
        points(run(fc(radius=3.0), WORLD.federation, rounds=3, channels=(attack_with(value),)))[honest]
        for value in (1e6, float("nan"))
    ]

    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    assert np.isfinite(found[0]).all()


@pytest.mark.slow
def test_an_attacker_may_tell_every_receiver_another_thing():
    """Client 0 says to each receiver r that its gradient is (r, r): the ball holds exactly these two."""

    def forge(key, uploads, weights, uids, receivers):
        return jax.tree.map(
            lambda leaf: (
                jnp.where(tree.along(uids == 0, leaf), tree.along(receivers, leaf), leaf)
                if leaf.ndim == 2
                else leaf
            ),
            uploads,
        )

    attacker = Attack(name="attacker", share=1 / 6, members=lambda uids: uids == 0, forge=forge)
    method = fc(radius=EVERYBODY, block=2)
    apart = run(alone(), WORLD.federation, rounds=1)  # models that differ
    method = replace(method, start=lambda key, number: draw_groups(apart.state.server._replace(
        exchange=jnp.zeros((), jnp.int32), round=jnp.zeros((), jnp.int32)
    )))  # fmt: skip

    result = run(method, WORLD.federation, rounds=1, channels=(attacker,))

    at = 0.5 * MEANS  # where the models are
    gradients = at[:, None] - MEANS[None]  # (model, client)
    gradients[:, 0] = np.arange(6)[:, None]
    np.testing.assert_allclose(points(result), at - 0.5 * gradients.mean(1), atol=1e-4)


def test_the_model_of_who_is_absent_stays():
    result = run(fc(), WORLD.federation, rounds=1, cohort=2)

    there = np.asarray(result.state.visits) > 0
    assert there.sum() == 2
    np.testing.assert_array_equal(points(result)[~there], 0)
    np.testing.assert_allclose(points(result)[there], np.tile(0.5 * MEANS[there].mean(0), (2, 1)), atol=1e-5)


@pytest.mark.slow
def test_newcomers_take_the_best_of_the_largest_clusters():
    clusters = linear_clusters(num_clients=12, num_groups=3)
    seen, unseen = clusters.federation.hold_out(num_clients=3)
    method = federated_clustering(clusters.model, plan=Plan(steps=5, batch=None, lr=0.1), radius="k_nearest:k=2")

    result = run(method, seen, unseen=unseen, rounds=8)

    table = result.clients
    by_group = dict(zip(table["group"].to_list()[:9], table["cluster"].to_list()[:9], strict=True))
    for row in table.rows(named=True)[9:]:
        assert row["cluster"] == by_group[row["group"]]
        assert row["collaborators"] == 0


def test_robust_aggregates_inside_the_ball():
    """The median of the kept gradients; with the ball of everybody it is the median of all."""
    result = run(fc(aggregate="median"), WORLD.federation, rounds=1)

    np.testing.assert_allclose(points(result), np.tile(0.5 * np.median(MEANS, axis=0), (6, 1)), atol=1e-5)


@pytest.mark.slow
def test_a_run_without_clusters_warns():
    world = mean_estimation(num_clients=6, dim=3, rows=30, radius=0.0, sigma=1.0)
    method = federated_clustering(world.model, plan=Plan(steps=1, batch=4, lr=0.1), radius="k_nearest:k=3")

    with pytest.warns(MethodWarning, match="clusters can hardly be told apart"):
        run(method, world.federation, rounds=3)


def test_the_cost_is_told_before_a_run():
    model = mlp((28, 28), 10, hidden=(200,))

    said = federated_clustering(model).views.forecast(250, ()).cost

    assert "39.8 GB if all gradients were kept at once" in said
    assert "62,500 gradients per round" in said
    assert "6,250 gradients" in federated_clustering(model, groups=10).views.forecast(250, ()).cost


@pytest.mark.parametrize(
    ("options", "sizes", "match"),
    [
        ({"radius": "quantile:q=0.5"}, (5, 15), "the smallest group has 5: strangers"),
        ({"radius": "quantile:q=0.01"}, (10, 10), "this is local training"),
        ({"radius": "quantile:q=0.5", "groups": 4}, (6, 14), "groups are too small"),
    ],
)
def test_a_radius_that_cannot_work_warns_before_the_run(options, sizes, match):
    warned = fc(**options).views.forecast(20, sizes).warnings

    assert len(warned) == 1
    assert match in warned[0]


def test_the_warning_is_given_at_the_start_of_a_run():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(fc(radius="quantile:q=0.1"), WORLD.federation, rounds=1)

    assert ["this is local training" in str(one.message) for one in caught] == [True]


def test_a_fair_radius_warns_of_nothing():
    assert fc(radius="quantile:q=0.25").views.forecast(20, (5, 15)).warnings == ()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"momentum": 1.0}, BadValue, "momentum must be"),
        ({"look": "sideways"}, UnknownChoice, "euclidean"),
        ({"between": "nothing"}, UnknownChoice, "cached"),
        ({"groups": 0}, BadValue, "groups must be 1 or more"),
        ({"unite": -1}, BadValue, "unite must be"),
        ({"radius": "quantil"}, UnknownChoice, "quantile"),
        ({"aggregate": "trimmed_mean:share=0.7"}, BadValue, "share must be"),
        ({"max_iter": 0}, BadValue, "max_iter must be"),
    ],
)
def test_what_cannot_be_is_refused_when_the_method_is_built(options, error, match):
    with pytest.raises(error, match=match):
        fc(**options)


def test_more_groups_than_clients_are_refused_before_the_first_round():
    with pytest.raises(BadValue, match="at most the 6 clients"):
        run(fc(groups=7), WORLD.federation, rounds=1)
