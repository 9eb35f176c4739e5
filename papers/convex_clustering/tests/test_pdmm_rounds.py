"""PDMM: the corrected algorithm reaches the optimum from anywhere; the printed one need not."""

import jax
import numpy as np
import pytest

from papers.convex_clustering.pdmm import Steps, Turn, as_printed, good_rho, pdmm, random_turns
from plures.data.worlds.known_optima import ellipses
from plures.errors import BadValue
from plures.solvers import Problem, as_clients, complete, gap_bound, nearest, objective, solve

LAM = 0.45
GRAPH = complete(12)


@pytest.fixture(scope="module")
def clients():
    federation = ellipses(num_clients=12, test_rows=2).federation
    rows = [federation.rows_of(name, "train") for name in federation.names]
    return as_clients(
        [x for x, _ in rows], [y for _, y in rows], loss="squared_hinge", ridge=1e-3, intercept_ridge=1e-3
    )


@pytest.fixture(scope="module")
def best(clients):
    found = solve(Problem(clients, GRAPH, LAM))
    assert found.certificate.exact
    return found


def off(run, best):
    return np.abs(run.x - best.x).max()


def anything(count, dim=3):
    """A dual start that is neither zero nor antisymmetric."""
    return LAM * np.asarray(jax.random.normal(jax.random.key(1), (count, dim)), float)


def test_corrected_reaches_the_optimum_and_proves_it(clients, best):
    run = pdmm(clients, GRAPH, LAM, rounds=1500)

    assert off(run, best) < 1e-7
    assert gap_bound(clients, GRAPH, LAM, run.x, run.u) < 1e-6


def test_corrected_reaches_the_optimum_from_any_duals(clients, best):
    run = pdmm(clients, GRAPH, LAM, rounds=1500, duals=anything(len(GRAPH)))

    assert off(run, best) < 1e-7


@pytest.mark.slow
def test_corrected_reaches_the_optimum_with_a_fifth_of_the_blocks(clients, best):
    turns = random_turns(jax.random.key(0), 12, len(GRAPH), share=0.2)

    run = pdmm(clients, GRAPH, LAM, rounds=4000, turns=turns)

    assert off(run, best) < 1e-4
    assert objective(clients, GRAPH, LAM, run.x) / best.value - 1 < 1e-6


def test_corrected_works_on_a_graph_of_neighbors_with_weights(clients):
    graph = nearest(clients.gradient(np.zeros((12, 3))), 3)
    assert not graph.is_uniform
    best = solve(Problem(clients, graph, 0.2))

    run = pdmm(clients, graph, 0.2, rounds=4000)

    assert objective(clients, graph, 0.2, run.x) / best.value - 1 < 1e-6


def test_duals_shown_on_the_way_are_feasible_and_bound_the_gap(clients, best):
    seen = []

    def watch(count, x, u):
        seen.append((gap_bound(clients, GRAPH, LAM, x, u), objective(clients, GRAPH, LAM, x) - best.value))
        assert (np.linalg.norm(u, axis=1) <= LAM * (1 + 1e-12)).all()
        return count == 40

    run = pdmm(clients, GRAPH, LAM, rounds=100, watch=watch)

    assert run.rounds == 40
    assert all(bound >= gap for bound, gap in seen)


def test_printed_is_right_from_an_antisymmetric_start_with_all_duals(clients, best):
    run = as_printed(clients, GRAPH, LAM, rounds=1500)

    assert off(run, best) < 1e-7


@pytest.mark.parametrize("case", ["half of the duals", "non-zero start"])
def test_printed_comes_to_rest_away_from_the_optimum(clients, best, case):
    """Update (16) leaves out the pairs (j, i): what is not antisymmetric in the duals is never noticed."""
    pairs = 2 * len(GRAPH)
    options = (
        {"turns": random_turns(jax.random.key(0), 12, pairs, duals=0.5)}
        if case == "half of the duals"
        else {"duals": anything(pairs)}
    )
    values = []

    def watch(count, x, u):
        values.append(objective(clients, GRAPH, LAM, x))
        return False

    run = as_printed(clients, GRAPH, LAM, rounds=2500, watch=watch, **options)

    assert abs(values[-1] - values[-50]) < 1e-6 * best.value
    assert off(run, best) > 1e-3
    assert values[-1] - best.value > 1e-4


@pytest.mark.parametrize("case", ["half of the duals", "non-zero start"])
def test_with_the_missing_terms_it_solves_the_problem_of_twice_the_strength(clients, case):
    best = solve(Problem(clients, GRAPH, 2 * 0.2))
    pairs = 2 * len(GRAPH)
    options = (
        {"turns": random_turns(jax.random.key(0), 12, pairs, duals=0.5)}
        if case == "half of the duals"
        else {"duals": anything(pairs)}
    )

    run = as_printed(clients, GRAPH, 0.2, rounds=2500, both=True, **options)

    assert off(run, best) < 1e-4


def test_without_the_backward_step_it_diverges(clients, best):
    run = pdmm(clients, GRAPH, LAM, steps=Steps(tau=1.0, nu=0.0), rounds=300)

    assert not off(run, best) < 0.1


def test_only_those_in_turn_move(clients):
    start = np.asarray(jax.random.normal(jax.random.key(0), (12, 3)), float)
    turn = Turn(clients=np.array([2, 5]), edges=np.array([0]))

    run = pdmm(clients, GRAPH, LAM, start=start, turns=[turn], rounds=1)

    assert np.flatnonzero((run.x != start).any(1)).tolist() == [2, 5]


def test_turns_have_the_sizes_asked_for():
    turn, other = (next(random_turns(jax.random.key(seed), 10, 40, share=0.2, duals=0.5)) for seed in (0, 1))

    assert (len(turn.clients), len(turn.edges), len(turn.duals)) == (2, 8, 20)
    assert len(set(turn.edges.tolist())) == 8
    assert turn.edges.tolist() != other.edges.tolist()
    with pytest.raises(BadValue, match="duals"):
        next(random_turns(jax.random.key(0), 10, 40, duals=0.0))


def test_the_default_rho_is_half_the_smoothness_over_the_degree(clients):
    assert good_rho(clients, 11.0) == pytest.approx(0.5 * np.median(clients.lipschitz) / 11)
