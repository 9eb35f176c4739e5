"""Graphs of clients: who is a neighbor, what holds the parts together, weights, and flows with given outflows."""

import jax
import numpy as np
import pytest
from ellipses_world import blobs, ellipses
from scipy.spatial.distance import cdist

from plures.errors import BadValue, Unsupported
from plures.solvers import Graph, as_clients, complete, consensus, from_edges, linked, mixed, nearest, sketched
from plures.solvers import graph as graph_module
from plures.solvers import laplacian_flow as electric_module
from plures.solvers.graph import check_room
from plures.solvers.laplacian_flow import corrected, strain
from plures.solvers.prox import own_best


def edges(graph):
    return set(zip(graph.head.tolist(), graph.tail.tolist(), strict=True))


def groups(*, far=100.0, size=5):
    """Two groups of points in the plane, far apart."""
    points = np.random.default_rng(0).normal(size=(2 * size, 2))
    points[size:, 0] += far
    return points


# Builders


def test_the_complete_graph_has_all_pairs_of_weight_one():
    graph = complete(5)

    assert edges(graph) == {(i, j) for j in range(5) for i in range(j)}
    np.testing.assert_array_equal(graph.weight, np.ones(10))
    assert graph.is_uniform


@pytest.mark.parametrize("num_neighbors", [1, 3, 5])
def test_everybody_has_its_nearest_neighbors(num_neighbors):
    points = blobs(30)
    order = np.argsort(cdist(points, points), axis=1)[:, 1 : num_neighbors + 1]

    found = edges(nearest(points, num_neighbors))

    wanted = {(min(i, j), max(i, j)) for i in range(30) for j in order[i].tolist()}
    assert wanted <= found
    assert len(found - wanted) <= 30 / (num_neighbors + 1)  # only the links between parts come on top


def test_weights_sum_to_the_number_of_pairs():
    graph = nearest(blobs(20), 3)

    assert graph.weight.sum() == pytest.approx(20 * 19 / 2, rel=1e-12)
    assert np.ptp(graph.weight) == 0


def test_parts_are_joined_by_the_shortest_link():
    points = groups()
    apart = cdist(points[:5], points[5:])
    i, j = np.unravel_index(np.argmin(apart), apart.shape)

    graph = nearest(points, 2)

    assert graph.num_parts == 1
    assert {edge for edge in edges(graph) if edge[0] < 5 <= edge[1]} == {(int(i), int(j) + 5)}


def test_many_points_are_joined_too(monkeypatch):
    monkeypatch.setattr(graph_module, "SMALL", 10)
    points = np.concatenate([groups(), groups() + [0.0, 300.0], groups() + [50.0, 900.0]])

    graph = nearest(points, 2)

    assert graph.num_parts == 1


def test_linked_adds_edges_of_the_usual_weight_and_keeps_the_rest():
    points = np.array([[0.0], [1.0], [5.0], [6.5]])
    parts = Graph(4, np.array([0, 2]), np.array([1, 3]), np.array([3.0, 3.0]))

    graph = linked(parts, points)

    assert edges(graph) == {(0, 1), (1, 2), (2, 3)}
    np.testing.assert_array_equal(graph.weight, [3.0, 3.0, 3.0])


def test_with_enough_neighbors_the_graph_is_complete():
    assert nearest(blobs(6), 5).is_uniform
    assert nearest(blobs(6), 50).is_uniform


def test_points_on_one_another_are_fine():
    points = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.0, 5.0]], 6, axis=0)

    graph = nearest(points, 2)

    assert graph.num_parts == 1
    assert (graph.head < graph.tail).all()
    assert len(edges(graph)) == len(graph)
    assert graph.num_edges.min() >= 2


def test_neighbors_by_gradients_at_the_global_model_are_of_the_same_kind():
    """By the clients' own models a third of the neighbors are strangers; by gradients nobody is."""
    world = ellipses(0)
    clients = as_clients(world.x, world.y, loss="squared_hinge")
    own = own_best(clients, np.zeros((60, 3))).x

    purity = []
    for features in (consensus(clients).gradients, own):
        near = np.argsort(cdist(features, features), axis=1)[:, 1:6]
        purity.append((world.kind[near] == world.kind[:, None]).mean())

    assert purity[0] == 1.0
    assert purity[1] < 0.8


def test_a_mixture_has_its_share_of_both():
    near = nearest(blobs(8), 2)

    graph = mixed(near, 0.25)

    own = dict(zip(zip(near.head, near.tail, strict=True), near.weight, strict=True))
    assert len(graph) == 28
    for head, tail, weight in zip(graph.head, graph.tail, graph.weight, strict=True):
        assert weight == pytest.approx(0.25 + 0.75 * own.get((head, tail), 0.0), rel=1e-12)
    assert graph.weight.sum() == pytest.approx(28, rel=1e-12)


def test_a_mixture_with_none_of_the_complete_graph_is_the_graph():
    near = nearest(blobs(8), 2)

    assert edges(mixed(near, 0.0)) == edges(near)
    assert mixed(near, 1.0).is_uniform


def test_edges_are_turned_and_those_named_twice_summed():
    graph = from_edges(3, [[1, 0], [0, 1], [2, 1]], [1.0, 2.0, 5.0])

    assert edges(graph) == {(0, 1), (1, 2)}
    np.testing.assert_array_equal(graph.weight, [3.0, 5.0])


def test_a_sketch_keeps_squared_distances_on_average():
    points = np.random.default_rng(0).normal(size=(2, 400))
    apart = ((points[0] - points[1]) ** 2).sum()

    found = [sketched(jax.random.key(seed), points, 20) for seed in range(100)]

    ratios = [((one[0] - one[1]) ** 2).sum() / apart for one in found]
    assert found[0].shape == (2, 20)
    assert np.mean(ratios) == pytest.approx(1.0, abs=4 * np.sqrt(2 / 20 / 100))


def test_a_sketch_of_as_many_numbers_is_the_points():
    points = blobs(4)

    np.testing.assert_array_equal(sketched(jax.random.key(0), points, 2), points)


# Refused


def test_a_graph_in_parts_is_refused_with_a_way_out():
    with pytest.raises(Unsupported, match=r"the graph has 2 parts .*\(plures\.solvers\.linked\)"):
        from_edges(4, [[0, 1], [2, 3]])


@pytest.mark.parametrize("pairs", [[[0, 0], [0, 1]], [[0, 1], [1, 3]], [[-1, 0], [0, 1]]])
def test_edges_are_pairs_of_two_clients(pairs):
    with pytest.raises(BadValue, match="pairs of two different clients from 0 to 2"):
        from_edges(3, pairs)


@pytest.mark.parametrize("weight", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf]])
def test_weights_are_positive_numbers_one_for_each_edge(weight):
    with pytest.raises(BadValue, match="one positive number for each edge"):
        from_edges(3, [[0, 1], [1, 2]], weight)


def test_other_bad_values_are_refused():
    with pytest.raises(BadValue, match="num_neighbors must be 1 or more, got 0"):
        nearest(blobs(5), 0)
    with pytest.raises(BadValue, match=r"theta must be a number in \[0, 1\], got 1.5"):
        mixed(complete(3), 1.5)
    with pytest.raises(BadValue, match="sketch must be 1 or more, got 0"):
        sketched(jax.random.key(0), blobs(5), 0)
    with pytest.raises(BadValue, match="num must be 1 or more, got 0"):
        complete(0)


def test_a_graph_too_large_for_memory_is_refused_with_its_size_and_a_way_out():
    """3 arrays of 799,980,000 edges of 6 numbers of 8 bytes are 107 GB."""
    with pytest.raises(Unsupported, match=r"799,980,000 edges of 6 numbers need 107 GB.*graph='knn'"):
        check_room(40_000 * 39_999 // 2, 6)


def test_a_graph_that_fits_is_let_through():
    check_room(1_000 * 999 // 2, 10)


# Sums over edges


@pytest.mark.parametrize("full", [0, 10**9], ids=["sparse", "full"])
def test_outflow_is_the_adjoint_of_gaps(monkeypatch, full):
    monkeypatch.setattr(graph_module, "FULL", full)
    graph, x = nearest(blobs(9), 2), blobs(9)
    u = np.random.default_rng(0).normal(size=(len(graph), 2))

    assert np.vdot(graph.outflow(u), x) == pytest.approx(np.vdot(u, graph.gaps(x)), rel=1e-12)


@pytest.mark.parametrize("full", [0, 10**9], ids=["sparse", "full"])
def test_the_laplacian_has_the_quadratic_form_of_the_gaps(monkeypatch, full):
    monkeypatch.setattr(graph_module, "FULL", full)
    graph, x = mixed(nearest(blobs(9), 2), 0.3), blobs(9)

    found = np.trace(x.T @ (graph.laplacian @ x))

    assert found == pytest.approx((graph.weight[:, None] * graph.gaps(x) ** 2).sum(), rel=1e-12)


def test_penalty_is_the_weighted_sum_of_distances():
    graph = from_edges(3, [[0, 1], [1, 2]], [2.0, 5.0])

    assert graph.penalty(np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 3.0]])) == 2 * 5 + 5 * 1


def test_degrees_are_sums_of_weights():
    graph = from_edges(3, [[0, 1], [1, 2]], [2.0, 5.0])

    np.testing.assert_array_equal(graph.degree, [2, 7, 5])
    np.testing.assert_array_equal(graph.num_edges, [1, 2, 1])


def test_groups_are_tied_by_the_summed_weights_between_them():
    graph = from_edges(4, [[0, 1], [1, 2], [0, 2], [2, 3]], [1.0, 2.0, 3.0, 4.0])

    found, renamed = graph.contracted(np.array([1, 1, 0, 2]), 3)

    assert edges(found) == {(0, 1), (0, 2)}
    np.testing.assert_array_equal(found.weight, [5.0, 4.0])
    np.testing.assert_array_equal(renamed, [-1, 0, 0, 1])  # edges are sorted: 0-1, 0-2, 1-2, 2-3


# Electrical flows


@pytest.mark.parametrize(
    ("dense", "direct"), [(10**6, 10**6), (0, 10**6), (0, 0)], ids=["inverse", "factored", "conjugate gradients"]
)
def test_corrected_flows_have_the_outflow_asked_for(monkeypatch, dense, direct):
    monkeypatch.setattr(electric_module, "DENSE", dense)
    monkeypatch.setattr(electric_module, "DIRECT", direct)
    rng = np.random.default_rng(0)
    graph = mixed(nearest(blobs(20), 3), 0.1)
    ask = rng.normal(size=(20, 2))
    ask -= ask.mean(0)

    found = corrected(graph, rng.normal(size=(len(graph), 2)), ask)

    np.testing.assert_allclose(graph.outflow(found), ask, atol=1e-8)


def test_the_electrical_flow_comes_from_potentials():
    """It is the flow of least energy: u / w is a difference of potentials, so it sums to zero around a circle."""
    graph = from_edges(4, [[0, 1], [1, 2], [2, 3], [0, 3]], [1.0, 2.0, 3.0, 4.0])
    ask = np.array([[1.0], [2.0], [-4.0], [1.0]])

    drop = corrected(graph, np.zeros((4, 1)), ask)[:, 0] / graph.weight

    by_edge = dict(zip(zip(graph.head.tolist(), graph.tail.tolist(), strict=True), drop, strict=True))
    assert by_edge[0, 1] + by_edge[1, 2] + by_edge[2, 3] - by_edge[0, 3] == pytest.approx(0, abs=1e-12)


def test_parts_are_corrected_each_by_itself():
    parts = Graph(4, np.array([0, 2]), np.array([1, 3]), np.ones(2))
    ask = np.array([[1.0], [-1.0], [3.0], [-3.0]])

    np.testing.assert_allclose(corrected(parts, np.zeros((2, 1)), ask), [[1.0], [3.0]], atol=1e-12)


def test_strain_is_the_largest_load_for_its_weight():
    graph = from_edges(3, [[0, 1], [1, 2]], [2.0, 5.0])

    assert strain(graph, np.array([[3.0, 4.0], [6.0, 8.0]])) == 2.5
