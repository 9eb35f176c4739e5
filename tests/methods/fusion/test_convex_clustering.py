"""Convex clustering: the exact optimum with any cohort, exact clusters, certificates, newcomers, parts and layers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fusing import RIDGE, Hinge

from plures import run
from plures.aggregate import Edges, complete_graph, fuse
from plures.data.federation import from_arrays
from plures.data.worlds.known_optima import quadratics
from plures.errors import BadValue, UnknownChoice
from plures.method import ALONE, phases_of
from plures.methods.fusion.convex_clustering import convex_clustering, fuse_anchors
from plures.methods.fusion.norm_penalty import FusedClusters, PenaltyState, nearest_cluster
from plures.methods.fusion.warm_start import newton_rounds
from plures.methods.penalized.vector import make_part
from plures.models.linear import squared_hinge
from plures.models.mlp import mlp
from plures.types import Data, Plan, Rows

HINGE = Hinge(per_group=20)
SMALL = Hinge(per_group=4, seed=1)
BEFORE = 7  # rounds for the global model, and one for gradients


def played(method, federation, rounds, **settings):
    """The server after so many rounds of the method's own."""
    return run(method, federation, rounds=BEFORE + rounds, executor="vectorized", **settings).state.server


def excess(problem, server, solved):
    """How far the objective is above its minimum, relatively."""
    alpha, edges = float(server.memory.alpha), server.memory.edges
    return problem.objective(server.own, alpha, edges) / solved[1] - 1


@pytest.fixture(scope="module")
def solved():
    """The paper's problem at alpha = 0.08 on the complete graph."""
    return HINGE.solved(0.08, complete_graph(60))


PAPER = convex_clustering(HINGE.model, alpha=0.08, graph="complete")
QUIET = replace(PAPER, views=replace(PAPER.views, report=None))


@pytest.fixture(scope="module")
def everyone():
    return jax.device_get(played(QUIET, HINGE.federation, 30))


# The optimum


@pytest.mark.slow
def test_everyone_together_reaches_the_optimum_in_few_rounds(everyone, solved):
    assert abs(excess(HINGE, everyone, solved)) < 1e-6


@pytest.mark.slow
def test_a_fifth_of_the_clients_in_a_round_reaches_the_same_optimum(solved):
    server = played(QUIET, HINGE.federation, 150, cohort=12)

    assert abs(excess(HINGE, server, solved)) < 1e-6


def test_models_and_duals_satisfy_the_optimality_conditions(everyone):
    """grad f_i(x_i) + sum_e u_e = 0 with |u_e| <= alpha w_e, and u_e = alpha w_e (x_i - x_j) / |x_i - x_j|."""
    models, duals = np.asarray(everyone.own, float), np.asarray(everyone.memory.duals, float)
    heads, tails, weights = map(np.asarray, everyone.memory.edges)
    forces = HINGE.gradients(models)
    np.add.at(forces, heads, duals)
    np.add.at(forces, tails, -duals)
    apart = models[heads] - models[tails]
    length = np.linalg.norm(apart, axis=1)

    # Gradients are of size alpha * 59 = 4.7, and change by 40 times what a model is off.
    assert np.abs(forces).max() < 2e-2
    assert (np.linalg.norm(duals, axis=1) <= 0.08 * weights * (1 + 1e-5)).all()
    differ = length > 1e-3
    np.testing.assert_allclose(duals[differ], 0.08 * apart[differ] / length[differ, None], atol=2e-3)


def test_clusters_are_those_of_the_solution_and_exactly_equal(everyone, solved):
    labels, models = np.asarray(everyone.memory.labels), np.asarray(everyone.own)
    wanted = np.linalg.norm(solved[0][:, None] - solved[0][None], axis=2) < 1e-3

    np.testing.assert_array_equal(labels[:, None] == labels[None], wanted)
    assert len(np.unique(models, axis=0)) == len(np.unique(labels)) < 10


def test_the_threshold_parts_one_model_from_several(everyone):
    """At the global model the condition of consensus is about the gradients there: alpha_hat of this problem."""
    alpha = float(everyone.memory.threshold)

    for factor, single in ((0.98, False), (1.02, True)):
        models, _ = HINGE.solved(factor * alpha, complete_graph(60))
        assert (np.ptp(models, axis=0).max() < 1e-3) == single


def test_the_certificate_bounds_what_is_missing():
    """From everybody at 0, after a few rounds of half of the clients."""
    method, edges = convex_clustering(SMALL.model, alpha=0.2, graph="complete", rho=5.0), complete_graph(12)
    _, least = SMALL.solved(0.2, edges)
    main = alone(method, edges, 0.2)
    for seed in range(3):
        settings = {"rounds": 6, "cohort": 6, "seed": seed, "executor": "vectorized"}
        server = jax.device_get(run(main, SMALL.federation, **settings).state.server)
        models = np.where(server.heard[:, None], server.trained, server.own)
        missing = SMALL.objective(models, 0.2, edges) - least

        said = method.views.report(server).findings[0]

        bound = float(said.split("is within ")[1].split(" of its minimum")[0])
        assert 0 <= missing <= 1.01 * bound


@pytest.mark.slow
def test_gradients_are_known_of_clients_that_were_not_asked_yet():
    """The certificate counts everybody: before its first round a client stands at the global model, with its slope there."""
    server = jax.device_get(played(convex_clustering(SMALL.model, t=0.3), SMALL.federation, 2, cohort=2))

    models = np.where(server.heard[:, None], server.trained, server.own)
    np.testing.assert_allclose(server.gradients, SMALL.gradients(models), atol=1e-3)
    assert np.abs(server.gradients).max(1).min() > 0.1


def alone(method, edges, alpha, threshold=1.0):
    """The method's own rounds on a given graph, without those before."""

    def start(key, number):
        server = method.start(key, number)
        memory = server.memory._replace(edges=edges, alpha=jnp.asarray(alpha), threshold=jnp.asarray(threshold))
        return server._replace(memory=memory)

    return replace(method, start=start, phases=ALONE, views=replace(method.views, report=None))


def test_the_global_model_is_found_in_a_few_rounds_of_newton():
    part = make_part(HINGE.model, None, RIDGE)

    server = run(newton_rounds(part, Plan()), HINGE.federation, rounds=6, executor="vectorized").state.server

    shared = np.asarray(part.vector(server.shared), float)
    assert np.abs(HINGE.gradients(np.tile(shared, (60, 1))).mean(0)).max() < 1e-5


# What it says


def test_above_the_threshold_it_is_the_global_model_and_says_so():
    method = convex_clustering(SMALL.model, local="sgd")

    server = alone(method, complete_graph(12), 0.3, threshold=0.2).start(jax.random.key(0), 12)

    said = method.views.report(server).findings[0]
    assert "alpha 0.3 (alpha_hat 0.2, t 1.5); 1 cluster of 12 clients" in said
    assert "alpha is above alpha_hat: this is the global model" in said


def test_a_graph_too_dense_for_memory_is_told_before_the_run():
    dense, sparse = (convex_clustering(mlp((20,), 10), graph=name) for name in ("complete", "knn"))

    (said,) = dense.views.forecast(2000, ()).warnings

    assert "GB" in said
    assert "use graph='knn'" in said
    assert not sparse.views.forecast(200, ()).warnings


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"t": 0.0}, BadValue, "t must be"),
        ({"t": float("nan")}, BadValue, "t must be"),
        ({"alpha": -1.0}, BadValue, "alpha must be"),
        ({"alpha": float("nan")}, BadValue, "alpha must be"),
        ({"rho": 0.0}, BadValue, "rho must be"),
        ({"ridge": -1.0}, BadValue, "ridge must be"),
        ({"num_neighbors": 0}, BadValue, "num_neighbors must be"),
        ({"share": 2.0}, BadValue, "share must be"),
        ({"warm": -1}, BadValue, "warm must be"),
        ({"fit_rounds": 0}, BadValue, "fit_rounds must be"),
        ({"num_offered": 0}, BadValue, "num_offered must be"),
        ({"graph": "knm"}, UnknownChoice, "did you mean 'knn'"),
        ({"local": "lbfgs"}, UnknownChoice, "newton"),
        ({"norm": "layer"}, UnknownChoice, "did you mean 'layers'"),
        ({"refit": "clusters"}, UnknownChoice, "did you mean 'cluster'"),
        ({"part": "body"}, UnknownChoice, "no part of this model is called 'body'. Known: head"),
    ],
)
def test_what_cannot_be_is_refused(options, error, match):
    with pytest.raises(error, match=match):
        convex_clustering(SMALL.model, **options)


# Newcomers


def test_a_newcomer_fuses_exactly_where_the_larger_problem_would_fuse_it(everyone):
    """With the clusters held as they are; on the complete graph."""
    labels, first = np.unique(everyone.memory.labels, return_index=True)
    centers, sizes = everyone.own[first], np.bincount(everyone.memory.labels).astype(np.float32)
    part = make_part(SMALL.model, None, RIDGE)
    x, y = jnp.asarray(SMALL.x, jnp.float32), jnp.asarray(SMALL.y)

    def place(client):
        given = FusedClusters(jnp.asarray(centers), jnp.asarray(sizes), jnp.asarray(labels), jnp.asarray(0), 0.08)
        rows = Rows(x[client], y[client], 0, SMALL.rows, SMALL.rows)
        rest = part.rest(SMALL.model.init(jax.random.key(0)))
        return nearest_cluster(part, "whole", "complete", jax.random.key(0), rest, given, Data(rows, rows))

    places = jax.jit(jax.vmap(place))(jnp.arange(SMALL.number))
    models = np.stack([SMALL.newcomer(centers, sizes, 0.08, client) for client in range(SMALL.number)])
    apart = np.linalg.norm(models[:, None] - centers[None], axis=2)
    joins = apart.min(1) < 1e-4
    assert joins.sum() > 6
    np.testing.assert_array_equal(places[joins], apart.argmin(1)[joins])


def test_among_neighbors_a_newcomer_goes_by_its_loss_and_not_to_the_largest_cluster(everyone):
    """alpha of a graph of neighbors is large, and clusters' sizes would outweigh any gradient."""
    _, first = np.unique(everyone.memory.labels, return_index=True)
    centers = jnp.asarray(everyone.own[first][:3])
    part = make_part(HINGE.model, None, RIDGE)
    rest = part.rest(HINGE.model.init(jax.random.key(0)))
    given = FusedClusters(centers, jnp.array([19.0, 17.0, 12.0]), jnp.arange(3), jnp.asarray(0), jnp.asarray(5.6))
    x, y = jnp.asarray(HINGE.x, jnp.float32), jnp.asarray(HINGE.y)

    def place(graph, client):
        rows = Rows(x[client], y[client], 0, HINGE.rows, HINGE.rows)
        return int(nearest_cluster(part, "whole", graph, jax.random.key(0), rest, given, Data(rows, rows)))

    clients = (0, 25, 50)
    losses = np.stack([HINGE.losses(np.tile(center, (60, 1))) for center in np.asarray(centers, float)])
    assert [place("knn", client) for client in clients] == losses.argmin(0)[list(clients)].tolist()
    assert len({place("complete", client) for client in clients}) == 1


@pytest.mark.slow
def test_newcomers_get_the_model_of_their_group():
    """Groups of 6, 4 and 2 clients: the largest does not take everybody."""
    world = quadratics(num_clients=18, num_groups=3, dim=2, rows=4, gap=20.0, sigma=0.1)
    apart = [world.federation.names[k] for k in (1, 4, 2, 5, 8, 11)]
    seen, unseen = world.federation.hold_out(clients=apart)
    method = convex_clustering(world.model, t=0.05, num_neighbors=1, rho=1.0)

    result = run(method, seen, unseen=unseen, rounds=BEFORE + 8)

    table = result.clients.to_dicts()
    by_group = {row["group"]: row["cluster"] for row in table[:12]}
    assert len(set(by_group.values())) == 3
    assert [row["cluster"] for row in table[12:]] == [by_group[row["group"]] for row in table[12:]]
    assert {row["group"] for row in table[12:]} == {1, 2}


# Variants


@pytest.mark.slow
def test_a_refit_gives_every_cluster_the_model_it_would_have_alone():
    """Two groups of quadratics around 0 and 20: the refitted models are there, the clustered ones are not."""
    world = quadratics(num_clients=6, dim=2, rows=4, gap=20.0, sigma=0.1)
    method = convex_clustering(
        world.model, t=0.5, ridge=0.0, rho=1.0, refit="cluster", fit_rounds=10, num_neighbors=2
    )

    server = played(method, world.federation, 10 + 8)

    np.testing.assert_allclose(server.own, world.truth, atol=1e-4)
    assert server.memory.labels.tolist() == [0, 1, 0, 1, 0, 1]
    before = played(phases_of(method)[-2].method, world.federation, 10)
    assert 1.0 < float(before.own[0, 0]) < 19.0


def test_norms_of_layers_are_problems_of_their_own():
    """Bias and kernel of the hidden layer are 2 + 4 numbers, and so are those of the head."""
    part = make_part(mlp((2,), 2, hidden=(2,)), None, 0.0)
    anchors = jnp.asarray(np.random.default_rng(0).normal(size=(6, 12)), jnp.float32)
    edges = complete_graph(6)
    memory = PenaltyState(edges, jnp.zeros(()), jnp.asarray(0.5), jnp.zeros((15, 12)), jnp.zeros(6, jnp.int32))

    found, _ = jax.jit(lambda anchors: fuse_anchors(part, "layers", 1000, anchors, jnp.asarray(2.0), memory))(
        anchors
    )

    assert [(one.start, one.stop) for one in part.layers] == [(0, 6), (6, 12)]
    apart = jax.jit(fuse)
    for layer in (slice(0, 6), slice(6, 12)):
        alone = apart(anchors[:, layer], edges, 0.5 / 2.0 / np.sqrt(6))
        np.testing.assert_allclose(found[:, layer], alone.points, atol=1e-5)


def network_world():
    """Six clients in two groups with opposite labels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 12, 3)).astype(np.float32)
    y = (x[..., 0] > 0).astype(int)
    y[3:] = 1 - y[3:]
    return from_arrays(
        x.reshape(-1, 3), y.reshape(-1), np.repeat([f"c{k}" for k in range(6)], 12), split=np.repeat(["train"], 72)
    )


@pytest.mark.slow
def test_only_the_named_part_is_personal_and_travels():
    model = mlp((3,), 2, hidden=(4,))
    method = replace(
        convex_clustering(model, part="head", t=0.3, warm=2, plan=Plan(epochs=2, batch=4)),
        views=replace(
            convex_clustering(model, part="head", t=0.3, warm=2, plan=Plan(epochs=2, batch=4)).views, report=None
        ),
    )

    result = run(method, network_world(), rounds=2 + 6 + 1 + 5, executor="vectorized")

    served = np.asarray(result.state.server.own)
    assert served.shape == (6, 10)  # two outputs of four inputs and a bias
    assert result.runner.traffic(method).up == result.runner.traffic(method).down == 40
    assert np.abs(served[0] - served[3]).max() > 1e-2
    bodies = [leaf.shape for leaf in result.state.server.rest.leaves]
    assert bodies == [(4,), (4, 3)]


@pytest.mark.slow
def test_a_network_is_trained_by_the_steps_of_the_plan():
    model = mlp((3,), 2, hidden=(4,))
    options = {"local": "sgd", "norm": "layers", "t": 0.3, "warm": 2, "plan": Plan(epochs=2, batch=4, lr=0.2)}
    method = convex_clustering(model, **options)

    result = run(
        replace(method, views=replace(method.views, report=None)),
        network_world(),
        rounds=2 + 1 + 10,
        executor="vectorized",
    )

    server = jax.device_get(result.state.server)
    assert np.isfinite(server.own).all()
    said = method.views.report(server).findings[0]
    assert "no certificate" in said
    assert "fixed-point residual" in said


@pytest.mark.slow
def test_a_client_with_one_class_stays_finite():
    """Without a ridge its loss has no minimum in the bias."""
    x, y = SMALL.x.astype(np.float32), SMALL.y.copy()
    y[0] = 1
    problem = Hinge(per_group=4, seed=1)
    problem.x, problem.y = x, y
    method = convex_clustering(squared_hinge((2,)), alpha=1e-5, graph="complete")

    server = played(method, problem.federation, 5)

    assert np.isfinite(np.asarray(server.own)).all()
    assert np.abs(np.asarray(server.own)).max() < 1e3


def test_who_was_never_heard_has_no_say():
    """A client without rows is pulled along: without it the others get the same models."""
    world = quadratics(num_clients=3, num_groups=3, dim=1, rows=2, gap=4.0, sigma=0.0)
    method = convex_clustering(world.model, alpha=0.5, graph="complete", ridge=0.0)
    start = method.start(jax.random.key(0), 3)
    edges = complete_graph(3)
    memory = start.memory._replace(edges=Edges(*edges), alpha=jnp.asarray(0.5))
    server = start._replace(memory=memory, heard=jnp.array([True, True, False]))
    targets = jnp.array([[0.0], [4.0], [99.0]])
    step = jax.jit(method.merge)
    for _ in range(60):
        aims = 2 * server.own - server.anchors
        # argmin (x - a)^2 / 2 + (x - v)^2 / 2, less v
        server = step(server, (targets - aims) / 2, jnp.array([1.0, 1.0, 0.0]), jnp.arange(3))

    # Each end is pulled with 1/2 by the other end, and by the third with 1/2 as well: 0 + 1 and 4 - 1.
    np.testing.assert_allclose(server.own[:2], [[1.0], [3.0]], atol=1e-3)
    assert 1.0 - 1e-3 <= float(server.own[2, 0]) <= 3.0 + 1e-3
