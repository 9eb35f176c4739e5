"""FISTA and linearized ADMM round by round: where they end."""

import numpy as np
import pytest
from ellipses_world import blobs, graph_of, hinge, tables

from papers.convex_clustering.algorithms import fista, linearized_admm, shrunk
from plures.errors import Unsupported
from plures.solvers import Problem, as_clients, complete, consensus, objective, points_as_clients, solve


@pytest.fixture(scope="module", params=["complete", "knn"])
def case(request):
    clients = hinge(0, per=4)
    graph = graph_of(request.param, clients, 3)
    alpha = 0.4 * consensus(clients, graph).alpha_hat
    return clients, graph, alpha, solve(Problem(clients, graph, alpha))


def until(clients, graph, alpha, value, tol=1e-6):
    return lambda count, x, u: objective(clients, graph, alpha, x) - value <= tol * abs(value)


RUNS = {
    "fista": fista,
    "linearized_admm": lambda *problem, **options: linearized_admm(*problem, rho=2.0, **options),
}


@pytest.mark.parametrize("name", RUNS)
def test_rounds_reach_the_solution(case, name):
    clients, graph, alpha, wanted = case

    found = RUNS[name](clients, graph, alpha, rounds=500, watch=until(clients, graph, alpha, wanted.value))

    assert found.rounds < 500
    assert wanted.value * (1 - 1e-12) <= objective(clients, graph, alpha, found.x) <= wanted.value * (1 + 1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_duals_are_always_allowed(case, name):
    clients, graph, alpha, _ = case
    strains = []

    def watch(count, x, u):
        strains.append((np.linalg.norm(u, axis=1) / (alpha * graph.weight)).max())
        return False

    RUNS[name](clients, graph, alpha, rounds=15, watch=watch)

    assert len(strains) == 15
    assert max(strains) <= 1 + 1e-12


def test_gradient_steps_refuse_a_loss_without_a_smoothness():
    world = tables("poisson")
    clients = as_clients(world.x, world.y, loss="poisson")

    with pytest.raises(Unsupported):
        fista(clients, complete(9), 0.1, rounds=2)


def test_points_are_clustered_in_one_round_of_gradients():
    """With curvature 1 everywhere a gradient step of length 1 lands on the points themselves."""
    clients, graph = points_as_clients(blobs(12)), complete(12)
    wanted = solve(Problem(clients, graph, 0.2))

    found = fista(clients, graph, 0.2, rounds=1)

    np.testing.assert_allclose(found.x, wanted.x, atol=1e-5)


def test_vectors_are_shortened_to_zero_at_most():
    found = shrunk(np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), np.array([1.0, 1.0, 1.0]))

    np.testing.assert_allclose(found, [[2.4, 3.2], [0.0, 0.0], [0.0, 0.0]], rtol=1e-14)
