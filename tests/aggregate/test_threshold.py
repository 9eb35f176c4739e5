"""Threshold-Clustering against its algebra: contraction, averages of balls, separation, outliers and attackers."""

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.aggregate import Fixed, Gap, Quantile, SqrtSigmaDelta, threshold_clustering
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


def history(points, start, radius, rounds):
    """The center after every round."""

    def step(center, _):
        after = threshold_clustering(points, center[None], radius=radius, max_iter=1).centers[0]
        return after, after

    return jax.lax.scan(step, start, None, length=rounds)[1]


@pytest.fixture(scope="module")
def noise():
    """Noise of total variance 1 for 2000 worlds of 64 points."""
    return jax.random.normal(jax.random.key(0), (2000, 64, DIM)) / math.sqrt(DIM)


def squared_errors(noise, *, size, radius, rounds, delta=20.0, added=None):
    """The mean squared error of the first client's center after every round, and of its true cluster's mean."""
    means = delta / math.sqrt(2.0) * jnp.eye(4, DIM)
    worlds = noise.reshape(-1, 4 * size, DIM) + jnp.repeat(means, size, axis=0)

    def one(points):
        everyone = points if added is None else jnp.concatenate([points, added(means[0])])
        return jnp.square(history(everyone, points[0], radius, rounds) - means[0]).sum(1)

    oracle = jnp.square(worlds[:, :size].mean(1) - means[0]).sum(1)
    return np.asarray(jax.jit(jax.vmap(one))(worlds).mean(0)), float(oracle.mean())


@pytest.fixture(scope="module")
def points():
    return clusters(jax.random.key(7), 6)[0]


# The iteration


def test_a_center_contracts_towards_the_mean_of_its_ball(points):
    """v_M - m_S = (1 - p)^M (v_0 - m_S) with p = 6/24, as long as the ball holds the same points."""
    own = points[:6].mean(0)

    found = history(points, points[0], TAU, 12)

    left = 0.75 ** jnp.arange(1, 13)[:, None]
    np.testing.assert_allclose(found - own, left * (points[0] - own), atol=3e-6)


def test_the_error_after_some_rounds_is_that_of_the_contraction_law(noise):
    """sigma^2 (w^2 + 2 w (1 - w) / n + (1 - w)^2 / n), w = (1 - p)^M, p = 1/4, n = 16; and the reference table."""
    rounds = np.array([1, 2, 3, 5, 10, 20])
    w = 0.75**rounds

    found = squared_errors(noise, size=16, radius=TAU, rounds=20)[0][rounds - 1]

    np.testing.assert_allclose(found, w**2 + 2 * w * (1 - w) / 16 + (1 - w) ** 2 / 16, rtol=0.02)
    np.testing.assert_allclose(found, [0.595, 0.362, 0.2305, 0.1155, 0.0657, 0.0630], rtol=0.02)


@pytest.mark.parametrize(("size", "table"), [(2, 0.5009), (32, 0.0314)])
def test_the_error_falls_as_one_over_the_size_of_the_cluster(noise, size, table):
    found, oracle = squared_errors(noise, size=size, radius=TAU, rounds=50)

    np.testing.assert_allclose(found[-1], oracle, rtol=1e-4)
    np.testing.assert_allclose(size * found[-1], 1.0, rtol=0.04)
    np.testing.assert_allclose(found[-1], table, rtol=0.04)


@pytest.mark.parametrize(
    ("delta", "radius", "table"),
    [
        (0.5, SqrtSigmaDelta(sigma=1.0, delta=0.5), 1.009),  # nobody is near enough: the own point
        (2.0, Fixed(tau=1.0), 0.907),
        (1.0, Quantile(q=0.25), 0.225),  # strangers are averaged
        (10.0, Gap(factor=2.0), 0.0630),
    ],
)
def test_what_separation_does_to_each_radius(noise, delta, radius, table):
    found, _ = squared_errors(noise, size=16, radius=radius, rounds=40, delta=delta)

    np.testing.assert_allclose(found[-1], table, rtol=0.05)


@pytest.mark.parametrize(("delta", "table"), [(10.0, 0.0802), (20.0, 0.0373)])
def test_a_heavy_tail_leaves_a_floor_that_halves_when_the_gap_doubles(delta, table):
    """Noise a with probability rho, else -rho a / (1 - rho); a = 1.2 tau lies outside, the rest is biased."""
    tau = math.sqrt(delta)
    a = 1.2 * tau
    rho = 1.0 / a**2
    own = jnp.where(jnp.arange(400) < round(400 * rho), a, -rho * a / (1 - rho))
    points = jnp.stack([jnp.repeat(jnp.array([0.0, delta]), 400), jnp.tile(own, 2)], axis=1)

    center = threshold_clustering(points, points[399:400], radius=tau).centers[0]

    np.testing.assert_allclose(jnp.square(center).sum(), (rho * a / (1 - rho)) ** 2, rtol=1e-3)
    np.testing.assert_allclose(jnp.square(center).sum(), table, rtol=0.02)


def test_the_number_of_rounds_on_ten_blobs():
    """Root mean square distance to the true members, cluster deviation 0.5: ideally 0.5 sqrt(10 * 8/9) = 1.49."""
    means = jax.random.uniform(jax.random.key(1), (40, 10, 10), minval=-10.0, maxval=10.0)
    worlds = jnp.repeat(means, 9, axis=1) + 0.5 * jax.random.normal(jax.random.key(2), (40, 90, 10))

    def one(points):
        centers = history(points, points[0], Quantile(q=0.1), 50)[jnp.array([0, 9, 19, 49])]
        return jnp.square(points[:9] - centers[:, None]).sum(2).mean(1)

    found = jnp.sqrt(jax.jit(jax.vmap(one))(worlds).mean(0))

    np.testing.assert_allclose(found, [1.97, 1.56, 1.49, 1.48], rtol=0.04)


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
    found = clustered(jnp.concatenate([points, points[:2] + 1e6]), radius=Gap(factor=2.5))

    assert found.kept[:24, :24].tolist() == np.kron(np.eye(4, dtype=bool), np.ones((6, 6), bool)).tolist()
    assert not found.kept[:24, 24:].any()


# Two paths, symmetries, trees


@pytest.mark.parametrize("rule", [TAU, Quantile(q=0.25)], ids=lambda rule: type(rule).__name__)
def test_the_gram_path_is_the_direct_path(points, rule):
    direct, gram = (clustered(points, radius=rule, path=path) for path in ("direct", "gram"))

    np.testing.assert_allclose(gram.centers, direct.centers, rtol=1e-6, atol=1e-6 * float(jnp.abs(points).max()))
    np.testing.assert_allclose(gram.weights, direct.weights, atol=1e-6)
    assert jnp.array_equal(gram.kept, direct.kept)
    assert jnp.array_equal(gram.iterations, direct.iterations)


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


@pytest.mark.parametrize(("number", "table"), [(2, 0.2501), (16, 4.067)])
def test_attackers_at_the_edge_of_the_ball_shift_it_by_their_share(noise, number, table):
    """b / (n + b) rho: error (b rho / (n + b))^2 + sigma^2 n / (n + b)^2 with n = 16, rho = 0.9 tau."""
    rho = 0.9 * math.sqrt(20.0)

    def at_the_edge(mean):
        return jnp.tile(mean + rho * jnp.eye(DIM)[-1], (number, 1))

    found, _ = squared_errors(noise, size=16, radius=TAU, rounds=50, added=at_the_edge)

    expected = (number / (16 + number)) ** 2 * rho**2 + 16 / (16 + number) ** 2
    np.testing.assert_allclose(found[-1], expected, rtol=0.02)
    np.testing.assert_allclose(found[-1], table, rtol=0.02)


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
