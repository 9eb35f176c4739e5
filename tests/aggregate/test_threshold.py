"""Threshold-Clustering: who is kept, what stops it, two paths that are one, and attackers without influence."""

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.aggregate import Fixed, Gap, Quantile, threshold_clustering
from plures.aggregate.points import squared_distances

DIM = 20
TAU = Fixed(tau=math.sqrt(20.0))  # sqrt(sigma Delta) for sigma = 1 and Delta = 20


def clusters(key, size, *, number=4, delta=20.0, dim=DIM):
    """(points, means): ``number`` clusters delta apart, ``size`` points each with noise of total variance 1."""
    means = delta / math.sqrt(2.0) * jnp.eye(number, dim)
    noise = jax.random.normal(key, (number * size, dim)) / math.sqrt(dim)
    return jnp.repeat(means, size, axis=0) + noise, means


@cache
def compiled(**options):
    return jax.jit(partial(threshold_clustering, **options))


def clustered(points, centers=None, *, weights=None, **options):
    """``threshold_clustering``, compiled once for every set of options and shapes."""
    return compiled(**options)(points, centers, weights=weights)


@pytest.fixture(scope="module")
def points():
    return clusters(jax.random.key(7), 6)[0]


# The iteration


def test_a_ball_without_neighbors_falls_back_to_the_own_point(points):
    found = clustered(30.0 * points, radius=TAU, path="gram")

    np.testing.assert_allclose(found.centers, 30.0 * points, rtol=1e-6)
    assert found.kept.tolist() == np.eye(24, dtype=bool).tolist()


def test_rounds_end_when_weights_stand_still_and_the_result_says_so(points):
    found = clustered(points, radius=TAU, path="gram")

    # The weights move by 2 p (1 - p)^(l - 1) (1 - 1/n) in round l.
    last = math.ceil(math.log(1e-6 / (2 * 0.25 * 5 / 6)) / math.log(0.75)) + 1
    assert found.converged.all()
    assert jnp.abs(found.iterations - last).max() <= 1  # rounding of the last digit


def test_centers_are_their_weights_times_points_and_what_is_left_of_their_starts(points):
    starts = points[:3] + 0.1

    found = clustered(points, starts, radius=TAU, max_iter=3, path="direct")

    assert found.iterations.tolist() == [3] * 3
    assert not found.converged.any()
    np.testing.assert_allclose(found.rest, 0.75**3, rtol=1e-6)
    np.testing.assert_allclose(found.weights.sum(1) + found.rest, 1.0, atol=1e-6)
    np.testing.assert_allclose(found.weights @ points + found.rest[:, None] * starts, found.centers, atol=1e-5)


# Who is kept


def test_an_infinite_radius_gives_the_mean_in_one_round(points):
    found = clustered(points, points[:1], radius=float("inf"), max_iter=1)

    np.testing.assert_allclose(found.centers[0], points.mean(0), atol=1e-5)


def test_weights_say_how_much_each_point_counts(points):
    weights = jnp.arange(1.0, 25.0)

    found = clustered(points, points[:1], radius=TAU, weights=weights, max_iter=400)

    np.testing.assert_allclose(found.centers[0], (weights[:6, None] * points[:6]).sum(0) / 21.0, atol=1e-5)


@pytest.mark.parametrize("path", ["direct", "gram"])
def test_a_point_of_weight_0_does_not_count_whatever_it_holds(points, path):
    """The quarter of 24 points that is kept is the own cluster; with the silent two counted it would not be."""
    weights = jnp.append(jnp.ones(24), jnp.zeros(4))

    def found(content):
        silent = jnp.concatenate([points, jnp.broadcast_to(content, (4, DIM))])
        return clustered(silent, radius=Quantile(q=0.25), weights=weights, path=path)

    empty, copied = found(jnp.nan), found(points[0])

    np.testing.assert_allclose(empty.centers[:6], jnp.tile(points[:6].mean(0), (6, 1)), atol=2e-5)
    assert jnp.array_equal(empty.centers, copied.centers)
    assert not copied.kept[:, 24:].any()
    assert not copied.weights[:, 24:].any()


@pytest.mark.parametrize("content", [jnp.nan, -jnp.inf, 1e25])
@pytest.mark.parametrize("path", ["direct", "gram"])
def test_a_point_that_is_not_finite_lies_outside_and_poisons_nothing(points, content, path):
    """It counts in N: all that changes is p = 6/25, as for any point outside the ball."""
    broken = jnp.concatenate([points, points[:1].at[0, 3].set(content)])
    outside = jnp.concatenate([points, points[:1] + 1e5])

    found, plain = (clustered(one, radius=TAU, max_iter=5, path=path) for one in (broken, outside))

    assert jnp.isfinite(found.centers).all()
    assert not found.kept[:, 24].any()
    assert jnp.array_equal(found.centers[:24], plain.centers[:24])


def test_a_start_that_is_not_finite_is_replaced_by_the_mean(points):
    """The mean of four clusters has nobody near, so it stays there."""
    starts = points[:3].at[0, 5].set(jnp.nan)

    found = clustered(points, starts, radius=TAU, path="gram")

    np.testing.assert_allclose(found.centers[0], points.mean(0), atol=1e-5)
    np.testing.assert_allclose(found.centers[1], points[:6].mean(0), atol=1e-4)
    assert not found.kept[0].any()


def test_without_a_point_that_counts_a_center_stays(points):
    found = clustered(points * jnp.nan, points[:3], radius=TAU, path="gram")
    nowhere = clustered(points * jnp.nan, radius=TAU, path="gram")

    assert jnp.array_equal(found.centers, points[:3])
    assert not nowhere.centers.any()


def test_one_point_alone_is_its_own_center():
    found = clustered(jnp.array([[3.0, 4.0]]), path="gram")

    np.testing.assert_allclose(found.centers, [[3.0, 4.0]])
    assert found.weights.tolist() == [[1.0]]


def test_a_quantile_of_less_than_one_point_is_local(points):
    found = clustered(points, points[:1], radius=Quantile(q=0.04))

    assert jnp.array_equal(found.centers, points[:1])
    assert not found.kept.any()


def test_the_gap_rule_finds_clusters_beside_far_outliers(points):
    found = clustered(jnp.concatenate([points, points[:2] + 1e6]), radius=Gap())

    assert found.kept[:24, :24].tolist() == np.kron(np.eye(4, dtype=bool), np.ones((6, 6), bool)).tolist()
    assert not found.kept[:24, 24:].any()


# Two paths, symmetries, trees


def stretched(points):
    """The same clusters 5,000 times as far apart, around a point far from the origin."""
    return points + 5e3 * jnp.repeat(points.reshape(4, 6, DIM).mean(1), 6, axis=0) + 1e3


@pytest.mark.parametrize("rule", [TAU, Quantile(q=0.25)], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize(
    "change",
    [lambda points: points, stretched, lambda points: points.at[jnp.array([1, 7, 20])].set(points[0])],
    ids=["plain", "stretched", "duplicates"],
)
def test_the_gram_path_is_the_direct_path(points, rule, change):
    points = change(points)

    direct, gram = (clustered(points, radius=rule, path=path) for path in ("direct", "gram"))

    digits = 1e-6 * float(jnp.abs(points).max())
    np.testing.assert_allclose(gram.centers, direct.centers, rtol=1e-6, atol=digits)
    np.testing.assert_allclose(gram.radius, direct.radius, atol=2 * digits)
    np.testing.assert_allclose(gram.weights, direct.weights, atol=1e-6)
    assert jnp.array_equal(gram.kept, direct.kept)


def test_points_in_one_place_have_one_center(points):
    """Ties: where all are equally far the first are kept, and the center is where they are."""
    found = clustered(jnp.tile(points[:1], (24, 1)), radius=Quantile(q=0.25), path="gram")

    np.testing.assert_allclose(found.centers, jnp.tile(points[:1], (24, 1)), rtol=1e-6)
    assert (found.kept.sum(1) == 6).all()


def test_squared_distances_keep_their_digits_for_tight_clusters_far_apart():
    """Noise 1 beside gaps of 1e4 and outliers at 1e7: about one origin, float32 would not tell neighbors apart."""
    points, _ = clusters(jax.random.key(4), 5, number=12, delta=1e4)
    points = jnp.concatenate([points, points[::7], points[:2] + 1e7])
    exact = np.asarray(points, np.float64)

    found = jax.jit(squared_distances)(points, jnp.ones(len(points), bool))

    np.testing.assert_allclose(found, np.square(exact[:, None] - exact).sum(2), rtol=3e-5)


def test_a_permutation_of_points_permutes_the_result(points):
    order = jax.random.permutation(jax.random.key(3), 24)

    found, other = (clustered(one, radius=Quantile(q=0.25), path="gram") for one in (points, points[order]))

    np.testing.assert_allclose(other.centers, found.centers[order], atol=1e-5)
    assert jnp.array_equal(other.kept, found.kept[order][:, order])


@pytest.mark.parametrize("path", ["direct", "gram"])
def test_moving_and_scaling_all_points_moves_and_scales_the_centers(points, path):
    found, other = (clustered(one, radius=Quantile(q=0.25), path=path) for one in (points, 100.0 * points + 7.0))

    np.testing.assert_allclose(other.centers, 100.0 * found.centers + 7.0, rtol=1e-5, atol=1e-2)
    np.testing.assert_allclose(other.weights, found.weights, atol=1e-6)


def test_a_tree_is_its_leaves_laid_side_by_side(points):
    parts = {"a": points[:, :3], "b": points[:, 3:].reshape(24, 1, 17)}

    flat, tree = (clustered(one, radius=Quantile(q=0.25), path="gram") for one in (points, parts))

    np.testing.assert_allclose(tree.centers["b"].reshape(24, 17), flat.centers[:, 3:], atol=1e-5)
    assert jnp.array_equal(tree.kept, flat.kept)


def test_equal_starts_get_equal_centers(points):
    found = clustered(points, points[jnp.array([2, 9, 2])], radius=TAU, path="gram")

    assert jnp.array_equal(found.centers[0], found.centers[2])


# Attackers


def test_attackers_outside_the_ball_have_no_influence(points):
    """Two attacks that stay outside give the same bits; against none only the speed changes."""
    far = jnp.concatenate([points, jnp.full((6, DIM), 1e6)])
    negated = jnp.concatenate([points, -points[:6]])

    one, other = (clustered(everyone, radius=TAU, path="gram") for everyone in (far, negated))
    alone = clustered(points, radius=TAU, path="gram")

    assert jnp.array_equal(one.centers[:24], other.centers[:24])
    np.testing.assert_allclose(one.centers[:24], alone.centers, atol=1e-4)


# Drivers in one line: every client its own center


def test_gradients_at_own_models_lead_astray_and_gradients_at_one_model_do_not():
    """Five clients at 0 and five at 20, start 10, the first displaced by 1; tau 5, step 0.1, 400 steps."""
    goals = jnp.repeat(jnp.array([0.0, 20.0]), 5)
    start = jnp.full(10, 10.0).at[0].add(1.0)

    def myopic(models):
        moves = threshold_clustering((models - goals)[:, None], radius=5.0, path="direct").centers[:, 0]
        return models - 0.1 * moves

    def shared(models):
        def one(own, model):
            points = (model - goals)[:, None]
            return threshold_clustering(points, points[own][None], radius=5.0).centers[0, 0]

        return models - 0.1 * jax.vmap(one)(jnp.arange(10), models)

    ends = [
        jax.jit(lambda first, move=move: jax.lax.fori_loop(0, 400, lambda _, now: move(now), first))(start)
        for move in (myopic, shared)
    ]

    np.testing.assert_allclose(ends[0], [2.681] + [2.4435] * 4 + [17.509] * 5, atol=2e-3)
    np.testing.assert_allclose(ends[1], goals, atol=1e-3)
