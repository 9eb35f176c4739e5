"""Paths: the threshold of consensus, solutions from the largest alpha down, their events, and which one to take."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from ellipses_world import blobs, graph_of, hinge
from referee import same_partition

from plures.errors import BadValue, UnknownChoice
from plures.solvers import (
    ClusterPath,
    ConvexClustering,
    Problem,
    complete,
    consensus,
    follow,
    from_edges,
    grid,
    points_as_clients,
    solve,
)
from plures.solvers.path import (
    by_criterion,
    by_hold_out,
    by_plateau,
    change,
    criterion,
)


def step(alpha, label):
    """What a path looks at in a solution."""
    label = np.array(label)
    return SimpleNamespace(label=label, certificate=SimpleNamespace(alpha=alpha), num_clusters=int(label.max()) + 1)


def changes(path):
    """What happens to the partition as alpha falls, where anything does."""
    steps = (change(above.label, below.label) for above, below in pairwise(path.solutions))
    return [what for what in steps if what]


def path_of(*labels):
    """A path whose alphas are 1, 1/2, 1/4, .."""
    return ClusterPath(tuple(step(0.5**place, label) for place, label in enumerate(labels)), 1.0)


# Consensus


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_two_points_are_held_by_half_their_distance(weight):
    clients = points_as_clients([[0.0, 0.0], [3.0, 4.0]])

    found = consensus(clients, from_edges(2, [[0, 1]], [weight]))

    np.testing.assert_allclose(found.model, [1.5, 2.0], atol=1e-12)
    assert found.alpha_hat == pytest.approx(2.5 / weight, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_on_the_complete_graph_alpha_hat_lies_between_the_bounds_of_the_paper(seed):
    """max |g_i| / (N - 1)  <=  alpha_hat  <=  max |g_i - g_j| / N  <=  2 (N - 1) / N times the lower bound."""
    clients = hinge(seed, per=5)

    found = consensus(clients, complete(15))

    g = found.gradients
    least = np.linalg.norm(g, axis=1).max() / 14
    most = max(np.linalg.norm(g[i] - g[j]) for i in range(15) for j in range(15)) / 15
    assert least <= found.high * (1 + 1e-9)
    assert found.low <= most * (1 + 1e-9)
    assert most <= 2 * 14 / 15 * least * (1 + 1e-9)
    assert found.low <= found.high == found.alpha_hat


def test_any_cut_gives_a_lower_bound():
    clients = hinge(0, per=4)
    graph = graph_of("knn", clients, 3)
    found = consensus(clients, graph)

    for k in range(12):
        side = np.arange(12) <= k
        across = graph.weight[side[graph.head] != side[graph.tail]].sum()
        if across:
            assert np.linalg.norm(found.gradients[side].sum(0)) / across <= found.high * (1 + 1e-9)


def test_gradients_at_the_global_model_sum_to_zero():
    found = consensus(hinge(0, per=4))

    np.testing.assert_allclose(found.gradients.sum(0), 0, atol=1e-8)


def test_weights_move_the_global_model():
    clients = points_as_clients([[0.0], [3.0]]).weighted(np.array([1.0, 2.0]))

    assert consensus(clients).model[0] == pytest.approx(2.0, rel=1e-10)


def test_sixty_clients_have_an_alpha_hat_like_that_of_the_paper():
    """0.147 and 0.148 in two draws; another is near."""
    found = consensus(hinge(0, per=20, ridge=1e-3), complete(60))

    assert 0.13 < found.low <= found.high < 0.17
    assert found.high / found.low < 1 + 1e-2


# Following


@pytest.mark.parametrize("name", ["complete", "knn"])
def test_every_step_is_the_solution_by_itself(name):
    clients = hinge(7, per=4)
    graph = graph_of(name, clients, 3)
    start = consensus(clients, graph)
    alphas = grid(start.alpha_hat, 8, 0.05)

    found = follow(clients, graph, alphas, start)

    for alpha, one in zip(alphas, found, strict=True):
        alone = solve(Problem(clients, graph, alpha))
        assert one.certificate.alpha == alpha
        assert one.certificate.exact
        assert one.value == pytest.approx(alone.value, rel=1e-8)
        assert same_partition(one.label, alone.label)
    assert found[0].num_clusters == 1


def test_a_path_tells_how_far_it_is():
    clients = hinge(0, per=3)
    start = consensus(clients, complete(9))
    told = []

    follow(clients, complete(9), grid(start.alpha_hat, 4, 0.1), start, tell=lambda *done: told.append(done))

    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_path_ends_where_there_are_too_many_clusters():
    clients = points_as_clients(blobs(12))
    start = consensus(clients, complete(12))
    alphas = grid(start.alpha_hat, 10, 0.02)

    whole, short = (follow(clients, complete(12), alphas, start, most=most) for most in (None, 5))

    assert len(whole) == 10
    counts = [one.num_clusters for one in whole]
    assert [one.num_clusters for one in short] == [count for count in counts if count <= 5]


def test_on_the_complete_graph_the_path_of_points_is_a_tree():
    clients = points_as_clients(blobs(12))
    start = consensus(clients, complete(12))

    found = ClusterPath(follow(clients, complete(12), grid(start.alpha_hat, 25, 0.02), start), start.alpha_hat)

    assert set(changes(found)) == {"split"}
    assert (found.num_clusters[0], found.num_clusters[-1]) == (1, 12)
    assert (np.diff(found.num_clusters) >= 0).all()
    np.testing.assert_allclose(found.t, np.geomspace(1, 0.02, 25), rtol=1e-12)


def test_the_path_of_other_losses_may_be_no_tree():
    clients = hinge(7, per=4)
    start = consensus(clients, complete(12))

    found = ClusterPath(follow(clients, complete(12), grid(start.alpha_hat, 12, 0.3), start), start.alpha_hat)

    assert all(one.certificate.exact for one in found.solutions)
    assert "merge" in changes(found)


def test_a_grid_goes_down_evenly_on_the_logarithmic_scale():
    np.testing.assert_allclose(grid(8.0, 4, 0.125), [8.0, 4.0, 2.0, 1.0], rtol=1e-12)


@pytest.mark.parametrize(("number", "least"), [(1, 0.1), (0, 0.1), (5, 0.0), (5, 1.0), (5, -1.0), (5, np.nan)])
def test_a_grid_needs_two_steps_and_an_end_below(number, least):
    with pytest.raises(BadValue):
        grid(1.0, number, least)


# Events


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        ([0, 0, 1], [1, 1, 0], ""),
        ([0, 0, 0], [0, 0, 1], "split"),
        ([0, 1, 2], [0, 1, 1], "merge"),
        ([0, 0, 1], [0, 1, 1], "regroup"),
        ([0, 0, 1, 2], [0, 1, 2, 2], "regroup"),
    ],
)
def test_changes_have_names(one, other, what):
    assert change(np.array(one), np.array(other)) == what


def test_changes_along_a_path():
    path = path_of([0, 0, 0], [0, 0, 0], [0, 1, 2], [0, 1, 1], [1, 0, 0])

    assert changes(path) == ["split", "merge"]
    np.testing.assert_array_equal(path.num_clusters, [1, 1, 3, 2, 2])


def test_plateaus_are_runs_of_one_partition_whatever_its_labels():
    path = path_of([0, 0, 0], [0, 0, 0], [0, 1, 2], [0, 1, 1], [1, 0, 0])

    assert path.plateaus() == [(0, 1), (2, 2), (3, 4)]
    assert path.plateau(0) == (1.0, 0.5)
    assert path.plateau(4) == (0.125, 0.0625)


# Selectors


def test_the_longest_plateau_of_a_fair_number_of_clusters_is_taken_in_its_middle():
    """One cluster lasts longest, and so do all six apart: neither says anything."""
    one, two, other, six = [0] * 6, [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1], list(range(6))
    path = path_of(one, one, one, one, one, other, two, two, two, six, six, six, six, six)

    found = by_plateau(path, SimpleNamespace(num=6))

    assert found == 7


def test_without_a_fair_plateau_the_criterion_decides():
    clients = points_as_clients(blobs(4))
    start = consensus(clients, complete(4))
    path = ClusterPath(follow(clients, complete(4), grid(start.alpha_hat, 5, 0.1), start), start.alpha_hat)

    assert by_plateau(path, clients) == by_criterion(path, clients)


def test_the_criterion_weighs_loss_and_numbers():
    """M log(mean loss) + K d log M, without ridges: 12 clients of 10 rows, d = 3."""
    clients = hinge(0, per=4)
    found = solve(Problem(clients, complete(12), 0.2))

    loss = (clients.value(found.x) - 0.5 * (found.x**2) @ clients.ridge).mean()

    wanted = 120 * np.log(loss) + 3 * found.num_clusters * np.log(120)
    assert criterion(clients, found) == pytest.approx(wanted, rel=1e-12)


def test_the_step_with_the_least_criterion_is_taken():
    clients = hinge(0, per=4)
    start = consensus(clients, complete(12))
    path = ClusterPath(follow(clients, complete(12), grid(start.alpha_hat, 8, 0.05), start), start.alpha_hat)

    found = by_criterion(path, clients)

    values = [criterion(clients, one) for one in path.solutions]
    assert values[found] == min(values)


def held_out(losses):
    """Clients whose held-out losses at step s are the rows of ``losses``."""
    held = SimpleNamespace(num=len(losses[0]), ridge=np.zeros(1), value=lambda x: np.array(losses[int(x[0, 0])]))
    return [SimpleNamespace(x=np.full((len(losses[0]), 1), s)) for s in range(len(losses))], held


def test_hold_out_takes_the_largest_alpha_within_a_standard_error_of_the_best():
    """Step 2 is best; step 1 is worse by 0.1 on average with a standard error of 0.1; step 0 is clearly worse."""
    steps, held = held_out([[5.0, 5.0, 5.0], [1.0, 1.3, 1.0], [1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])

    assert by_hold_out(steps, held) == 1


def test_hold_out_takes_the_best_where_others_are_clearly_worse():
    steps, held = held_out([[1.1, 1.1, 1.11], [1.0, 1.0, 1.0], [0.9, 1.2, 1.1]])

    assert by_hold_out(steps, held) == 1


def test_an_unknown_selector_is_refused():
    with pytest.raises(UnknownChoice, match=r"no selector is called 'aic'.*Known: bic, hold-out, plateau"):
        ConvexClustering(select="aic")
