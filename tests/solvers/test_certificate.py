"""What proves an answer: bounds that hold for anything, and proofs that go red when models, duals or clusters are wrong."""

import numpy as np
import pytest
from ellipses_world import GRAPHS, LOSSES, blobs, graph_of, hinge, tables

from plures.solvers import (
    Partition,
    Problem,
    as_clients,
    certify,
    complete,
    consensus,
    douglas_rachford,
    gap_bound,
    nearest,
    objective,
    points_as_clients,
    solve,
    true_gap,
)
from plures.solvers.certificate import flow_margins, forces
from plures.solvers.point_fusion import within


@pytest.fixture(scope="module", params=["complete", "knn"])
def case(request):
    """Clients, a graph, an alpha at which there are a few clusters, and the solution."""
    clients = hinge(2, per=4)
    graph = graph_of(request.param, clients, 3)
    alpha = 0.4 * consensus(clients, graph).alpha_hat
    return clients, graph, alpha, solve(Problem(clients, graph, alpha))


# Bounds


@pytest.mark.parametrize("loss", LOSSES)
def test_the_objective_is_losses_plus_weighted_distances(loss):
    world = tables(loss, num=5)
    clients = as_clients(world.x, world.y, loss=loss)
    graph = nearest(blobs(5), 2)
    x = 0.3 * np.random.default_rng(0).normal(size=(5, clients.dim))

    found = objective(clients, graph, 0.7, x)

    apart = [w * np.linalg.norm(x[i] - x[j]) for i, j, w in zip(graph.head, graph.tail, graph.weight, strict=True)]
    assert found == pytest.approx(clients.value(x).sum() + 0.7 * sum(apart), rel=1e-12)


def test_at_the_solution_there_is_no_gap(case):
    clients, graph, alpha, found = case

    assert found.certificate.exact
    assert gap_bound(clients, graph, alpha, found.x, found.certificate.u) <= 1e-12 * found.value
    assert abs(true_gap(clients, graph, alpha, found.x, found.certificate.u)) <= 1e-12 * found.value


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0])
def test_bounds_are_above_the_true_gap_for_any_models_and_allowed_duals(case, size):
    clients, graph, alpha, found = case
    rng = np.random.default_rng(0)

    for _ in range(20):
        x = found.x + size * rng.normal(size=found.x.shape)
        u = found.certificate.u + size * alpha * rng.normal(size=found.certificate.u.shape)
        u = within(u, alpha * graph.weight)
        excess = objective(clients, graph, alpha, x) - found.value
        tight = true_gap(clients, graph, alpha, x, u)
        loose = gap_bound(clients, graph, alpha, x, u)
        assert excess <= tight + 1e-10
        assert tight <= loose + 1e-10


@pytest.mark.parametrize("name", ["complete", "knn"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_bounds_are_above_the_true_gap_at_every_round(name, share):
    clients = hinge(0, per=4)
    graph = graph_of(name, clients, 3)
    alpha = share * consensus(clients, graph).alpha_hat
    least = solve(Problem(clients, graph, alpha)).value
    seen = []

    def watch(count, x, u):
        assert (np.linalg.norm(u, axis=1) <= alpha * graph.weight * (1 + 1e-12)).all()
        seen.append(
            (
                objective(clients, graph, alpha, x) - least,
                true_gap(clients, graph, alpha, x, u),
                gap_bound(clients, graph, alpha, x, u),
            )
        )
        return False

    douglas_rachford(clients, graph, alpha, rounds=25, watch=watch)

    excess, tight, loose = np.array(seen).T
    assert len(excess) == 25
    assert (excess <= tight + 1e-9).all()
    assert (tight <= loose + 1e-9).all()
    assert tight[-1] < 1e-3 * tight[0]


def test_models_are_as_near_as_the_bound_says(case):
    """|x - x*|^2 <= 2 (G) / least curvature."""
    clients, graph, alpha, found = case
    rng = np.random.default_rng(0)

    for size in (1e-6, 1e-3, 1e-1):
        x = found.x + size * rng.normal(size=found.x.shape)
        gap = gap_bound(clients, graph, alpha, x, found.certificate.u)
        assert ((x - found.x) ** 2).sum() <= 2 * gap / clients.least_curvature


def test_wrong_duals_leave_a_gap(case):
    clients, graph, alpha, found = case
    u = found.certificate.u

    for wrong in (np.zeros_like(u), -u, 0.99 * u, np.roll(u, 1, axis=0)):
        assert gap_bound(clients, graph, alpha, found.x, wrong) > 1e-6 * found.value
        assert true_gap(clients, graph, alpha, found.x, wrong) > 1e-9 * found.value


def test_duals_that_are_not_allowed_prove_nothing(case):
    clients, graph, alpha, found = case
    half = 0.5 * alpha
    least = solve(Problem(clients, graph, half)).value

    gap = gap_bound(clients, graph, half, found.x, found.certificate.u)

    assert gap >= objective(clients, graph, half, found.x) - least


# Forces


@pytest.mark.parametrize("name", GRAPHS)
def test_forces_sum_to_zero_over_every_cluster(name):
    clients = hinge(2, per=4)
    graph = graph_of(name, clients, 3)
    alpha = 0.4 * consensus(clients, graph).alpha_hat
    found = solve(Problem(clients, graph, alpha))

    b, u = forces(found.partition, alpha, found.models)

    sums = np.stack([b[found.label == k].sum(0) for k in range(found.num_clusters)])
    np.testing.assert_allclose(sums, 0, atol=1e-10)
    assert not u[found.partition.inside].any()
    np.testing.assert_allclose(
        np.linalg.norm(u, axis=1)[~found.partition.inside], (alpha * graph.weight)[~found.partition.inside]
    )


def test_on_the_complete_graph_forces_are_what_a_client_differs_from_its_cluster():
    """b_i = grad g_k - grad f_i: everybody in a cluster feels the same from outside."""
    clients = hinge(2, per=4)
    found = solve(Problem(clients, complete(12), 0.3))
    gradient = clients.gradient(found.x)

    b, _ = forces(found.partition, 0.3, found.models)

    for k in range(found.num_clusters):
        own = gradient[found.label == k]
        np.testing.assert_allclose(b[found.label == k], own.mean(0) - own, atol=1e-10)


def test_forces_are_those_of_the_formula(case):
    clients, graph, alpha, found = case
    x = found.x
    wanted = -clients.gradient(x)
    for i, j, w in zip(graph.head, graph.tail, graph.weight, strict=True):
        if found.label[i] != found.label[j]:
            push = alpha * w * (x[i] - x[j]) / np.linalg.norm(x[i] - x[j])
            wanted[i] -= push
            wanted[j] += push

    np.testing.assert_allclose(forces(found.partition, alpha, found.models)[0], wanted, atol=1e-10)


# Proofs


def test_the_solution_is_proved_by_duals_that_balance_every_client(case):
    clients, graph, alpha, found = case

    proof = found.certificate

    assert proof.exact
    assert (np.linalg.norm(proof.u, axis=1) <= alpha * graph.weight * (1 + 1e-8)).all()
    np.testing.assert_allclose(clients.gradient(found.x) + graph.outflow(proof.u), 0, atol=1e-9)
    outside = ~found.partition.inside
    way = graph.gaps(found.x)[outside]
    way = alpha * graph.weight[outside, None] * way / np.linalg.norm(way, axis=1, keepdims=True)
    np.testing.assert_allclose(proof.u[outside], way, atol=1e-10)
    assert (proof.low <= proof.high * (1 + 1e-9)).all()


def test_a_partition_that_is_too_coarse_is_not_proved(case):
    clients, graph, alpha, _ = case
    whole = Partition(clients, graph, np.zeros(clients.num, int))

    proof, tests = certify(whole, alpha, consensus(clients).model[None])

    assert not proof.exact
    assert proof.low[0] > alpha
    assert proof.gap == np.inf
    assert tests[0].split.max() > 0


def test_a_partition_that_is_too_fine_is_not_proved(case):
    clients, graph, alpha, found = case
    everyone = Partition(clients, graph, np.arange(clients.num))

    proof, _ = certify(everyone, alpha, found.x)

    assert not proof.exact
    assert not proof.solved


def test_a_client_in_the_wrong_cluster_is_not_proved(case):
    clients, graph, alpha, found = case
    big = int(np.argmax(found.sizes))
    label = found.label.copy()
    label[np.flatnonzero(label != big)[0]] = big
    label = np.unique(label, return_inverse=True)[1]
    partition = Partition(clients, graph, label)
    w = np.stack([found.x[label == k].mean(0) for k in range(partition.number)])

    assert not certify(partition, alpha, w)[0].exact


def test_models_that_are_off_are_not_proved(case):
    *_, alpha, found = case

    proof, _ = certify(found.partition, alpha, found.models + 0.05)

    assert not proof.exact


def test_a_wrong_model_proves_no_consensus():
    """Below alpha_hat there is no consensus; some models show a flow all the same, with a gradient that is left over."""
    clients = hinge(0, per=4)
    graph = complete(clients.num)
    start = consensus(clients, graph)
    whole = Partition(clients, graph, np.zeros(clients.num, int))
    rng = np.random.default_rng(0)

    for _ in range(100):
        proof, _ = certify(whole, 0.999 * start.low, start.model[None] + 0.02 * rng.normal(size=(1, 3)), search=100)
        assert not proof.exact


def test_what_is_proved_has_a_finite_gap():
    world = tables("huber")
    clients = as_clients(world.x, world.y, loss="huber", ridge=0.0)
    graph = complete(clients.num)

    found = solve(Problem(clients, graph, 1.5 * consensus(clients, graph).alpha_hat))

    assert not found.certificate.exact or np.isfinite(found.certificate.gap)


def test_models_apart_by_less_than_the_gap_allows_are_not_called_distinct():
    points = np.array([[0.0], [1.0]])
    clients, graph = points_as_clients(points), complete(2)
    apart = Partition(clients, graph, np.array([0, 1]))

    right, _ = certify(apart, 0.2, np.array([[0.2], [0.8]]))
    off, _ = certify(apart, 0.2, np.array([[0.2], [0.8]]) + np.array([[0.2], [-0.2]]))

    assert right.exact
    assert right.gap <= 1e-25
    assert not off.solved
    assert off.gap == pytest.approx(0.04, rel=1e-9)  # 2 (0.2)^2 / 2: both are 0.2 off, with curvature 1


def test_margins_are_alpha_minus_phi():
    """0, 3 and 6 with a model at 3: the outer points pull with 3 on two edges each, so phi is 3/2."""
    clients, graph = points_as_clients(np.array([[0.0], [3.0], [6.0]])), complete(3)
    whole = Partition(clients, graph, np.zeros(3, int))

    found = flow_margins(whole, 4.0, np.array([[3.0]]), np.array([3.0]))
    known = flow_margins(whole, 4.0, np.array([[3.0]]), np.array([1.5]))

    np.testing.assert_allclose(found, [4.0 - 1.5], rtol=5e-3)
    assert found[0] <= 2.5
    np.testing.assert_array_equal(known, [2.5])


def test_a_client_alone_has_no_margin():
    clients, graph = points_as_clients(np.array([[0.0], [3.0]])), complete(2)

    found = flow_margins(Partition(clients, graph, np.arange(2)), 1.0, np.array([[1.0], [2.0]]), np.zeros(2))

    np.testing.assert_array_equal(found, [np.inf, np.inf])
