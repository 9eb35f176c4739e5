"""For which alphas a partition is the solution's, and what ends it."""

import numpy as np
import pytest
from ellipses_world import graph_of, hinge
from referee import Referee, same_partition, spots

from plures.solvers import (
    AlphaInterval,
    Partition,
    Problem,
    certified_interval,
    complete,
    consensus,
    points_as_clients,
    solve,
)

PAIR = np.array([[0.0, 0.0], [3.0, 4.0]])


def interval_at(clients, graph, alpha):
    found = solve(Problem(clients, graph, alpha))
    return found, certified_interval(found.partition, alpha, found.models, duals=found.certificate.u)


def test_two_points_are_apart_until_half_their_distance():
    _, found = interval_at(points_as_clients(PAIR), complete(2), 1.0)

    assert found.high == pytest.approx(2.5, rel=1e-4)
    assert (found.below, found.above) == ("open", "merge")
    assert found.low < 1e-2


def test_two_points_are_together_from_half_their_distance():
    _, found = interval_at(points_as_clients(PAIR), complete(2), 4.0)

    assert found.low == pytest.approx(2.5, rel=1e-4)
    assert (found.below, found.above) == ("split", "open")
    assert found.high > 1e3


def test_clusters_of_points_hold_from_their_phi_until_they_meet():
    """{0, 1} needs 1/2. It lies at 0.5 + 2 alpha, 10 at 10 - 2 alpha + alpha: they meet at alpha = 9.5 / 3."""
    clients = points_as_clients([[0.0], [1.0], [10.0], [30.0]])

    _, found = interval_at(clients, complete(4), 1.0)

    assert found.low == pytest.approx(0.5, rel=1e-4)
    assert found.high == pytest.approx(9.5 / 3, rel=1e-4)
    assert (found.below, found.above) == ("split", "merge")
    assert found.ratio == pytest.approx(found.high / found.low)


@pytest.mark.parametrize(
    ("name", "share"),
    [("complete", 0.3), ("complete", 0.6), ("knn", 0.3), ("knn", 0.6)],
)
def test_an_interior_point_method_agrees_inside_and_outside(name, share):
    clients = hinge(0, per=4)
    graph = graph_of(name, clients, 4)
    alpha = share * consensus(clients, graph).alpha_hat
    referee = Referee(clients, graph)

    solution, found = interval_at(clients, graph, alpha)

    assert found.low < alpha < found.high
    for end, inside, outside in ((found.low, 1.01, 0.99), (found.high, 0.99, 1.01)):
        assert same_partition(solution.label, spots(referee.solve(inside * end)[1], 1e-5))
        assert not same_partition(solution.label, spots(referee.solve(outside * end)[1], 1e-5))


@pytest.mark.parametrize("seed", [3, 7])
def test_a_cluster_may_break_as_alpha_grows(seed):
    clients = hinge(seed, per=4)
    alpha = 0.5 * consensus(clients, complete(12)).alpha_hat

    solution, found = interval_at(clients, complete(12), alpha)

    assert solution.num_clusters == 3
    assert (found.below, found.above) == ("split", "split")
    outside = solve(Problem(clients, complete(12), 1.01 * found.high))
    assert outside.certificate.exact
    assert outside.num_clusters > 3


def test_all_together_hold_from_alpha_hat():
    clients = hinge(0, per=4)
    start = consensus(clients, complete(12))

    _, found = interval_at(clients, complete(12), 1.5 * start.alpha_hat)

    assert start.low * (1 - 1e-3) <= found.low <= start.high * (1 + 1e-3)
    assert (found.below, found.above) == ("split", "open")


def test_a_partition_that_is_not_the_solutions_has_no_interval():
    clients = hinge(0, per=4)
    graph = complete(12)
    alpha = 0.5 * consensus(clients, graph).alpha_hat
    whole = Partition(clients, graph, np.zeros(12, int))

    assert certified_interval(whole, alpha, consensus(clients).model[None]) is None


def test_the_ratio_of_an_interval_from_zero_is_infinite():
    assert AlphaInterval(0.0, 1.0, "open", "merge").ratio == np.inf


def test_the_ends_do_not_depend_on_where_one_looks_from():
    clients = hinge(2, per=4)
    most = consensus(clients, complete(12)).alpha_hat

    near, far = (interval_at(clients, complete(12), share * most)[1] for share in (0.8, 0.95))

    assert near.low == pytest.approx(far.low, rel=5e-3)
    assert near.high == pytest.approx(far.high, rel=5e-3)
