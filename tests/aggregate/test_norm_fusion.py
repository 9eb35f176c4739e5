"""Convex clustering of points on a graph: closed forms, optimality, the threshold of consensus, the graphs."""

from functools import cache, partial

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial.distance import cdist

from plures.aggregate import (
    Edges,
    build_graph,
    complete_graph,
    consensus_threshold,
    fuse,
    neighbor_graph,
    total_variation,
)
from plures.aggregate.graph import GRAPHS, check_graph, components, num_edges, numbered
from plures.errors import BadValue, UnknownChoice

NUMBER = 15


@cache
def compiled(**options):
    return jax.jit(partial(fuse, **options))


threshold = jax.jit(consensus_threshold)


@pytest.fixture(scope="module")
def points():
    """Three groups of five points in the plane."""
    rng = np.random.default_rng(3)
    centers = 3.0 * np.array([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    return jnp.asarray(np.repeat(centers, 5, axis=0) + 0.5 * rng.normal(size=(NUMBER, 2)), jnp.float32)


@cache
def graph(name):
    return jax.jit(partial(build_graph, name, num_neighbors=4, share=0.2))


def objective(found, points, edges, gamma):
    moved = 0.5 * np.square(np.asarray(found, float) - np.asarray(points, float)).sum()
    return moved + gamma * float(total_variation(jnp.asarray(found), edges))


def solved(points, edges, gamma):
    """The same by an interior-point method."""
    heads, tails, weights = (np.asarray(one)[np.asarray(edges.weights) > 0] for one in edges)
    y = cp.Variable(points.shape)
    apart = cp.norm(y[heads] - y[tails], 2, axis=1)
    cost = 0.5 * cp.sum_squares(y - np.asarray(points, float)) + gamma * cp.sum(cp.multiply(weights, apart))
    cp.Problem(cp.Minimize(cost)).solve(solver="CLARABEL")
    return y.value


# The kernel


@pytest.mark.parametrize("gamma", [1.0, 2.0, 2.6, 100.0])
def test_two_points_come_nearer_by_gamma_each_until_they_meet(gamma):
    """The points are 5 apart: (0, 0) and (3, 4), along (0.6, 0.8)."""
    found = compiled()(jnp.array([[0.0, 0.0], [3.0, 4.0]]), complete_graph(2), gamma)

    step = min(gamma, 2.5) * np.array([0.6, 0.8])
    np.testing.assert_allclose(found.points, [step, [3.0, 4.0] - step], atol=2e-6)
    assert len(set(found.labels.tolist())) == (1 if gamma > 2.5 else 2)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("t", [0.2, 0.6, 0.95])
def test_points_are_those_of_an_interior_point_method(points, name, t):
    edges = graph(name)(points)
    gamma = t * float(threshold(points, edges))

    found = compiled()(points, edges, gamma)

    wanted = solved(points, edges, gamma)
    np.testing.assert_allclose(found.points, wanted, atol=1e-3)
    least = objective(wanted, points, edges, gamma)
    assert objective(found.points, points, edges, gamma) <= least * (1 + 1e-6)
    together = cdist(wanted, wanted) < 1e-4
    np.testing.assert_array_equal(np.equal.outer(*[np.asarray(found.labels)] * 2), together)


@pytest.mark.parametrize("name", ["complete", "knn"])
def test_duals_prove_the_minimum(points, name):
    """|u_e| <= gamma w_e, u_e along y_i - y_j at full length where these differ, and y = a - A'u."""
    edges = graph(name)(points)
    gamma = 0.5 * float(threshold(points, edges))

    found = compiled()(points, edges, gamma)

    heads, tails, weights = map(np.asarray, edges)
    apart, duals = np.asarray(found.points)[heads] - np.asarray(found.points)[tails], np.asarray(found.duals)
    length, radius = np.linalg.norm(apart, axis=1), gamma * weights
    assert (np.linalg.norm(duals, axis=1) <= radius * (1 + 1e-5)).all()
    differ = (length > 0) & (weights > 0)
    wanted = radius[differ, None] * apart[differ] / length[differ, None]
    np.testing.assert_allclose(duals[differ], wanted, atol=2e-3 * radius.max())
    forces = np.zeros(points.shape)
    np.add.at(forces, heads, duals)
    np.add.at(forces, tails, -duals)
    np.testing.assert_allclose(np.asarray(points) - forces, found.points, atol=2e-3)


def test_points_of_a_cluster_are_equal_to_the_last_bit(points):
    edges = complete_graph(NUMBER)

    found = compiled()(points, edges, 0.8 * float(threshold(points, edges)))

    labels = np.asarray(found.labels)
    assert 1 < len(np.unique(labels)) < NUMBER
    assert len(np.unique(np.asarray(found.points), axis=0)) == len(np.unique(labels))
    assert (labels == [np.flatnonzero(labels == one).min() for one in labels]).all()


def test_the_gap_bounds_what_is_missing(points):
    edges = complete_graph(NUMBER)
    gamma = 0.5 * float(threshold(points, edges))
    least = objective(solved(points, edges, gamma), points, edges, gamma)

    for steps in (10, 20, 40):
        found = compiled(max_iter=steps, tol=0.0)(points, edges, gamma)
        assert found.iterations == steps
        assert objective(found.points, points, edges, gamma) - least <= float(found.gap) + 1e-5 * least


def test_a_start_from_its_own_duals_has_little_to_do(points):
    edges = complete_graph(NUMBER)
    gamma = 0.5 * float(threshold(points, edges))
    first = compiled()(points, edges, gamma)

    again = compiled()(points, edges, gamma, duals=first.duals)

    assert again.iterations <= 10 < first.iterations
    np.testing.assert_allclose(again.points, first.points, atol=1e-4)


def test_edges_of_weight_zero_do_not_count(points):
    edges = graph("knn")(points)
    gamma = 0.5 * float(threshold(points, edges))
    live = np.asarray(edges.weights) > 0
    assert not live.all()  # who are neighbors of each other have two places

    found = compiled()(points, edges, gamma)
    without = compiled()(points, Edges(*(one[live] for one in edges)), gamma)

    np.testing.assert_allclose(found.points, without.points, atol=1e-5)


def test_a_single_point_stays_where_it_is():
    point = jnp.array([[1.0, 2.0]])
    for name in GRAPHS:
        edges = graph(name)(point)
        assert compiled()(point, edges, 5.0).points.tolist() == [[1.0, 2.0]]
        assert float(threshold(point, edges)) == 0


# The threshold


def test_two_clients_agree_once_the_penalty_balances_their_gradients():
    """u = g is the only flow between g and -g."""
    gradients = jnp.array([[3.0, 4.0], [-3.0, -4.0]])

    assert float(threshold(gradients, complete_graph(2))) == pytest.approx(5.0, rel=1e-5)


@pytest.mark.parametrize("name", GRAPHS)
def test_there_is_one_cluster_above_the_threshold_and_not_below(points, name):
    """At the common model the proximal map of -g is 0 exactly for alpha >= alpha_hat."""
    edges = graph(name)(points)
    alpha = float(threshold(points, edges))

    below, above = (compiled()(points, edges, factor * alpha) for factor in (0.99, 1.01))

    assert len(set(below.labels.tolist())) > 1
    assert set(above.labels.tolist()) == {0}


def test_the_threshold_lies_between_its_bounds(points):
    """max |g_i| / (N - 1) <= alpha_hat <= max |g_i - g_j| / N on the complete graph; so does any group's cut."""
    gradients = np.asarray(points - points.mean(0))

    alpha = float(threshold(points, complete_graph(NUMBER)))

    assert alpha >= np.linalg.norm(gradients, axis=1).max() / (NUMBER - 1) * (1 - 1e-5)
    assert alpha <= cdist(gradients, gradients).max() / NUMBER * (1 + 1e-5)
    cuts = [np.linalg.norm(gradients[k : k + 5].sum(0)) / (5 * 10) for k in (0, 5, 10)]
    assert alpha >= max(cuts) * (1 - 1e-5)


# Graphs


def table(edges, number):
    found = np.zeros((number, number))
    np.add.at(found, (np.asarray(edges.heads), np.asarray(edges.tails)), np.asarray(edges.weights))
    return found + found.T


def test_neighbors_are_linked_once_and_a_spanning_tree_connects_the_rest(points):
    found = table(graph("knn")(points), NUMBER)

    far = cdist(points, points)
    np.fill_diagonal(far, np.inf)
    near = far <= np.sort(far, axis=1)[:, 3:4]
    tree = minimum_spanning_tree(np.where(np.isinf(far), 0, far)).toarray() > 0
    wanted = near | near.T | tree | tree.T
    np.testing.assert_array_equal(found > 0, wanted)
    assert len(np.unique(found[found > 0])) == 1
    assert found.sum() / 2 == pytest.approx(NUMBER * (NUMBER - 1) / 2, rel=1e-5)


def test_groups_far_apart_are_connected():
    rng = np.random.default_rng(0)
    points = jnp.asarray(np.concatenate([rng.normal(size=(6, 3)) + shift for shift in (0, 50, 100)]), jnp.float32)

    found = table(jax.jit(partial(neighbor_graph, num_neighbors=2))(points), 18) > 0

    assert connected_components(found)[0] == 1
    group = np.arange(18) // 6
    assert found[group[:, None] != group].sum() / 2 == 2


def test_a_mixture_is_a_mean_of_two_graphs(points):
    every, few = (
        table(build(), NUMBER) for build in (lambda: complete_graph(NUMBER), lambda: graph("knn")(points))
    )

    found = table(graph("mixture")(points), NUMBER)

    np.testing.assert_allclose(found, 0.2 * every + 0.8 * few, atol=1e-6)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_length_of_a_list_is_known_beforehand(points, name):
    assert len(graph(name)(points).heads) == num_edges(name, NUMBER, 4)
    few = jax.eval_shape(graph(name), points[:3])
    assert len(few.heads) == num_edges(name, 3, 4)


def test_components_are_called_after_their_least_member():
    edges = Edges(jnp.array([4, 3, 1, 0]), jnp.array([3, 2, 5, 5]), jnp.ones(4))

    found = components(edges, jnp.array([True, True, True, False]), 6)

    assert found.tolist() == [0, 1, 2, 2, 2, 1]
    assert numbered(found).tolist() == [0, 1, 2, 2, 2, 1]


def test_what_is_no_graph_is_refused():
    with pytest.raises(UnknownChoice, match="knn"):
        check_graph("ring", 3, 0.1)
    with pytest.raises(BadValue, match="num_neighbors must be"):
        check_graph("knn", 0, 0.1)
    with pytest.raises(BadValue, match="share must be"):
        check_graph("mixture", 3, float("nan"))
