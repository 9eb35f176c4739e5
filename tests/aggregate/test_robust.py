"""Robust aggregators: what each is by hand, what it forgets, and when it breaks down."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.aggregate import (
    AGGREGATORS,
    build_aggregator,
    mean,
    num_tolerated,
)
from plures.aggregate.robust import bucketing, buckets, krum_scores, median, trimmed_mean
from plures.errors import BadValue, UnknownChoice

KEY = jax.random.key(0)
NAMES = [
    "median",
    "trimmed_mean:share=0.3",
    "krum:num_byzantine=3",
    "multi_krum:num_byzantine=3",
    "geometric_median",
    "centered_clip",
    "bucketing:size=1,inner=median",
]


@cache
def compiled(name):
    rule = build_aggregator(name)
    return jax.jit(lambda uploads, weights, uids: rule(uploads, weights, uids, KEY))


def aggregated(name, uploads, weights=None, uids=None):
    size = jax.tree.leaves(uploads)[0].shape[0]
    weights = jnp.ones(size) if weights is None else weights
    return compiled(name)(uploads, weights, jnp.arange(size) if uids is None else uids)


@pytest.fixture(scope="module")
def points():
    """Ten points of noise 1 around (5, ..., 5)."""
    return 5.0 + jax.random.normal(jax.random.key(1), (10, 6)) / 6**0.5


# By hand


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    assert median(jnp.array([[9.0], [1.0], [2.0], [4.0]]), jnp.ones(4)).tolist() == [3.0]


def test_the_trimmed_mean_cuts_a_share_on_both_sides_of_every_coordinate():
    values = jnp.array([[0.0, 99.0], [1.0, 5.0], [2.0, 3.0], [3.0, 4.0], [99.0, -99.0]])

    assert trimmed_mean(values, jnp.ones(5), share=0.2).tolist() == [2.0, 4.0]
    np.testing.assert_allclose(trimmed_mean(values, jnp.ones(5), share=0.0), values.mean(0), rtol=1e-6)


def test_krum_scores_are_sums_of_the_nearest_squared_distances():
    """Points 0, 1, 3, 7, 100 and f = 1: the two nearest others count."""
    column = jnp.array([0.0, 1.0, 3.0, 7.0, 100.0])
    pairs = jnp.square(column[:, None] - column)

    scores = krum_scores(pairs, jnp.ones(5, bool), 1)

    assert scores.tolist() == [1 + 9, 1 + 4, 4 + 9, 16 + 36, 93**2 + 97**2]
    assert aggregated("krum:num_byzantine=1", column).tolist() == 1.0
    # n - f = 4 are averaged.
    assert aggregated("multi_krum:num_byzantine=1", column).tolist() == (0 + 1 + 3 + 7) / 4


def test_krum_with_fewer_clients_than_it_needs_looks_at_the_nearest_one():
    """Of 0, 1 and 9 the first two are nearest to each other: n - f - 2 is 0."""
    uploads, weights = jnp.array([0.0, 1.0, 9.0, 50.0, 50.0]), jnp.array([1.0, 1.0, 1.0, 0.0, 0.0])

    assert aggregated("krum:num_byzantine=1", uploads, weights).tolist() == 0.5


def test_krum_averages_clients_of_equal_score():
    """Two that are nearest to each other have the same score: neither comes first."""
    assert (
        aggregated(
            "krum:num_byzantine=1", jnp.array([0.0, 1.0, 9.0, 20.0, 40.0])[jnp.array([0, 1, 0, 1, 3])]
        ).tolist()
        == 0.5
    )


def test_the_geometric_median_of_a_triangle_is_its_fermat_point():
    """From the Fermat point all unit vectors to the corners add up to 0."""
    corners = jnp.array([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]])

    found = aggregated("geometric_median", corners)

    towards = corners - found
    np.testing.assert_allclose((towards / jnp.linalg.norm(towards, axis=1, keepdims=True)).sum(0), 0.0, atol=1e-4)


def test_the_geometric_median_leaves_an_upload_that_it_starts_at():
    """The coordinate median is the first upload; the pulls of the others, 1.79 in sum, outweigh its own of 1."""
    corners = jnp.array([[0.0, 0.0], [1.0, 10.0], [-1.0, 10.0], [10.0, -1.0], [-10.0, -1.0]])

    found = aggregated("geometric_median", corners)

    towards = corners - found
    np.testing.assert_allclose((towards / jnp.linalg.norm(towards, axis=1, keepdims=True)).sum(0), 0.0, atol=1e-4)


def test_centered_clipping_pulls_a_far_upload_to_the_radius():
    """One step from the median 0: the upload at 100 moves the mean by radius / n."""
    values = jnp.array([-1.0, 0.0, 0.0, 1.0, 100.0])

    found = aggregated("centered_clip:radius=2,num_steps=1", values)

    np.testing.assert_allclose(found, 2.0 / 5, rtol=1e-6)


def test_centered_clipping_with_a_wide_radius_is_the_mean(points):
    np.testing.assert_allclose(aggregated("centered_clip:radius=1e9", points), points.mean(0), rtol=1e-6)


def test_buckets_hold_every_client_once_and_go_by_uid():
    points, uids = jnp.arange(7.0) ** 2, jnp.arange(7)
    counts = jnp.ones(7, bool).at[3].set(False)

    means, filled = buckets(KEY, points, counts, uids, 4)
    turned, _ = buckets(KEY, points[::-1], counts[::-1], uids[::-1], 4)

    assert filled.tolist() == [4, 2]
    np.testing.assert_allclose((means * filled).sum(), 0 + 1 + 4 + 16 + 25 + 36)
    np.testing.assert_allclose(turned, means)


def test_another_key_makes_other_buckets_and_the_mean_of_equal_buckets_is_the_mean(points):
    def found(seed, inner):
        return bucketing(points, jnp.ones(10), jnp.arange(10), jax.random.key(seed), size=2, inner=inner)

    assert not jnp.allclose(found(0, "median"), found(1, "median"))
    np.testing.assert_allclose(found(0, "mean"), points.mean(0), rtol=1e-5)


# What all have in common


@pytest.mark.parametrize("name", NAMES)
def test_equal_uploads_are_their_own_aggregate(name):
    same = {"a": jnp.full((10, 2), 3.0), "b": jnp.full((10, 1, 2), -1.0)}

    found = aggregated(name, same)

    np.testing.assert_allclose(found["a"], [3.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(found["b"], [[-1.0, -1.0]], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_moving_scaling_and_shuffling_uploads_moves_scales_and_leaves_the_result(name, points):
    order = jax.random.permutation(jax.random.key(5), 10)

    found = aggregated(name, points)

    np.testing.assert_allclose(aggregated(name, points + 3.0), found + 3.0, atol=1e-4)
    np.testing.assert_allclose(aggregated(name, points * 7.0), found * 7.0, atol=1e-3)
    np.testing.assert_allclose(aggregated(name, points[order], uids=order), found, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_clients_of_weight_0_and_broken_uploads_do_not_count(name, points):
    """The result is that of the others alone, whatever the weights of these are."""
    weights = jnp.array([2.0, 1.0, 0.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    broken = points.at[2].set(-50.0).at[7, 3].set(jnp.nan).at[8, 0].set(jnp.inf)
    left = jnp.delete(jnp.arange(10), jnp.array([2, 7, 8]))

    found = aggregated(name, broken, weights)

    if "krum" in name:  # seven clients cannot have three attackers
        alone = krum_by_hand(np.asarray(points[left]), name.startswith("multi"))
    else:
        alone = aggregated(name, points[left], uids=left)
    np.testing.assert_allclose(found, alone, atol=1e-5)


def krum_by_hand(points, many):
    pairs = np.square(points[:, None] - points).sum(2)
    scores = np.sort(pairs, axis=1)[:, 1 : 1 + 2].sum(1)  # n - f - 2 = 7 - 3 - 2
    best = np.argsort(scores)[: 7 - 3 if many else 1]
    return points[best].mean(0)


@pytest.mark.parametrize("name", NAMES)
def test_clusters_under_vmap_are_clusters_alone_however_small(name, points):
    """0, 1, 2, 3 and all 10 of the clients; Krum's three attackers are more than most of these can bear."""
    rule = build_aggregator(name)
    weights = (jnp.arange(10) < jnp.array([0, 1, 2, 3, 10])[:, None]).astype(jnp.float32)

    found = jax.jit(jax.vmap(lambda one: rule(points, one, jnp.arange(10), KEY)))(weights)

    assert jnp.isfinite(found).all()
    assert not found[0].any()
    np.testing.assert_allclose(found[1], points[0], rtol=1e-6)
    np.testing.assert_allclose(found[2], points[:2].mean(0), rtol=1e-6)
    low, high = points[:3].min(0), points[:3].max(0)
    assert ((found[3] >= low - 1e-5) & (found[3] <= high + 1e-5)).all()
    np.testing.assert_allclose(found[4], aggregated(name, points), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_nobody_gives_zeros(name, points):
    assert not aggregated(name, points * jnp.nan).any()


@pytest.mark.parametrize("far", [1e6, -1e15])
@pytest.mark.parametrize("name", NAMES)
def test_three_of_ten_anywhere_leave_the_result_among_the_honest(name, points, far):
    attacked = points.at[:3].set(far)

    found = aggregated(name, attacked)

    honest = points[3:]
    widest = float(jnp.linalg.norm(honest - honest.mean(0), axis=1).max())
    assert float(jnp.linalg.norm(found - honest.mean(0))) <= 1.01 * widest


@pytest.mark.parametrize("name", ["median", "geometric_median", "trimmed_mean:share=0.3"])
def test_more_than_half_break_any_of_them(name, points):
    assert float(jnp.abs(aggregated(name, points.at[:6].set(1e6))).max()) > 1e3


def test_one_upload_breaks_the_mean(points):
    assert float(jnp.abs(mean(points.at[0].set(1e9), jnp.ones(10))).min()) > 1e7


def test_half_precision_comes_back_as_half_precision():
    assert aggregated("median", jnp.ones((3, 2), jnp.bfloat16)).dtype == jnp.bfloat16


# By name


def test_all_are_listed():
    assert set(AGGREGATORS) == {
        "bucketing",
        "centered_clip",
        "geometric_median",
        "krum",
        "mean",
        "median",
        "multi_krum",
        "trimmed_mean",
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("medain", "no aggregator is called 'medain'; did you mean 'median'?"),
        ("trimmed_mean:share=0.5", r"share must be a number in \[0, 0.5\), got 0.5"),
        ("krum:num_byzantine=-1", "num_byzantine must be from 0 to"),
        ("multi_krum:num_kept=0", "num_kept must be between 1 and"),
        ("geometric_median:nu=0", "nu must be a number above 0"),
        ("centered_clip:radius=0", "radius must be a positive number"),
        ("centered_clip:num_steps=0", "num_steps must be 1 or more"),
        ("bucketing:size=0", "size must be 1 or more"),
        ("bucketing:inner=bucketing", "an aggregator that draws nothing itself"),
        ("bucketing:inner=trimmed_mean:share=2", "share must be"),
        ("mean:weighting=equal", "no weighting is called 'equal'"),
    ],
)
def test_a_mistake_is_refused_when_the_name_is_read(name, said):
    with pytest.raises((BadValue, UnknownChoice), match=said):
        build_aggregator(name)


def test_krum_refuses_more_attackers_than_it_can_bear(points):
    with pytest.raises(BadValue, match="from 0 to 3 for Krum with 10 clients, got 4"):
        build_aggregator("krum:num_byzantine=4")(points, jnp.ones(10))


def test_an_aggregator_that_draws_asks_for_a_key(points):
    with pytest.raises(BadValue, match="draws at random"):
        build_aggregator("bucketing")(points, jnp.ones(10))


def test_options_inside_a_list_are_separated_by_semicolons():
    rule = build_aggregator("bucketing:size=3;inner=trimmed_mean:share=0.1")

    assert rule.apply.keywords == {"size": 3, "inner": "trimmed_mean:share=0.1"}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("mean", 0),
        ("median", 4),
        ("trimmed_mean:share=0.3", 3),
        ("krum:num_byzantine=9", 3),
        ("bucketing:size=2,inner=median", 2),
        ("bucketing:size=4,inner=median", 1),
        ("bucketing:size=5,inner=krum", 0),
    ],
)
def test_how_many_of_ten_each_tolerates(name, number):
    assert num_tolerated(name, 10) == number
