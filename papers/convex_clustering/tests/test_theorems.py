"""The published conditions for recovering a partition."""

import numpy as np
import pytest
from ellipses_world import blobs, hinge

from papers.convex_clustering.theorems import apart_bound, fused_bound
from plures.errors import Unsupported
from plures.solvers import Partition, Problem, complete, consensus, nearest, points_as_clients, solve


def test_theorem_1_asks_for_the_largest_difference_of_gradients_in_a_cluster():
    """That is never less than phi, and at most twice."""
    clients = hinge(2, per=4)
    found = solve(Problem(clients, complete(12), 0.3))
    gradient = clients.gradient(found.x)
    wanted = max(
        np.linalg.norm(gradient[i] - gradient[j]) / found.sizes[found.label[i]]
        for i in range(12)
        for j in range(12)
        if found.label[i] == found.label[j]
    )

    assert fused_bound(found.partition, found.models) == pytest.approx(wanted, rel=1e-12)
    assert found.certificate.low.max() <= wanted <= 2 * found.certificate.high.max()


@pytest.mark.parametrize("bound", [fused_bound, apart_bound])
def test_the_theorems_are_for_the_complete_graph(bound):
    clients = points_as_clients(blobs(6))
    partition = Partition(clients, nearest(blobs(6), 2), np.arange(6) % 2)

    with pytest.raises(Unsupported, match="complete graph of unit weights; use the flow test"):
        bound(partition, np.zeros((2, 2)))


def test_theorem_2_bounds_where_two_clusters_meet():
    """Mean gradients of {0, 1, 2} and {11} at any model differ by 10, and the smallest cluster has 1 of 4 clients."""
    points = np.array([[0.0], [1.0], [2.0], [11.0]])
    clients, graph = points_as_clients(points), complete(4)
    planted = Partition(clients, graph, np.array([0, 0, 0, 1]))
    start = consensus(clients, graph)

    found = apart_bound(planted, start.model)

    assert found == pytest.approx(10 / (2 * 3), rel=1e-12)
    assert found <= start.alpha_hat * (1 + 1e-9)
