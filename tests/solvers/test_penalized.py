"""Personal models near a shared one for any loss: solutions against other solvers, batches, and bounds of curvature."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from ellipses_world import LOSSES, tables
from penalized_value import optimality, value
from referee import own_loss, solved

from plures.errors import BadValue
from plures.solvers import (
    Penalized,
    as_clients,
    consensus,
)
from plures.solvers import penalized as module
from plures.solvers.prox import own_best

LAMS = np.array([0.0, 1e-8, 0.05, 1.0, 30.0, 1e6, np.inf])
WEIGHTS = np.arange(1, 7) / 21
EACH = np.array([[0.1, 0.0, 2.0, 5.0, 1.0, 0.3], [0.5, np.inf, 2.0, np.inf, 0.0, 1.0], [0.0] * 5 + [3.0]])


def clients_of(loss, seed=0, ridge=1e-2):
    world = tables(loss, seed=seed, num=6)
    return as_clients(world.x, world.y, loss=loss, ridge=ridge)


def renamed(clients):
    """The same losses under a name that no formula knows."""
    return replace(clients, loss=replace(clients.loss, name="mine"))


@pytest.mark.parametrize("loss", LOSSES)
def test_no_slope_is_left_at_any_strength(loss):
    problem = Penalized(clients_of(loss), WEIGHTS)

    found = problem.solve(LAMS)
    left = optimality(problem, found.shared, found.own, LAMS)

    # An offset of a strong pull is known to rounding only: 1e-16 times lam.
    assert (left.gradient < 1e-9 + 1e-15 * np.where(np.isinf(LAMS), 0, LAMS)).all()
    assert (left.apart < 1e-14 * (1 + np.abs(found.own).max())).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_no_slope_is_left_where_every_client_has_its_own_strength(loss):
    problem = Penalized(clients_of(loss), WEIGHTS)

    found = problem.solve(EACH)
    left = optimality(problem, found.shared, found.own, EACH)

    assert (left.gradient < 1e-9).all()
    assert (left.apart < 1e-13).all()


@pytest.mark.parametrize("loss", ["logistic", "huber"])
def test_an_interior_point_method_finds_the_same_models(loss):
    clients = clients_of(loss)
    shared, own = cp.Variable(clients.dim), cp.Variable((6, clients.dim))
    terms = [
        p * (own_loss(clients, i, own[i]) + 0.35 * cp.sum_squares(shared - own[i])) for i, p in enumerate(WEIGHTS)
    ]

    found = Penalized(clients, WEIGHTS).solve([0.7])

    np.testing.assert_allclose(found.own[0], solved(sum(terms), own), atol=1e-5)
    np.testing.assert_allclose(found.shared[0], shared.value, atol=1e-5)


@pytest.mark.parametrize("lams", [LAMS, EACH], ids=["one", "each"])
def test_newtons_method_solves_squared_errors_in_one_step_as_the_formula_does(lams):
    clients = clients_of("least_squares")

    exact = Penalized(clients, WEIGHTS).solve(lams)
    found = Penalized(renamed(clients), WEIGHTS).solve(lams, tol=1e-9)

    assert found.steps == 1
    np.testing.assert_allclose(found.own, exact.own, atol=1e-9)
    np.testing.assert_allclose(found.shared, exact.shared, atol=1e-9)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_the_ends_are_models_alone_and_the_global_model(loss):
    clients = clients_of(loss)

    found = Penalized(clients).solve([0.0, np.inf])

    alone = own_best(clients, np.zeros((6, clients.dim))).x
    np.testing.assert_allclose(found.own[0], alone, atol=1e-7)
    np.testing.assert_allclose(found.shared[0], alone.mean(0), atol=1e-7)
    np.testing.assert_allclose(found.shared[1], consensus(clients).model, atol=1e-7)
    np.testing.assert_array_equal(found.own[1], np.tile(found.shared[1], (6, 1)))


def test_a_client_of_double_weight_is_two_clients():
    clients = clients_of("logistic").take([0, 1])

    heavy = Penalized(clients, np.array([2.0, 1.0]) / 3).solve(LAMS)
    twice = Penalized(clients.take([0, 0, 1])).solve(LAMS)

    np.testing.assert_allclose(heavy.own, twice.own[:, [0, 2]], atol=1e-8)
    np.testing.assert_allclose(heavy.shared, twice.shared, atol=1e-8)


def test_batches_of_problems_change_nothing(monkeypatch):
    problem = Penalized(clients_of("squared_hinge"), WEIGHTS)
    whole = problem.solve(LAMS)

    monkeypatch.setattr(module, "MOST_FLOATS", 1)

    np.testing.assert_allclose(problem.solve(LAMS).own, whole.own, atol=1e-8)


def test_a_start_at_the_solution_needs_no_step():
    problem = Penalized(clients_of("logistic"), WEIGHTS)
    once = problem.solve([0.7], tol=1e-12)

    again = problem.solve([0.7], (once.shared[0], once.own[0]))

    assert once.steps > 2
    assert again.steps == 0
    np.testing.assert_array_equal(again.shared, once.shared)


@pytest.mark.parametrize("loss", ["logistic", "poisson", "huber"])
def test_a_start_far_away_ends_at_the_same_models(loss):
    problem, rng = Penalized(clients_of(loss), WEIGHTS), np.random.default_rng(0)
    start = 3 * rng.normal(size=problem.dim), 3 * rng.normal(size=(6, problem.dim))

    found = problem.solve(LAMS, start)

    np.testing.assert_allclose(found.own, problem.solve(LAMS).own, atol=1e-6)
    np.testing.assert_array_equal(found.own[-1], np.tile(found.shared[-1], (6, 1)))


def test_models_that_must_be_one_are_one_from_any_start():
    """At the clients' own minimizers no gradient is left, and yet they are no solution of an infinite strength."""
    clients = clients_of("logistic")
    alone = own_best(clients, np.zeros((6, clients.dim))).x

    found = Penalized(clients).solve([np.inf], (alone.mean(0), alone))

    np.testing.assert_allclose(found.own[0], np.tile(consensus(clients).model, (6, 1)), atol=1e-7)


def test_a_strength_that_is_solved_is_left_alone_while_another_moves():
    problem = Penalized(clients_of("logistic"), WEIGHTS)
    once = problem.solve([0.7])

    again = problem.solve([0.7, 50.0], (once.shared[0], once.own[0]))

    assert again.steps > 0
    np.testing.assert_array_equal(again.shared[0], once.shared[0])


def test_the_slope_is_the_gradients_norm():
    """By differences of the value in every coordinate."""
    problem, rng = Penalized(clients_of("logistic"), WEIGHTS), np.random.default_rng(0)
    shared, own = rng.normal(size=problem.dim), rng.normal(size=(6, problem.dim))
    both = np.concatenate([shared[None], own])

    def value_of(models):
        return value(problem, models[None, 0], models[None, 1:], EACH[:1])[0]

    gradient = np.zeros_like(both)
    for place in np.ndindex(both.shape):
        step = np.zeros_like(both)
        step[place] = 1e-5
        gradient[place] = (value_of(both + step) - value_of(both - step)) / 2e-5

    found = optimality(problem, shared[None], own[None], EACH[:1])

    assert found.gradient[0] == pytest.approx(np.linalg.norm(gradient), rel=1e-7)
    mean = (WEIGHTS * EACH[0]) @ own / (WEIGHTS @ EACH[0])
    assert found.apart[0] == pytest.approx(np.linalg.norm(shared - mean))


def test_optimality_takes_one_strength_and_one_pair_of_models():
    problem = Penalized(clients_of("logistic"), WEIGHTS)
    found = problem.solve([2.0])

    off = optimality(problem, found.shared[0] + 0.1, found.own[0], 2.0)

    # The shared model's own part is 2 * 0.1 in each coordinate; clients' parts are p_i times it.
    assert off.gradient == pytest.approx(0.2 * np.sqrt(problem.dim * (1 + WEIGHTS @ WEIGHTS)))
    assert off.apart == pytest.approx(0.1 * np.sqrt(problem.dim))


@pytest.mark.parametrize("bad", [-1.0, np.nan])
@pytest.mark.parametrize("loss", ["logistic", "least_squares"])
def test_strengths_below_zero_are_refused_by_value(loss, bad):
    with pytest.raises(BadValue, match=rf"lam must be 0 or more.*got {bad}"):
        Penalized(clients_of(loss)).solve([1.0, bad])


def test_weights_must_fit_the_clients():
    with pytest.raises(BadValue, match="3 positive numbers that sum to 1"):
        Penalized(clients_of("logistic").take([0, 1, 2]), WEIGHTS)
