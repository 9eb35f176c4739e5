"""Points shifted, turned and scaled, clients in another order or doubled: the solution follows."""

import numpy as np
import pytest
from ellipses_world import blobs, ellipses, graph_of, hinge
from referee import same_partition

from plures.solvers import (
    Graph,
    Problem,
    as_clients,
    certify,
    complete,
    consensus,
    from_edges,
    nearest,
    points_as_clients,
    solve,
)


def alpha_hat(clients, graph):
    return consensus(clients, graph).alpha_hat


@pytest.fixture(scope="module", params=["complete", "knn"])
def case(request):
    points = blobs(12)
    graph = complete(12) if request.param == "complete" else nearest(points, 3)
    alpha = 0.4 * alpha_hat(points_as_clients(points), graph)
    return points, graph, alpha, solve(Problem(points_as_clients(points), graph, alpha))


def test_models_shift_and_turn_with_the_points(case):
    points, graph, alpha, plain = case
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]])

    found = solve(Problem(points_as_clients(points @ turn + [50.0, -7.0]), graph, alpha))

    np.testing.assert_allclose(found.x, plain.x @ turn + [50.0, -7.0], atol=1e-7)
    assert same_partition(found.label, plain.label)


@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e6])
def test_models_scale_with_the_points(case, scale):
    points, graph, alpha, plain = case

    found = solve(Problem(points_as_clients(scale * points), graph, scale * alpha))

    assert found.certificate.exact
    np.testing.assert_allclose(found.x / scale, plain.x, atol=1e-7)


def test_small_models_scale_with_the_points_too():
    points, graph = 1e-9 * blobs(12), complete(12)
    clients = points_as_clients(points)
    alpha = 0.4 * alpha_hat(clients, graph)

    found = solve(Problem(clients, graph, alpha))

    wanted = solve(Problem(points_as_clients(1e9 * points), graph, 1e9 * alpha))
    assert same_partition(found.label, wanted.label)


def test_the_value_does_not_change_when_all_points_are_shifted(case):
    points, graph, alpha, plain = case

    found = solve(Problem(points_as_clients(points + 1e6), graph, alpha))

    assert found.certificate.exact
    assert found.value == pytest.approx(plain.value, rel=1e-6)


def test_the_order_of_clients_does_not_matter():
    clients = hinge(0)
    order = np.random.default_rng(0).permutation(12)
    place = np.argsort(order)
    graph = graph_of("knn", clients, 3)
    ends = np.stack([place[graph.head], place[graph.tail]], axis=1)
    alpha = 0.4 * alpha_hat(clients, graph)

    plain = solve(Problem(clients, graph, alpha))
    found = solve(Problem(clients.take(order), from_edges(12, ends, graph.weight), alpha))

    np.testing.assert_allclose(found.x, plain.x[order], atol=1e-8)
    assert same_partition(found.label, plain.label[order])


def test_turned_features_turn_the_models():
    world = ellipses(0, per=4)
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
    graph = complete(12)

    plain = solve(Problem(as_clients(world.x, world.y, ridge=1e-2), graph, 0.02))
    found = solve(Problem(as_clients([x @ turn for x in world.x], world.y, ridge=1e-2), graph, 0.02))

    np.testing.assert_allclose(found.x[:, :2], plain.x[:, :2] @ turn, atol=1e-7)
    np.testing.assert_allclose(found.x[:, 2], plain.x[:, 2], atol=1e-7)


def test_every_client_twice_is_the_same_at_half_of_alpha():
    """Copies stay together; between two pairs of copies are four edges, and two losses each."""
    clients = hinge(0)
    graph = complete(12)
    alpha = 0.4 * alpha_hat(clients, graph)

    plain = solve(Problem(clients, graph, alpha))
    found = solve(Problem(clients.take(np.repeat(np.arange(12), 2)), complete(24), alpha / 2))

    assert found.value == pytest.approx(2 * plain.value, rel=1e-10)
    np.testing.assert_allclose(found.x, np.repeat(plain.x, 2, axis=0), atol=1e-7)
    assert same_partition(found.label, np.repeat(plain.label, 2))


def test_half_the_weights_need_twice_the_alpha(case):
    points, graph, alpha, plain = case
    light = Graph(graph.num, graph.head, graph.tail, 0.5 * graph.weight)

    found = solve(Problem(points_as_clients(points), light, 2 * alpha))

    np.testing.assert_allclose(found.x, plain.x, atol=1e-9)


def test_the_proof_does_not_depend_on_the_way(case):
    *_, alpha, found = case

    again, _ = certify(found.partition, alpha, found.models)

    assert again.exact
    assert again.gap <= 1e-15
