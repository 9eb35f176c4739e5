"""Federated-Clustering: turns, equal models, groups, momentum, rounds in between, liars, newcomers, warnings."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run, tree
from plures.data.worlds import linear_clusters, mean_estimation
from plures.errors import BadValue, MethodWarning, UnknownChoice
from plures.methods._rounds import distinct, divided, group_of, united
from plures.methods._views import (
    Slopes,
    clusters_of,
    doubts,
    first_alike,
    no_longer,
    noise_at,
    seen_as,
    surroundings,
)
from plures.methods.federated_clustering import federated_clustering
from plures.models.mlp import mlp
from plures.types import Attack, Data, Plan, Rows, Weights

WORLD = mean_estimation(num_clients=6, dim=2, rows=8, radius=1.0, sigma=0.1)
MEANS = np.stack([WORLD.federation.rows_of(name, "train")[1].mean(0) for name in WORLD.federation.names])
STEP = Plan(steps=1, batch=None, lr=0.5)
EVERYBODY = "fixed"
MODEL_BYTES = 2 * 4


def fc(**options):
    return federated_clustering(WORLD.model, **{"plan": STEP, "radius": EVERYBODY, **options})


def alone(**options):
    """Everybody for itself, which the method would warn of."""
    return replace(fc(radius="k_nearest:k=1", **options), forecast=None)


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
    """One model in the first round, six in the second: in blocks of two that is 1 + 3 turns."""
    result = run(alone(block=2), WORLD.federation, rounds=2)

    turns = 1 + 3
    assert result.state.turns.tolist() == [turns] * 6
    assert result.clients["bytes_up"].to_list() == [turns * 2 * (MODEL_BYTES + 4)] * 6
    offered = 7 * MODEL_BYTES + 6 * 4 + 4 * 3 + 1  # own and six others, their clusters, and what is known of it
    assert result.clients["bytes_down"].to_list() == [turns * 2 * MODEL_BYTES + offered] * 6


@pytest.mark.slow
def test_blocks_make_no_difference():
    one, all_at_once = (
        points(run(fc(radius="k_nearest:k=3", block=block), WORLD.federation, rounds=3)) for block in (1, 6)
    )

    np.testing.assert_allclose(one, all_at_once, atol=1e-6)


def test_every_client_is_in_one_group_and_groups_are_of_even_size():
    server = fc(groups=4).start(jax.random.key(0), 6)

    members = np.asarray(server.members)
    assert sorted(members[members < 6].tolist()) == list(range(6))
    assert sorted((members < 6).sum(1).tolist()) == [1, 1, 2, 2]
    assert distinct(server).tolist() == [1] * 4  # all models are the same at first
    np.testing.assert_array_equal(np.asarray(group_of(server))[members[members < 6]], np.nonzero(members < 6)[0])
    again = divided(server)
    assert not np.array_equal(again.members, members)


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


def test_rounds_in_between_send_one_slope_and_use_the_weights_of_the_last_comparison():
    result = run(fc(every=2, block=1), WORLD.federation, rounds=2)

    # A ball for all: weights are 1/6 each. In the second round slopes are taken at equal models: as always.
    np.testing.assert_allclose(points(result), np.tile(0.75 * MEANS.mean(0), (6, 1)), atol=1e-5)
    assert result.state.turns.tolist() == [2] * 6


@pytest.mark.slow
def test_in_between_the_weights_of_who_is_absent_go_to_the_others():
    result = run(fc(every=2, block=1), WORLD.federation, rounds=1, cohort=4)
    server, first = result.state.server, np.asarray(result.state.visits) > 0
    later = np.array([0, 1, 2, 3])
    slopes = Weights({"point": jnp.asarray((points(result) - MEANS)[later][:, None])})

    after = fc(every=2, block=1).merge(
        server, Slopes(slopes, jnp.zeros((4, 1), jnp.int32)), jnp.ones(4), jnp.asarray(later)
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

    assert bool(offer(server, jnp.asarray(1)).known)
    assert not bool(offer(server, jnp.asarray(2)).known)
    assert int(offer(server, jnp.asarray(2)).labels[0]) == 3  # the largest cluster comes first


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
    assert result.state.turns.tolist() == [1 + 9 + 3] * 9
    group = np.argsort(np.argsort(clusters.federation.uid))
    assert len(set(np.asarray(server.label).tolist())) == 3
    assert all(len({int(server.label[i]) for i in group[clusters.federation.group == g]}) == 1 for g in range(3))


def test_uniting_takes_the_median_of_a_cluster_so_that_one_model_astray_does_not_count():
    server = fc().start(jax.random.key(0), 6)
    astray = jnp.arange(12.0).reshape(6, 2).at[2].set(1e6)
    server = server._replace(models=Weights({"point": astray}), label=jnp.zeros(6, int), steps=jnp.ones(6, int))

    after = np.asarray(united(server).models.params["point"])

    np.testing.assert_array_equal(after, np.tile([7.0, 8.0], (6, 1)))  # of 0, 2, 6, 8, 10 and 1e6


def test_directions_alone_do_not_let_a_huge_slope_in():
    points = {"a": jnp.array([[3.0, 4.0], [6.0, 8.0], [3e6, 4e6], [0.0, 1.0]])}

    found = no_longer(points, jnp.array([1.0, 1.0, 1.0, 0.0]))

    np.testing.assert_allclose(np.linalg.norm(found["a"], axis=1), [5.0, 10.0, 10.0, 1.0], rtol=1e-6)


def test_uniting_leaves_out_who_never_moved():
    server = fc().start(jax.random.key(0), 6)
    models = Weights({"point": jnp.arange(12.0).reshape(6, 2)})
    label = jnp.array([0, 0, 2, 2, 2, 5])
    server = server._replace(models=models, label=label, steps=jnp.array([1, 1, 0, 1, 1, 1]))

    after = np.asarray(united(server).models.params["point"])

    # Client 2 has made no step: it stays, and the rest of its cluster are clients 3 and 4.
    np.testing.assert_array_equal(after, [[1, 2], [1, 2], [4, 5], [7, 8], [7, 8], [10, 11]])


def lying(value):
    """An attack outside every ball: clients 1 and 4 send ``value`` to everybody."""

    def forge(key, uploads, weights, uids, receivers):
        bad = (uids == 1) | (uids == 4)
        return jax.tree.map(lambda leaf: jnp.where(tree.along(bad, leaf), value, leaf), uploads)

    return Attack(name="lying", share=1 / 3, members=lambda uids: (uids == 1) | (uids == 4), forge=forge)


@pytest.mark.slow
def test_attacks_outside_the_ball_leave_the_same_bits():
    honest = [0, 2, 3, 5]
    found = [
        points(run(fc(radius=3.0), WORLD.federation, rounds=3, channels=(lying(value),)))[honest]
        for value in (1e6, float("nan"))
    ]

    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    assert np.isfinite(found[0]).all()


@pytest.mark.slow
def test_a_liar_may_tell_every_receiver_another_thing():
    """Client 0 says to each receiver r that its slope is (r, r): the ball holds exactly these two."""

    def forge(key, uploads, weights, uids, receivers):
        return jax.tree.map(
            lambda leaf: (
                jnp.where(tree.along(uids == 0, leaf), tree.along(receivers, leaf), leaf)
                if leaf.ndim == 2
                else leaf
            ),
            uploads,
        )

    liar = Attack(name="liar", share=1 / 6, members=lambda uids: uids == 0, forge=forge)
    method = fc(radius=EVERYBODY, block=2)
    apart = run(alone(), WORLD.federation, rounds=1)  # models that differ
    method = replace(method, start=lambda key, number: divided(apart.state.server._replace(
        turn=jnp.zeros((), jnp.int32), round=jnp.zeros((), jnp.int32)
    )))  # fmt: skip

    result = run(method, WORLD.federation, rounds=1, channels=(liar,))

    at = 0.5 * MEANS  # where the models are
    slopes = at[:, None] - MEANS[None]  # (model, client)
    slopes[:, 0] = np.arange(6)[:, None]
    np.testing.assert_allclose(points(result), at - 0.5 * slopes.mean(1), atol=1e-4)


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
    """The median of the kept slopes; with the ball of everybody it is the median of all."""
    result = run(fc(aggregate="median"), WORLD.federation, rounds=1)

    np.testing.assert_allclose(points(result), np.tile(0.5 * np.median(MEANS, axis=0), (6, 1)), atol=1e-5)


def test_clients_who_keep_mostly_the_same_are_a_cluster():
    kept = jnp.array(
        [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], bool
    )  # the last two share one of two: not more than half

    assert clusters_of(kept).tolist() == [0, 0, 0, 3, 4]


def test_equal_models_are_found_by_their_bits_and_only_inside_a_group():
    values = jnp.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])

    assert first_alike(Weights(values), jnp.array([0, 0, 0, 1])).tolist() == [0, 0, 2, 3]
    assert first_alike(Weights(values), jnp.zeros(4, jnp.int32)).tolist() == [0, 0, 2, 0]


def test_the_noise_of_a_slope_is_that_of_its_minibatch():
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

    (said,) = doubts(ones, 2.0 * ones, 0.25 * ones)
    assert "Delta/sigma is about 1.4, below 3" in said
    assert "A 0.5" in said
    assert doubts(ones, 9.1 * ones, ones) == []
    assert doubts(0 * ones, ones, ones) == []  # without noise there is nothing to compare with
    assert doubts(jnp.array([0.0, 0.0, 0.0, 1e6]), ones, ones) == []  # and one liar does not make any
    assert doubts(ones, 0 * ones, ones) == []


def test_neither_a_liar_far_away_nor_one_without_numbers_hides_where_a_cluster_ends():
    points = jnp.array([[0.0], [1.0], [-1.0], [10.0], [11.0], [1e6], [jnp.nan]])
    kept = jnp.array([[1, 1, 1, 0, 0, 0, 0]], bool)

    found = surroundings(points, jnp.ones(7), kept / 3.0, kept)

    np.testing.assert_allclose(found.gap, [100.0], rtol=1e-4)


@pytest.mark.slow
def test_a_run_without_clusters_warns():
    world = mean_estimation(num_clients=6, dim=3, rows=30, radius=0.0, sigma=1.0)
    method = federated_clustering(world.model, plan=Plan(steps=1, batch=4, lr=0.1), radius="k_nearest:k=3")

    with pytest.warns(MethodWarning, match="clusters can hardly be told apart"):
        run(method, world.federation, rounds=3)


def test_the_cost_is_told_before_a_run():
    model = mlp((28, 28), 10, hidden=(200,))

    said = federated_clustering(model).forecast(250, ()).cost

    assert "39.8 GB if all slopes were kept at once" in said
    assert "62,500 slopes per round" in said
    assert "6,250 slopes" in federated_clustering(model, groups=10).forecast(250, ()).cost


@pytest.mark.parametrize(
    ("options", "sizes", "match"),
    [
        ({"radius": "quantile:q=0.5"}, (5, 15), "the smallest group has 5: strangers"),
        ({"radius": "quantile:q=0.01"}, (10, 10), "this is local training"),
        ({"radius": "quantile:q=0.5", "groups": 4}, (6, 14), "groups are too small"),
    ],
)
def test_a_radius_that_cannot_work_warns_before_the_run(options, sizes, match):
    warned = fc(**options).forecast(20, sizes).warnings

    assert len(warned) == 1
    assert match in warned[0]


def test_the_warning_is_given_at_the_start_of_a_run():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(fc(radius="quantile:q=0.1"), WORLD.federation, rounds=1)

    assert ["this is local training" in str(one.message) for one in caught] == [True]


def test_a_fair_radius_warns_of_nothing():
    assert fc(radius="quantile:q=0.25").forecast(20, (5, 15)).warnings == ()


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


def test_points_are_seen_by_direction_or_with_layers_of_equal_length():
    points = {"a": jnp.array([[3.0, 4.0], [6.0, 8.0]]), "b": jnp.array([[0.0], [0.0]])}

    cosine = seen_as("cosine", points)
    np.testing.assert_allclose(cosine["a"], [[0.6, 0.8], [0.6, 0.8]], rtol=1e-6)
    layers = seen_as("layers", {**points, "b": jnp.array([[100.0], [300.0]])})
    # The median squared length of each leaf is 1 afterwards: (25 + 100) / 2 and (1e4 + 9e4) / 2 before.
    np.testing.assert_allclose(layers["a"][0], np.array([3.0, 4.0]) / np.sqrt(62.5), rtol=1e-6)
    np.testing.assert_allclose(layers["b"][:, 0], np.array([100.0, 300.0]) / np.sqrt(5e4), rtol=1e-6)
