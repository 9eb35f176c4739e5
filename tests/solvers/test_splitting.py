"""Douglas-Rachford round by round: where it ends, how soon, and who takes part."""

import numpy as np
import pytest
from ellipses_world import graph_of, hinge, tables

from plures.solvers import Problem, as_clients, complete, consensus, douglas_rachford, objective, solve
from plures.solvers.splitting import good_strength


@pytest.fixture(scope="module", params=["complete", "knn"])
def case(request):
    clients = hinge(0, per=4)
    graph = graph_of(request.param, clients, 3)
    alpha = 0.4 * consensus(clients, graph).alpha_hat
    return clients, graph, alpha, solve(Problem(clients, graph, alpha))


def until(clients, graph, alpha, value, tol=1e-6):
    return lambda count, x, u: objective(clients, graph, alpha, x) - value <= tol * abs(value)


def test_rounds_reach_the_solution(case):
    clients, graph, alpha, wanted = case

    found = douglas_rachford(clients, graph, alpha, rounds=500, watch=until(clients, graph, alpha, wanted.value))

    assert found.rounds < 500
    assert wanted.value * (1 - 1e-12) <= objective(clients, graph, alpha, found.x) <= wanted.value * (1 + 1e-6)


def test_duals_are_always_allowed(case):
    clients, graph, alpha, _ = case
    strains = []

    def watch(count, x, u):
        strains.append((np.linalg.norm(u, axis=1) / (alpha * graph.weight)).max())
        return False

    douglas_rachford(clients, graph, alpha, rounds=15, watch=watch)

    assert len(strains) == 15
    assert max(strains) <= 1 + 1e-12


def test_models_of_douglas_rachford_are_fused(case):
    clients, graph, alpha, wanted = case

    found = douglas_rachford(clients, graph, alpha, rounds=150, tol=1e-7)

    assert found.rounds < 150
    np.testing.assert_allclose(found.x, wanted.x, atol=1e-5)
    assert len(np.unique(found.x.round(12), axis=0)) == found.label.max() + 1


def test_clients_outside_the_cohort_are_not_asked():
    clients, graph = hinge(0, per=4), complete(12)
    asked = []

    class Counting(type(clients)):
        def take(self, index):
            asked.append(np.array(index))
            return super().take(index)

    counting = Counting(clients.a, clients.y, clients.share, clients.ridge, clients.loss)
    cohorts = [np.array([1, 5]), np.array([0, 7, 9]), np.array([3])]

    douglas_rachford(counting, graph, 0.3, rounds=3, cohorts=cohorts)

    members = [set(index.tolist()) for index in asked]
    assert cohorts[0].tolist() in [sorted(one) for one in members]
    assert all(len(one) <= 3 for one in members)


def test_rounds_with_everybody_are_few():
    """Relative 1e-6 in 30 rounds for 60 clients."""
    clients, graph = hinge(0, per=20, ridge=1e-3), complete(60)
    wanted = solve(Problem(clients, graph, 0.08))

    found = douglas_rachford(clients, graph, 0.08, rounds=60, watch=until(clients, graph, 0.08, wanted.value))

    assert wanted.certificate.exact
    assert found.rounds <= 30


def test_a_fifth_of_the_clients_each_round_gets_there_too():
    """Relative 1e-6 in 150 rounds for 60 clients."""
    clients, graph = hinge(0, per=20, ridge=1e-3), complete(60)
    wanted = solve(Problem(clients, graph, 0.02))
    rng = np.random.default_rng(0)
    cohorts = (rng.choice(60, 12, replace=False) for _ in range(200))

    found = douglas_rachford(
        clients, graph, 0.02, rounds=200, cohorts=cohorts, watch=until(clients, graph, 0.02, wanted.value)
    )

    assert wanted.certificate.exact
    assert found.rounds <= 150


def test_cohorts_may_be_an_array():
    clients = hinge(0, per=3)

    found = douglas_rachford(clients, complete(9), 0.3, rounds=3, cohorts=np.array([[0, 1], [2, 3], [4, 5]]))

    assert found.rounds == 3


def test_a_start_at_the_solution_stays(case):
    """Fixed point: s = x - gradient / rho, so that clustering s gives x and the prox of the reflected point too."""
    clients, graph, alpha, wanted = case
    rho = good_strength(clients)
    start = wanted.x - clients.gradient(wanted.x) / rho

    found = douglas_rachford(clients, graph, alpha, start=start, rounds=3)

    np.testing.assert_allclose(found.x, wanted.x, atol=1e-4)


def test_the_default_pull_is_a_fifth_of_the_median_smoothness():
    clients = hinge(0, per=4)

    assert good_strength(clients) == pytest.approx(0.2 * np.median(clients.lipschitz))
    assert good_strength(as_clients(*tables("poisson")[:2], loss="poisson")) == 1.0


def test_counts_need_no_smoothness_for_douglas_rachford():
    world = tables("poisson")
    clients, graph = as_clients(world.x, world.y, loss="poisson", ridge=1e-2), complete(9)
    alpha = 0.4 * consensus(clients, graph).alpha_hat
    wanted = solve(Problem(clients, graph, alpha))

    found = douglas_rachford(clients, graph, alpha, rounds=300, watch=until(clients, graph, alpha, wanted.value))

    assert found.rounds < 300
