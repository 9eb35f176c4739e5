"""The exact solution: closed forms, an interior-point method for every loss and graph, symmetries, hard cases."""

import sys
from functools import cache

import numpy as np
import pytest
from ellipses_world import GRAPHS, LOSSES, ellipses, graph_of, hinge, tables
from referee import Referee, same_partition, spots
from scipy.spatial.distance import pdist

from plures.solvers import (
    Problem,
    as_clients,
    complete,
    consensus,
    from_edges,
    nearest,
    objective,
    points_as_clients,
    solve,
)
from plures.solvers import newton as newton_module
from plures.solvers.fused_problem import _unproved, connected, rounded, tidy
from plures.solvers.partition import Partition
from plures.solvers.splitting import SplittingRun


def alpha_hat(clients, graph):
    return consensus(clients, graph).alpha_hat


# Closed forms


@pytest.mark.parametrize("alpha", [0.5, 2.0, 2.4, 2.6, 100.0])
def test_two_points_come_nearer_by_alpha_each_until_they_meet(alpha):
    clients = points_as_clients([[0.0, 0.0], [3.0, 4.0]])

    found = solve(Problem(clients, complete(2), alpha))

    step = min(alpha, 2.5) * np.array([0.6, 0.8])
    np.testing.assert_allclose(found.x, [step, [3.0, 4.0] - step], atol=1e-9)
    assert found.num_clusters == (1 if alpha > 2.5 else 2)
    assert found.certificate.exact


def test_two_clients_with_curvatures_of_their_own():
    """f_i = c_i / 2 (x - a_i)^2: x_1 = a_1 + alpha / c_1, x_2 = a_2 - alpha / c_2; they meet at the weighted mean."""
    clients = as_clients(
        [[[2.0]], [[1.0]]], [[0.0], [6.0]], loss="least_squares", ridge=0.0, intercept=False
    )  # c = 4 and 1, a = 0 and 6

    apart, met = (solve(Problem(clients, complete(2), alpha)) for alpha in (2.0, 10.0))

    np.testing.assert_allclose(apart.x[:, 0], [0.5, 4.0], atol=1e-10)
    np.testing.assert_allclose(met.x[:, 0], [1.2, 1.2], atol=1e-10)


def test_points_on_a_line_move_by_how_many_are_on_either_side():
    clients = points_as_clients([[0.0], [1.0], [3.0], [7.0]])

    found = solve(Problem(clients, complete(4), 0.2))

    np.testing.assert_allclose(found.x[:, 0], [0.6, 1.2, 2.8, 6.4], atol=1e-10)
    assert found.value == pytest.approx(
        0.5 * (0.36 + 0.04 + 0.04 + 0.36) + 0.2 * (0.6 + 2.2 + 5.8 + 1.6 + 5.2 + 3.6)
    )


def test_a_group_that_meets_moves_as_one():
    clients = points_as_clients([[0.0], [1.0], [20.0], [30.0]])

    found = solve(Problem(clients, complete(4), 0.8))

    np.testing.assert_allclose(found.x[:, 0], [2.1, 2.1, 19.2, 27.6], atol=1e-10)
    np.testing.assert_array_equal(found.sizes, np.bincount(found.label))


def test_a_chain_is_held_by_its_edges():
    clients = points_as_clients([[0.0], [3.0], [0.0]])
    chain = from_edges(3, [[0, 1], [1, 2]])

    apart, met = (solve(Problem(clients, chain, alpha)) for alpha in (0.5, 1.5))

    np.testing.assert_allclose(apart.x[:, 0], [0.5, 2.0, 0.5], atol=1e-10)
    assert apart.num_clusters == 3  # the two ends are equal, and not fused: no edge joins them
    np.testing.assert_allclose(met.x[:, 0], [1.0, 1.0, 1.0], atol=1e-10)
    assert met.num_clusters == 1


def test_for_large_alpha_all_share_the_global_model():
    clients = hinge(0)

    found = solve(Problem(clients, complete(12), 1e3))

    model = consensus(clients).model
    np.testing.assert_allclose(found.models, model[None], atol=1e-9)
    np.testing.assert_allclose(clients.gradient(found.x).sum(0), 0, atol=1e-8)
    assert found.certificate.exact


# An interior-point method


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", GRAPHS)
def test_values_and_clusters_are_those_of_an_interior_point_method(loss, name):
    world = tables(loss, num=6 if loss == "multinomial" else 9)
    clients = as_clients(world.x, world.y, loss=loss, ridge=1e-2)
    graph = graph_of(name, clients, 3)
    referee = Referee(clients, graph)

    for share in (0.15, 0.7):
        alpha = share * alpha_hat(clients, graph)
        found = solve(Problem(clients, graph, alpha))
        value, x = referee.solve(alpha)
        assert found.certificate.exact
        assert found.value == pytest.approx(value, rel=1e-6)
        assert found.value == pytest.approx(objective(clients, graph, alpha, found.x), rel=1e-12)
        np.testing.assert_allclose(found.x, x, atol=1e-3)
        assert same_partition(found.label, spots(x)), (share, found.label, spots(x))


@pytest.mark.parametrize(("name", "alpha"), [("complete", 0.05), ("knn", 0.05)])
def test_sixty_clients_are_those_of_an_interior_point_method(name, alpha):
    clients = hinge(0, per=20, ridge=1e-3)
    graph = graph_of(name, clients, 5)

    found = solve(Problem(clients, graph, alpha))

    value, x = Referee(clients, graph).solve(alpha)
    assert found.certificate.exact
    assert found.value == pytest.approx(value, rel=1e-6)
    assert same_partition(found.label, spots(x))


def test_the_planted_clusters_are_found_on_the_graph_of_neighbors():
    world = ellipses(0)
    clients = as_clients(world.x, world.y, loss="squared_hinge")

    found = solve(Problem(clients, graph_of("knn", clients, 5), 0.2))

    assert found.certificate.exact
    assert same_partition(found.label, world.kind)


@pytest.mark.parametrize("name", ["complete", "knn"])
def test_clusters_part_at_alpha_hat(name):
    clients = hinge(0, per=5)
    graph = graph_of(name, clients, 4)
    referee = Referee(clients, graph)

    start = consensus(clients, graph)
    below, above = (solve(Problem(clients, graph, share * start.alpha_hat)) for share in (0.99, 1.01))

    assert start.low <= start.high <= start.low * (1 + 1e-2)
    assert below.num_clusters > 1
    assert above.num_clusters == 1
    assert below.certificate.exact
    assert above.certificate.exact
    assert spots(referee.solve(0.99 * start.alpha_hat)[1], 1e-5).max() > 0
    assert spots(referee.solve(1.01 * start.alpha_hat)[1], 1e-5).max() == 0


def test_weighted_clients_count_more():
    world = tables("logistic", num=6)
    clients = as_clients(world.x, world.y, ridge=1e-2).weighted(np.array([1.0, 5.0, 1.0, 0.2, 1.0, 2.0]))
    graph = complete(6)

    found = solve(Problem(clients, graph, 0.02))

    value, x = Referee(clients, graph).solve(0.02)
    assert found.value == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(found.x, x, atol=1e-3)


# Hard cases


@pytest.mark.parametrize(("seed", "per"), [(7, 4), (3, 4), (3, 5)])
def test_clusters_split_again_as_alpha_grows(seed, per):
    """For losses that are not quadratic the number of clusters is not monotone: both ends are proved, and refereed."""
    clients = hinge(seed, per=per)
    graph = complete(clients.num)
    most = alpha_hat(clients, graph)
    referee = Referee(clients, graph)

    weak, strong = (solve(Problem(clients, graph, share * most)) for share in (0.5, 0.95))

    assert weak.certificate.exact
    assert strong.certificate.exact
    assert weak.num_clusters == 3 < strong.num_clusters
    for found, share in ((weak, 0.5), (strong, 0.95)):
        assert same_partition(found.label, spots(referee.solve(share * most)[1], 1e-5))


@cache
def hard_clients():
    """A draw with clusters as near as 4e-7 to one another."""
    rng = np.random.default_rng(2)
    x, y = [], []
    for k in range(3):
        angle = 2 * np.pi * k / 3
        along, across = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])

        def draw(number, side, along=along, across=across):
            radius, angle = np.sqrt(rng.uniform(size=number)), rng.uniform(0, 2 * np.pi, size=number)
            off = (4 * radius * np.cos(angle))[:, None] * along + (radius * np.sin(angle))[:, None] * across
            return side * 2.52 * along + off

        points = np.vstack([draw(100, 1), draw(100, -1)])
        first, second = (rng.permutation(100).reshape(20, 5) for _ in range(2))
        for own in np.hstack([first, 100 + second]):
            x.append(points[own])
            y.append(np.repeat([1.0, 0.0], 5))
        draw(2000, 1), draw(2000, -1)
    return as_clients(x, y, loss="squared_hinge", ridge=1e-3)


def test_clusters_that_nearly_touch_are_told_apart():
    clients, graph = hard_clients(), complete(60)

    found = solve(Problem(clients, graph, 0.04))

    value, x = Referee(clients, graph).solve(0.04)
    assert found.value == pytest.approx(value, rel=1e-6)
    assert found.certificate.gap >= objective(clients, graph, 0.04, found.x) - value - 1e-8 * value
    assert found.certificate.exact
    assert found.num_clusters == 43
    assert pdist(found.models).min() < 1e-6
    assert same_partition(found.label, spots(x, 1e-7))


UNCLOSED = 0.031918252866459454  # where turns of splitting and fusing do not end


def test_where_turns_do_not_end_the_value_is_still_the_best():
    clients, graph = hard_clients(), complete(60)

    found = solve(Problem(clients, graph, UNCLOSED))

    value, _ = Referee(clients, graph).solve(UNCLOSED)
    least = objective(clients, graph, UNCLOSED, found.x)
    assert least == pytest.approx(value, rel=1e-6)
    assert found.certificate.gap >= least - value - 1e-8 * value
    assert found.value == pytest.approx(value, rel=1e-6)


def test_what_is_not_proved_has_the_value_and_the_gap_of_the_models_returned():
    """Labels that an approximate method shows may put together what is far apart."""
    clients, graph = hinge(0), complete(12)
    problem = Problem(clients, graph, 0.3)
    best = solve(problem)
    shown = SplittingRun(best.x, best.certificate.u, np.zeros(12, int), 0)

    found = _unproved(problem, shown)

    value = objective(clients, graph, 0.3, found.x)
    assert found.value == pytest.approx(value, rel=1e-9)
    assert value - best.value <= found.certificate.gap


@pytest.mark.parametrize("way", ["rounded norms", "Douglas-Rachford"])
def test_when_fusing_and_splitting_fails_another_way_shows_the_clusters(monkeypatch, way):
    module = sys.modules[solve.__module__]
    clients = hinge(0)
    graph = complete(12)
    alpha = 0.4 * alpha_hat(clients, graph)
    wanted = solve(Problem(clients, graph, alpha))
    turned, made = module.fuse_and_split, []

    def failing(problem, first, start, **options):
        """The first two tries end at the first partition they look at."""
        made.append(first)
        return turned(problem, first, start, **{**options, **({"tries": 1} if len(made) < 3 else {})})

    monkeypatch.setattr(module, "fuse_and_split", failing)
    monkeypatch.setattr(module, "guess_partition", lambda features: np.arange(len(features)) // 6)
    monkeypatch.setattr(module, "SMOOTH", 10**9 if way == "rounded norms" else 0)

    found = solve(Problem(clients, graph, alpha))

    assert found.how == way
    assert found.certificate.exact
    assert same_partition(found.label, wanted.label)
    np.testing.assert_allclose(found.x, wanted.x, atol=1e-7)


@pytest.mark.parametrize("name", ["complete", "knn"])
def test_rounded_norms_show_the_clusters(name):
    clients = hinge(1)
    graph = graph_of(name, clients, 3)
    alpha = 0.4 * alpha_hat(clients, graph)
    wanted = solve(Problem(clients, graph, alpha))

    alone = Partition(clients, graph, np.arange(12)).at(alpha)
    shown = rounded(alone, np.zeros((12, 3)))

    assert same_partition(shown.label, wanted.label)
    np.testing.assert_allclose(shown.x, wanted.x, atol=1e-4)


def test_large_newton_systems_are_solved_as_small_ones_are(monkeypatch):
    clients = hinge(0)
    problem = Problem(clients, graph_of("knn", clients, 3), 0.05)
    wanted = solve(problem)

    monkeypatch.setattr(newton_module, "DENSE", 0)
    monkeypatch.setattr(newton_module, "MOST_DENSE", 0)
    found = solve(problem)

    np.testing.assert_allclose(found.x, wanted.x, atol=1e-9)


# Starts


@pytest.mark.parametrize(
    "guess",
    [np.zeros(12, int), np.arange(12), np.arange(12) // 4, 5 * (np.arange(12) % 2)],
    ids=["together", "alone", "right", "wrong, with gaps in the labels"],
)
def test_any_guess_leads_to_the_solution(guess):
    clients = hinge(2)
    graph = complete(12)
    alpha = 0.4 * alpha_hat(clients, graph)
    wanted = solve(Problem(clients, graph, alpha))

    found = solve(Problem(clients, graph, alpha), guess=guess, start=np.random.default_rng(0).normal(size=(12, 3)))

    assert found.certificate.exact
    assert same_partition(found.label, wanted.label)
    np.testing.assert_allclose(found.x, wanted.x, atol=1e-7)


def test_a_warm_start_takes_fewer_rounds():
    clients = hinge(2)
    graph = complete(12)
    alpha = 0.4 * alpha_hat(clients, graph)
    cold = solve(Problem(clients, graph, alpha))

    warm = solve(Problem(clients, graph, alpha), guess=cold.label, start=cold.x, duals=cold.certificate.u)

    np.testing.assert_allclose(warm.x, cold.x, atol=1e-9)
    assert warm.rounds < cold.rounds


def test_labels_are_renamed_in_the_order_in_which_they_come():
    np.testing.assert_array_equal(tidy(np.array([7, 7, 2, 9, 2])), [0, 0, 1, 2, 1])


def test_a_group_without_edges_between_its_parts_is_two():
    chain = from_edges(3, [[0, 1], [1, 2]])

    np.testing.assert_array_equal(connected(chain, np.array([0, 1, 0])), [0, 1, 2])
    np.testing.assert_array_equal(connected(complete(3), np.array([0, 1, 0])), [0, 1, 0])


@pytest.mark.slow
def test_a_hundred_thousand_clients_are_proved():
    rng = np.random.default_rng(0)
    world = ellipses(0, per=500, pool=20_000)
    x, y = np.stack(world.x), np.stack(world.y)
    copies = 67
    x = np.concatenate([x + 0.3 * rng.normal(size=x.shape) for _ in range(copies)])
    clients = as_clients(x, np.concatenate([y] * copies), loss="squared_hinge")
    graph = nearest(consensus(clients).gradients, 10)

    found = solve(Problem(clients, graph, 2_000.0), guess=np.tile(world.kind, copies))

    assert clients.num > 100_000
    assert found.certificate.exact
    assert found.certificate.gap <= 1e-6 * found.value
