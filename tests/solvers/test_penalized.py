"""Personal models near a shared one for any loss: solutions against other solvers, batches, and bounds of curvature."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from ellipses_world import LOSSES, tables
from referee import own_loss, solved

from plures.errors import BadData, BadValue, Unsupported
from plures.solvers import (
    Clients,
    Penalized,
    as_clients,
    consensus,
    curvature_bounds,
    points_as_clients,
)
from plures.solvers import penalized as module
from plures.solvers.prox import own_best
from plures.solvers.squared_penalty import held_together

LAMS = np.array([0.0, 1e-8, 0.05, 1.0, 30.0, 1e6, np.inf])
WEIGHTS = np.arange(1, 7) / 21
EACH = np.array([[0.1, 0.0, 2.0, 5.0, 1.0, 0.3], [0.5, np.inf, 2.0, np.inf, 0.0, 1.0], [0.0] * 5 + [3.0]])


def clients_of(loss, seed=0, ridge=1e-2):
    world = tables(loss, seed=seed, num=6)
    return as_clients(world.x, world.y, loss=loss, ridge=ridge)


def renamed(clients):
    """The same losses under a name that no formula knows."""
    return replace(clients, link=replace(clients.link, name="mine"))


@pytest.mark.parametrize("loss", LOSSES)
def test_no_slope_is_left_at_any_strength(loss):
    problem = Penalized(clients_of(loss), WEIGHTS)

    found = problem.solve(LAMS)
    left = problem.optimality(found.shared, found.own, LAMS)

    # An offset of a strong pull is known to rounding only: 1e-16 times lam.
    assert (left.slope < 1e-9 + 1e-15 * np.where(np.isinf(LAMS), 0, LAMS)).all()
    assert (left.apart < 1e-14 * (1 + np.abs(found.own).max())).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_no_slope_is_left_where_every_client_has_its_own_strength(loss):
    problem = Penalized(clients_of(loss), WEIGHTS)

    found = problem.solve(EACH)
    left = problem.optimality(found.shared, found.own, EACH)

    assert (left.slope < 1e-9).all()
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


def side_by_side(count=3):
    """Several problems of six clients, and one ``Clients`` with all of them."""
    alone = [clients_of("logistic", seed=seed) for seed in range(count)]
    longest = max(clients.a.shape[1] for clients in alone)

    def padded(values):
        return np.pad(values, [(0, 0), (0, longest - values.shape[1])] + [(0, 0)] * (values.ndim - 2))

    parts = (np.concatenate([padded(getattr(clients, name)) for clients in alone]) for name in ("a", "y", "share"))
    return alone, Clients(*parts, alone[0].ridge, alone[0].link)


@pytest.mark.parametrize("lams", [LAMS, EACH], ids=["one", "each"])
def test_problems_side_by_side_are_solved_as_if_alone(lams):
    alone, together = side_by_side()
    problem = Penalized(together, WEIGHTS, num_problems=3)

    found = problem.solve(lams)

    assert found.own.shape == (len(lams), 3, 6, together.dim)
    for place, clients in enumerate(alone):
        wanted = Penalized(clients, WEIGHTS).solve(lams)
        np.testing.assert_allclose(found.own[:, place], wanted.own, atol=1e-7)
        np.testing.assert_allclose(found.shared[:, place], wanted.shared, atol=1e-7)
    values = problem.value(found.shared, found.own, lams)
    np.testing.assert_allclose(values[:, 1], Penalized(alone[1], WEIGHTS).value(*_at(found, 1), lams), rtol=1e-12)


def _at(found, place):
    return found.shared[:, place], found.own[:, place]


def test_squared_errors_side_by_side_have_an_axis_too():
    points = np.random.default_rng(0).normal(size=(6, 2))

    found = Penalized(points_as_clients(points), num_problems=2).solve([1.0])

    mean = points.reshape(2, 3, 2).mean(1, keepdims=True)
    np.testing.assert_allclose(found.own[0], (points.reshape(2, 3, 2) + mean) / 2, atol=1e-14)


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
    """At the clients' own minimizers no slope is left, and yet they are no solution of an infinite strength."""
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

    def value(models):
        return problem.value(models[None, 0], models[None, 1:], EACH[:1])[0]

    gradient = np.zeros_like(both)
    for place in np.ndindex(both.shape):
        step = np.zeros_like(both)
        step[place] = 1e-5
        gradient[place] = (value(both + step) - value(both - step)) / 2e-5

    found = problem.optimality(shared[None], own[None], EACH[:1])

    assert found.slope[0] == pytest.approx(np.linalg.norm(gradient), rel=1e-7)
    mean = (WEIGHTS * EACH[0]) @ own / (WEIGHTS @ EACH[0])
    assert found.apart[0] == pytest.approx(np.linalg.norm(shared - mean))


def test_optimality_takes_one_strength_and_one_pair_of_models():
    problem = Penalized(clients_of("logistic"), WEIGHTS)
    found = problem.solve([2.0])

    off = problem.optimality(found.shared[0] + 0.1, found.own[0], 2.0)

    # The shared model's own part is 2 * 0.1 in each coordinate; clients' parts are p_i times it.
    assert off.slope == pytest.approx(0.2 * np.sqrt(problem.dim * (1 + WEIGHTS @ WEIGHTS)))
    assert off.apart == pytest.approx(0.1 * np.sqrt(problem.dim))


def test_squares_between_all_pairs_are_a_pull_to_the_mean():
    """gamma sum_{i<j} |x_i - x_j|^2, with the value of that problem."""
    clients, gamma = clients_of("logistic"), 0.03

    found = held_together(clients, gamma)

    pairs = sum(np.sum((found.x[i] - found.x[j]) ** 2) for i in range(6) for j in range(i))
    wanted = Penalized(clients).solve([12 * gamma])
    np.testing.assert_allclose(found.x, wanted.own[0], atol=1e-9)
    assert found.value == pytest.approx(clients.value(found.x).sum() + gamma * pairs, rel=1e-12)
    assert 0 < found.steps < 20


def test_bounds_of_squared_errors_are_eigenvalues():
    clients = clients_of("least_squares")

    found = curvature_bounds(clients)

    values = np.linalg.eigvalsh(clients.curve(np.zeros((6, clients.dim))))
    assert found.least == pytest.approx(values.min())
    assert found.most == pytest.approx(values.max())


@pytest.mark.parametrize("loss", ["logistic", "multinomial", "squared_hinge", "huber"])
def test_no_model_bends_a_loss_more_than_the_bound(loss):
    clients, rng = clients_of(loss), np.random.default_rng(0)

    found = curvature_bounds(clients)

    alone = own_best(clients, np.zeros((6, clients.dim))).x
    assert found.least == pytest.approx(np.linalg.eigvalsh(clients.curve(alone)).min(), rel=1e-6)
    for size in (0.1, 1.0, 3.0):
        values = np.linalg.eigvalsh(clients.curve(size * rng.normal(size=(6, clients.dim))))
        assert values.max() <= found.most * (1 + 1e-12)


def test_bounds_are_taken_where_asked():
    clients = clients_of("logistic")
    there = np.full((6, clients.dim), 2.0)

    assert curvature_bounds(clients, there).least == np.linalg.eigvalsh(clients.curve(there)).min()


def test_a_loss_without_a_bound_is_refused_by_name():
    with pytest.raises(Unsupported, match="the curvature of poisson has no bound"):
        curvature_bounds(clients_of("poisson"))


def test_a_flat_loss_is_refused_by_client():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 9, 2)), rng.normal(size=(3, 9))
    x[1, :, 1] = 0.0

    with pytest.raises(BadData, match=r"client 1 is not strongly convex.*a ridge would do"):
        curvature_bounds(as_clients(x, y, loss="least_squares", ridge=0.0, intercept=False))


@pytest.mark.parametrize("bad", [-1.0, np.nan])
@pytest.mark.parametrize("loss", ["logistic", "least_squares"])
def test_strengths_below_zero_are_refused_by_value(loss, bad):
    with pytest.raises(BadValue, match=rf"lam must be 0 or more.*got {bad}"):
        Penalized(clients_of(loss)).solve([1.0, bad])


def test_problems_and_weights_must_fit_the_clients():
    clients = clients_of("logistic")

    with pytest.raises(BadValue, match=r"num_problems must be a divisor of the number of clients, 6, got 4"):
        Penalized(clients, num_problems=4)
    with pytest.raises(BadValue, match="3 positive numbers that sum to 1"):
        Penalized(clients, WEIGHTS, num_problems=2)
