"""Threshold-Clustering against its algebra and the reference tables: contraction, separation, tails, edges, blobs."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.aggregate import Fixed, Gap, Quantile, threshold_clustering

DIM = 20
WORLDS = 2000
UNIT = Fixed(tau=1.0)


@cache
def histories(radius, rounds):
    """Compiled: a stack of worlds and their points' weights to the center of point 0 after every round."""

    def one(points, weights):
        def step(center, _):
            after = threshold_clustering(points, center[None], radius=radius, weights=weights, max_iter=1).centers[
                0
            ]
            return after, after

        return jax.lax.scan(step, points[0], None, length=rounds)[1]

    return jax.jit(jax.vmap(one))


NOISE = np.random.default_rng(0).normal(size=(WORLDS, 64, DIM)) / math.sqrt(DIM)


def squared_errors(*, delta=20.0, tau=None, rule=UNIT, size=16, edge=0):
    """(worlds, rounds) errors of the first client's center, and (worlds,) those of its true cluster's mean.

    Four clusters of 16 points with noise of total variance 1, of which ``size`` count, and ``edge`` attackers at 0.9
    tau. The world is shrunk by tau, so that one compiled ball of radius 1 does for all.
    """
    tau = math.sqrt(delta) if tau is None else tau
    means = delta / math.sqrt(2.0) * np.eye(4, DIM)
    honest = np.repeat(means, 16, axis=0) + NOISE
    attackers = np.broadcast_to(means[0] + 0.9 * tau * np.eye(DIM)[-1], (WORLDS, 16, DIM))
    heard = np.concatenate([np.arange(64) % 16 < size, np.arange(16) < edge]).astype(np.float32)

    found = histories(rule, 50)(
        np.concatenate([honest, attackers], axis=1) / tau, np.broadcast_to(heard, (WORLDS, 80))
    )

    oracle = np.square(honest[:, :size].mean(1) - means[0]).sum(1)
    return np.square(np.asarray(found) * tau - means[0]).sum(2), oracle


def assert_near_table(errors, table):
    """Four standard errors: that of these worlds and that of the table, which was sampled itself, 300 times."""
    spread = errors.std(0) * math.sqrt(1 / WORLDS + 1 / 300)

    assert (np.abs(errors.mean(0) - table) <= 4 * spread + 0.0005).all(), (errors.mean(0), table, spread)


def test_a_center_contracts_towards_the_mean_of_its_ball():
    """v_M - m_S = (1 - p)^M (v_0 - m_S) with p = 6/24, as long as the ball holds the same points."""
    points = (5.0 * np.repeat(np.eye(4, DIM), 6, axis=0) + 0.2 * NOISE[0, :24]).astype(np.float32)
    own = points[:6].mean(0)

    found = histories(UNIT, 12)(points[None], np.ones((1, 24)))[0]

    left = 0.75 ** jnp.arange(1, 13)[:, None]
    np.testing.assert_allclose(found - own, left * (points[0] - own), atol=3e-6)


def test_the_error_after_some_rounds_is_that_of_the_contraction_law():
    """sigma^2 (w^2 + 2 w (1 - w) / n + (1 - w)^2 / n), w = (1 - p)^M, p = 1/4, n = 16; and the reference table.

    One squared error of 20 Gaussian coordinates has the relative deviation sqrt(2/20), so 4 deviations of the mean of
    2000 are 3 %.
    """
    rounds = np.array([1, 2, 3, 5, 10, 20])
    w = 0.75**rounds

    found = squared_errors()[0][:, rounds - 1]

    np.testing.assert_allclose(found.mean(0), w**2 + 2 * w * (1 - w) / 16 + (1 - w) ** 2 / 16, rtol=0.03)
    assert_near_table(found, [0.595, 0.362, 0.2305, 0.1155, 0.0657, 0.0630])


@pytest.mark.parametrize(("size", "table"), [(2, 0.5009), (4, 0.2450), (8, 0.1265), (16, 0.0630)])
def test_the_error_falls_as_one_over_the_size_of_the_cluster(size, table):
    """Equal to the mean of the true cluster; 4 deviations of n times the mean of 2000 errors are 3 %."""
    found, oracle = squared_errors(size=size)

    np.testing.assert_allclose(found[:, -1], oracle, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(size * found[:, -1].mean(), 1.0, rtol=0.03)
    assert_near_table(found[:, -1], table)


@pytest.mark.parametrize(
    ("rule", "row"),
    [
        (UNIT, {0.5: 1.009, 1.0: 0.897, 2.0: 0.0835, 3.0: 0.0630, 4.0: 0.0630}),  # tau = sqrt(sigma Delta)
        ("half", {2.0: 0.907, 3.0: 0.0827, 4.0: 0.0630}),  # tau = Delta / 2
        (Quantile(q=0.25), {0.5: 0.1665, 1.0: 0.225, 2.0: 0.0630, 4.0: 0.0630}),
        (Gap(), {10.0: 0.0630}),
    ],
    ids=["sqrt", "half", "quantile", "gap"],
)
@pytest.mark.slow
def test_what_separation_does_to_each_radius(rule, row):
    """With too small a ball the answer is the own point, error 1; a quantile without separation averages strangers."""
    for delta, table in row.items():
        if rule == "half":
            found, oracle = squared_errors(delta=delta, tau=delta / 2)
        else:
            found, oracle = squared_errors(delta=delta, rule=rule)

        assert_near_table(found[:, 39], table)
        if delta >= 4.0 and rule != "half":
            np.testing.assert_allclose(found[:, 39].mean(), oracle.mean(), rtol=0.01)


def test_a_heavy_tail_leaves_a_floor_that_halves_when_the_gap_doubles():
    """Noise a with probability rho, else -rho a / (1 - rho); a = 1.2 tau lies outside, the rest is biased."""
    delta = np.array([10.0, 20.0, 40.0, 80.0, 160.0])
    tau = np.sqrt(delta)
    a = 1.2 * tau
    rho = 1.0 / a**2
    own = np.where(np.arange(400) < np.rint(400 * rho)[:, None], a[:, None], (-rho * a / (1 - rho))[:, None])
    across = np.repeat(np.stack([0 * delta, delta], axis=1), 400, axis=1)
    worlds = np.stack([across, np.tile(own, 2)], axis=2)[:, ::-1] / tau[:, None, None]  # a biased point comes first

    found = np.square(np.asarray(histories(UNIT, 50)(worlds, np.ones((5, 800)))[:, -1]) * tau[:, None])

    np.testing.assert_allclose(found[:, 1], (rho * a / (1 - rho)) ** 2, rtol=1e-3)
    np.testing.assert_allclose(found[:, 1], [0.0802, 0.0373, 0.0180, 0.0088, 0.0044], rtol=0.02)


def test_the_number_of_rounds_on_ten_blobs():
    """Root mean square distance to the true members; ideally std sqrt(10 * 8/9). Ours is another draw of 40 worlds.

    The first column is sampled worst: one start in each of 40 worlds, 4 deviations are about 6 %.
    """
    spread = np.array([0.5, 1.0, 2.0, 4.0], np.float32)
    rng = np.random.default_rng(0)
    means = rng.uniform(-10.0, 10.0, (40, 10, 10)).astype(np.float32)
    noise = rng.normal(size=(40, 90, 10)).astype(np.float32)
    worlds = (np.repeat(means, 9, axis=1) + spread[:, None, None, None] * noise).reshape(160, 90, 10)

    centers = np.asarray(histories(Quantile(q=0.1), 50)(worlds, np.ones((160, 90))))[:, [0, 9, 19, 49]]

    squares = np.square(worlds[:, None, :9] - centers[:, :, None]).sum(3).mean(2)
    found = np.sqrt(squares.reshape(4, 40, 4).mean(1))
    table = [[1.97, 1.56, 1.49, 1.48], [3.94, 3.12, 2.98, 2.95], [7.88, 6.26, 5.96, 5.91], [15.9, 13.3, 12.7, 12.6]]
    np.testing.assert_allclose(found, table, rtol=0.06)


@pytest.mark.parametrize(("number", "table"), [(2, 0.2501), (4, 0.6889), (8, 1.829), (16, 4.067)])
def test_attackers_at_the_edge_of_the_ball_shift_it_by_their_share(number, table):
    """b / (n + b) rho: error (b rho / (n + b))^2 + sigma^2 n / (n + b)^2 with n = 16, rho = 0.9 tau."""
    found = squared_errors(edge=number)[0][:, -1]

    expected = (number / (16 + number)) ** 2 * 0.81 * 20.0 + 16 / (16 + number) ** 2
    assert abs(found.mean() - expected) <= 4 * found.std() / math.sqrt(WORLDS)
    assert_near_table(found, table)
