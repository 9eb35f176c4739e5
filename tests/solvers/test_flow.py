"""Does a group stay together? Closed forms of phi, its bracket, and the split where it does not."""

import cvxpy as cp
import numpy as np
import pytest
from ellipses_world import blobs, graph_of, hinge
from referee import Referee, same_partition, spots

from plures.solvers import (
    Flow,
    Partition,
    Problem,
    complete,
    consensus,
    flow_test,
    from_edges,
    fuse,
    mixed,
    nearest,
    threshold,
)
from plures.solvers.certificate import certify
from plures.solvers.estimator import alone
from plures.solvers.flow import HAIR, best_cut, client_ratios, cut_ratio
from plures.solvers.fused_problem import solve
from plures.solvers.newton import centered

GRAPHS = {
    "complete": lambda points: complete(len(points)),
    "knn": lambda points: nearest(points, 3),
    "mixture": lambda points: mixed(nearest(points, 3), 0.2),
}


def forces(num=10, seed=1):
    b = blobs(num, seed)
    return b - b.mean(0)


def least_strain(b, graph):
    """phi by an interior-point method: the least t with a flow of outflow b and |u_e| <= t w_e."""
    u, t = cp.Variable((len(graph), b.shape[1])), cp.Variable()
    flows = [graph.divergence @ u == b, cp.norm(u, 2, axis=1) <= t * graph.weight]
    cp.Problem(cp.Minimize(t), flows).solve(solver="CLARABEL")
    return float(t.value)


# phi


@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_two_clients_are_held_by_what_pulls_them_apart(weight):
    b = np.array([[3.0, 4.0], [-3.0, -4.0]])

    found = threshold(b, from_edges(2, [[0, 1]], [weight]))

    assert found.low == pytest.approx(5 / weight, rel=1e-12)
    assert found.high == pytest.approx(5 / weight, rel=1e-12)


def test_on_a_chain_every_edge_holds_what_lies_beyond_it():
    b = forces(7)
    weight = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 1.0])
    chain = from_edges(7, np.stack([np.arange(6), np.arange(1, 7)], axis=1), weight)

    found = threshold(b, chain, tol=1e-9)

    wanted = (np.linalg.norm(np.cumsum(b, 0)[:-1], axis=1) / weight).max()
    assert found.high == pytest.approx(wanted, rel=1e-9)


def test_on_a_star_every_ray_holds_its_own_client():
    b = forces(6)
    star = from_edges(6, [[0, i] for i in range(1, 6)])

    found = threshold(b, star)

    assert found.high == pytest.approx(np.linalg.norm(b[1:], axis=1).max(), rel=1e-9)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_phi_is_that_of_an_interior_point_method(name, seed):
    b = forces(10, seed)
    graph = GRAPHS[name](b)

    found = threshold(b, graph, tol=1e-4, most=4_000)

    phi = least_strain(b, graph)
    assert found.low <= phi * (1 + 1e-6)
    assert phi <= found.high * (1 + 1e-6)
    assert found.high <= phi * (1 + 1e-3)
    np.testing.assert_allclose(graph.outflow(found.u), b, atol=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_on_the_complete_graph_phi_lies_between_the_bounds_of_the_paper(seed):
    """max |b_i| / (n - 1)  <=  phi  <=  max |b_i - b_j| / n."""
    b = forces(9, seed)
    size = np.linalg.norm(b, axis=1).max()
    wide = max(np.linalg.norm(b[i] - b[j]) for i in range(9) for j in range(9))

    found = threshold(b, complete(9))

    assert size / 8 <= found.high * (1 + 1e-9)
    assert found.low <= wide / 9 * (1 + 1e-9)
    assert wide / 9 <= 2 * size / 9 * (1 + 1e-9)
    assert found.low <= found.high


def test_any_direction_gives_a_lower_bound():
    b = forces(10)
    graph = nearest(b, 3)
    phi = least_strain(b, graph)

    rng = np.random.default_rng(0)
    pulls = [cut_ratio(b, rng.normal(size=b.shape), graph) for _ in range(50)]

    assert max(*pulls, client_ratios(b, graph).max()) <= phi * (1 + 1e-6)
    assert client_ratios(b, graph).max() == pytest.approx(max(np.linalg.norm(b, axis=1) / graph.degree), rel=1e-12)


# The test


@pytest.mark.parametrize("name", GRAPHS)
def test_a_group_holds_above_phi_and_not_below(name):
    b = forces(10)
    graph = GRAPHS[name](b)
    phi = least_strain(b, graph)

    for share in (0.3, 0.8, 0.99):
        assert flow_test(b, graph, share * phi).high > share * phi * (1 + HAIR)
    for share in (1.01, 1.3, 5.0):
        assert flow_test(b, graph, share * phi).high <= share * phi * (1 + HAIR)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_group_falls_into_the_clusters_of_its_forces(name, share):
    """At least: what belongs together may be split too, and fuses again when it is solved for."""
    b = forces(10)
    graph = GRAPHS[name](b)
    alpha = share * least_strain(b, graph)

    found = flow_test(b, graph, alpha)

    wanted = fuse(b, graph, alpha, tol=1e-12)
    assert found.low > alpha
    assert found.split.max() > 0
    assert len(set(zip(found.split, wanted.label, strict=True))) == found.split.max() + 1
    np.testing.assert_allclose(found.drift, wanted.points, atol=0.02 * np.abs(wanted.points).max())


def test_going_apart_lowers_the_value_by_the_square_of_the_drift():
    """<b, v> - alpha sum w |v_i - v_j| = |v|^2 for v the clustered forces."""
    b = forces(10)
    graph = nearest(b, 3)
    alpha = 0.5 * least_strain(b, graph)

    v = flow_test(b, graph, alpha).drift

    assert np.vdot(b, v) - alpha * graph.penalty(v) == pytest.approx((v**2).sum(), rel=1e-2)


@pytest.mark.parametrize("alpha_share", [0.5, 2.0])
def test_flows_have_the_forces_as_outflow_whether_they_hold_or_not(alpha_share):
    b = forces(10)
    graph = nearest(b, 3)

    found = flow_test(b, graph, alpha_share * least_strain(b, graph))

    np.testing.assert_allclose(graph.outflow(found.u), b, atol=1e-10)
    strain = (np.linalg.norm(found.u, axis=1) / graph.weight).max()
    assert found.high == pytest.approx(strain, rel=1e-12)


def test_where_the_bracket_is_open_nothing_is_shown():
    b = forces(10)
    found = Flow(np.zeros((45, 2)), 1.0, 3.0, np.zeros(10, int), b)

    assert found.high > 2.0 * (1 + HAIR)
    assert found.high <= 3.0 * (1 + HAIR)


def test_a_flow_known_before_is_used():
    b = forces(10)
    graph = nearest(b, 3)
    known = threshold(b, graph, tol=1e-4, most=4_000)

    found = flow_test(b, graph, known.high, start=known.u, max_steps=0)

    assert found.high <= known.high * (1 + HAIR)


def test_a_large_group_is_cut_in_two_where_alpha_cannot_hold_it():
    b = np.concatenate([np.tile([[1.0, 0.0]], (20, 1)), np.tile([[-1.0, 0.0]], (20, 1))])
    graph = complete(40)  # the cut has 400 edges and must hold 20

    found = flow_test(b, graph, 0.049)

    assert same_partition(found.split, np.repeat([0, 1], 20))
    assert flow_test(b, graph, 0.051).high <= 0.051 * (1 + HAIR)
    assert best_cut(b, b, graph, 0.051) is None


def test_one_client_holds_together():
    assert flow_test(np.zeros((1, 2)), complete(1), 1.0).high <= 1.0 * (1 + HAIR)


# As part of the whole: does the test say what the clustering of the whole problem is?


@pytest.mark.parametrize("name", ["complete", "knn"])
def test_flows_agree_with_an_interior_point_method_on_twenty_alphas(name):
    """A partition is the solution's exactly if all its clusters hold: those found by the referee do, others do not."""
    clients = hinge(2, per=4)
    graph = graph_of(name, clients, 3)
    referee = Referee(clients, graph)
    alphas = consensus(clients, graph).alpha_hat * np.geomspace(1.2, 0.12, 20)
    truths = [spots(referee.solve(alpha)[1]) for alpha in alphas]

    for alpha, truth in zip(alphas, truths, strict=True):
        for guess in [truth, *_coarser(truth, graph)]:
            partition = Partition(clients, graph, guess)
            found = centered(partition.at(alpha), _spread_models(partition))
            if not len(found.met):
                proof = certify(partition, alpha, found.w)[0]
                assert proof.exact == same_partition(guess, truth), (alpha, guess, truth)


def _coarser(label, graph):
    """The partition with its first cluster joined to each of the clusters it has an edge to."""
    for other in range(1, min(int(label.max()) + 1, 2)):
        joint = np.where(label == other, 0, label)
        joint = np.unique(joint, return_inverse=True)[1]
        inside = joint[graph.head] == joint[graph.tail]
        if graph.among(inside).num_parts == joint.max() + 1:
            yield joint


def _spread_models(partition):
    """Every group's own best, so that no two start at one spot."""
    return alone(partition, np.zeros((partition.number, partition.clients.dim)))


@pytest.mark.parametrize("name", ["complete", "knn"])
def test_solutions_have_the_clusters_of_an_interior_point_method_on_twenty_alphas(name):
    clients = hinge(2, per=4)
    graph = graph_of(name, clients, 3)
    referee = Referee(clients, graph)

    for alpha in consensus(clients, graph).alpha_hat * np.geomspace(1.2, 0.12, 20):
        found = solve(Problem(clients, graph, alpha))
        value, x = referee.solve(alpha)
        assert found.certificate.exact
        assert found.value == pytest.approx(value, rel=1e-6)
        assert same_partition(found.label, spots(x)), alpha
