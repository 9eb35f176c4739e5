"""Convex clustering of points: closed forms, an interior-point method, duals and gaps, symmetries, joining on the way."""

import numpy as np
import pytest
from ellipses_world import blobs
from referee import clustered, same_partition, spots

from plures.solvers import complete, from_edges, fuse, mixed, nearest
from plures.solvers.point_fusion import settled, within


def cost(y, points, graph, gamma):
    return 0.5 * ((y - points) ** 2).sum() + gamma * graph.penalty(y)


def floor(u, points, graph):
    """The dual's value, below every cost: 1/2 |a|^2 - 1/2 |a - A'u|^2."""
    return 0.5 * (points**2).sum() - 0.5 * ((points - graph.outflow(u)) ** 2).sum()


GRAPHS = {
    "complete": lambda points: complete(len(points)),
    "knn": lambda points: nearest(points, 3),
    "mixture": lambda points: mixed(nearest(points, 3), 0.2),
}


# Closed forms


@pytest.mark.parametrize("gamma", [0.5, 1.0, 1.2, 1.3, 50.0])
@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_two_points_come_nearer_by_gamma_each_until_they_meet(gamma, weight):
    """(0, 0) and (3, 4) are 5 apart, along (0.6, 0.8)."""
    graph = from_edges(2, [[0, 1]], [weight])

    found = fuse(np.array([[0.0, 0.0], [3.0, 4.0]]), graph, gamma)

    step = min(gamma * weight, 2.5) * np.array([0.6, 0.8])
    np.testing.assert_allclose(found.points, [step, [3.0, 4.0] - step], atol=1e-7)
    assert found.label.max() + 1 == (1 if gamma * weight > 2.5 else 2)


@pytest.mark.parametrize(
    ("gamma", "wanted"), [(0.5, [0.5, 2.0, 0.5]), (0.9, [0.9, 1.2, 0.9]), (1.5, [1.0, 1.0, 1.0])]
)
def test_the_peak_of_a_chain_sinks_twice_as_fast_as_its_ends_rise(gamma, wanted):
    chain = from_edges(3, [[0, 1], [1, 2]])

    found = fuse(np.array([[0.0], [3.0], [0.0]]), chain, gamma)

    np.testing.assert_allclose(found.points[:, 0], wanted, atol=1e-6)


def test_points_on_a_line_move_by_how_many_are_on_either_side():
    """On the complete graph y_i = a_i + gamma (points above - points below), as long as nobody meets."""
    points = np.array([[0.0], [1.0], [3.0], [7.0]])

    found = fuse(points, complete(4), 0.2)

    np.testing.assert_allclose(found.points[:, 0], [0.6, 1.2, 2.8, 6.4], atol=1e-7)


def test_a_group_that_meets_moves_as_one():
    """0 and 1 meet at gamma = 1/2; then both lie at their mean, pulled by 2 gamma towards the two points far away."""
    points = np.array([[0.0], [1.0], [20.0], [30.0]])

    found = fuse(points, complete(4), 0.8)

    np.testing.assert_allclose(found.points[:, 0], [2.1, 2.1, 20 - 0.8, 30 - 2.4], atol=1e-6)
    np.testing.assert_array_equal(np.equal.outer(found.label, found.label)[0], [True, True, False, False])


# Against an interior-point method


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("share", [0.02, 0.08, 0.2])
def test_points_are_those_of_an_interior_point_method(name, share):
    points = blobs(15)
    graph = GRAPHS[name](points)

    found = fuse(points, graph, share, tol=1e-10)

    wanted = clustered(points, share, graph)
    np.testing.assert_allclose(found.points, wanted, atol=2e-4)
    assert cost(found.points, points, graph, share) <= cost(wanted, points, graph, share) * (1 + 1e-7)
    assert same_partition(found.label, spots(wanted, 1e-3))


# Duals and gaps


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("join", [True, False])
def test_duals_are_allowed_and_prove_the_minimum(name, join):
    points = blobs(15)
    graph = GRAPHS[name](points)

    found = fuse(points, graph, 0.1, tol=1e-10, join=join)

    value = cost(found.points, points, graph, 0.1)
    assert (np.linalg.norm(found.u, axis=1) <= 0.1 * graph.weight * (1 + 1e-12)).all()
    assert value - floor(found.u, points, graph) <= 1e-9 * value
    np.testing.assert_allclose(found.points, points - graph.outflow(found.u), atol=1e-4)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("steps", [1, 10, 60, 200])
def test_the_gap_is_above_the_true_one_before_it_is_closed(name, steps):
    points = blobs(15)
    graph = GRAPHS[name](points)
    least = cost(fuse(points, graph, 0.1, tol=1e-13).points, points, graph, 0.1)

    found = fuse(points, graph, 0.1, tol=1e-13, max_steps=steps, join=False)

    assert found.steps <= steps
    assert cost(found.points, points, graph, 0.1) - least <= found.gap + 1e-12 * least


def _loose_case():
    """A draw at which points are put together before they are all there."""
    rng = np.random.default_rng(0)
    for _ in range(8):
        rng.normal(size=(15, 2))
        rng.uniform()
    points = rng.normal(size=(15, 2))
    return points, nearest(points, 3), 10 ** rng.uniform(-2, 0)


def test_the_gap_is_that_of_the_points_returned():
    points, graph, gamma = _loose_case()
    least = cost(fuse(points, graph, gamma, tol=1e-13).points, points, graph, gamma)

    found = fuse(points, graph, gamma, tol=0.0, max_steps=100)

    assert cost(found.points, points, graph, gamma) - least <= found.gap + 1e-12 * least


def test_steps_end_when_they_are_used_up():
    found = fuse(blobs(15), complete(15), 0.05, tol=1e-15, max_steps=70)

    assert found.steps <= 70


# Symmetries


@pytest.mark.parametrize("join", [True, False])
def test_joining_on_the_way_changes_nothing(join):
    points = blobs(24, seed=3)
    graph = nearest(points, 4)

    found = fuse(points, graph, 0.15, tol=1e-11, join=join)

    wanted = clustered(points, 0.15, graph)
    np.testing.assert_allclose(found.points, wanted, atol=2e-4)
    assert same_partition(found.label, spots(wanted, 1e-3))


def test_joining_changes_nothing_on_a_graph_that_conducts_badly():
    noise = 0.3 * np.random.default_rng(0).normal(size=80)
    points = (np.repeat([0.0, 10.0], 40) + noise)[:, None]
    chain = from_edges(80, np.stack([np.arange(79), np.arange(1, 80)], axis=1))

    joined, plain = (fuse(points, chain, 4.0, tol=1e-9, join=join) for join in (True, False))

    np.testing.assert_allclose(joined.points, plain.points, atol=1e-9)
    assert same_partition(joined.label, plain.label)
    assert 2 < joined.label.max() + 1 < 10


def test_a_warm_start_is_there_at_once():
    points = blobs(15)
    graph = nearest(points, 3)
    cold = fuse(points, graph, 0.1, tol=1e-9)

    warm = fuse(points, graph, 0.1, tol=1e-9, start=cold.u)

    np.testing.assert_allclose(warm.points, cold.points, atol=1e-6)
    assert warm.steps == 0 < cold.steps


def test_a_start_that_is_not_allowed_is_shortened():
    points = blobs(15)
    graph = complete(15)

    found = fuse(points, graph, 0.05, tol=1e-10, start=1e3 * np.ones((len(graph), 2)))

    np.testing.assert_allclose(found.points, fuse(points, graph, 0.05, tol=1e-10).points, atol=1e-4)


def test_the_mean_stays_and_points_shift_and_turn_along():
    points, turn = blobs(12), np.array([[0.6, 0.8], [-0.8, 0.6]])
    graph = nearest(points, 3)

    plain = fuse(points, graph, 0.1, tol=1e-11).points
    moved = fuse(points @ turn + [100.0, -7.0], graph, 0.1, tol=1e-13).points

    np.testing.assert_allclose(plain.mean(0), points.mean(0), atol=1e-9)
    np.testing.assert_allclose(moved, plain @ turn + [100.0, -7.0], atol=1e-4)


def test_points_on_one_spot_stay_together_and_pull_together():
    """Two copies of each of two points: between the pairs are four edges, so each copy moves by 2 gamma."""
    points = np.array([[0.0], [0.0], [10.0], [10.0]])

    found = fuse(points, complete(4), 0.5)

    np.testing.assert_allclose(found.points[:, 0], [1.0, 1.0, 9.0, 9.0], atol=1e-6)
    assert found.label.max() + 1 == 2


def test_on_the_complete_graph_clusters_only_grow():
    points = blobs(12)

    counts = [fuse(points, complete(12), gamma, tol=1e-11).label.max() + 1 for gamma in np.geomspace(0.01, 0.6, 12)]

    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1]) == (12, 1)


def test_without_edges_points_stay():
    found = fuse(np.array([[1.0, 2.0]]), complete(1), 3.0)

    np.testing.assert_array_equal(found.points, [[1.0, 2.0]])
    assert found.label.max() + 1 == 1


# Parts


def test_vectors_are_shortened_only_where_they_are_longer():
    found = within(np.array([[3.0, 4.0], [0.3, 0.4]]), np.array([1.0, 1.0]))

    np.testing.assert_allclose(found, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-15)


def test_settled_points_lie_at_the_mean_of_their_label():
    found = settled(np.array([[0.0], [4.0], [10.0]]), np.array([1, 1, 0]))

    np.testing.assert_array_equal(found, [[2.0], [2.0], [10.0]])
