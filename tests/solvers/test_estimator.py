"""Fitting as a user does it: units, paths and what is taken of them, refits, predictions, summaries, bad input."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from ellipses_world import LOSSES, ellipses, tables
from referee import same_partition

from plures.errors import BadData
from plures.solvers import FACTORS, Problem, complete, convex_clustering, from_edges, nearest, sketched, solve
from plures.solvers.estimator import _held_out
from plures.solvers.path import by_criterion, by_hold_out, by_plateau, consensus, follow
from plures.solvers.prox import own_best


@pytest.fixture(scope="module")
def world():
    return ellipses(0, per=5)


def how(**options):
    return convex_clustering(**{"loss": "squared_hinge", "ridge": 1e-2, "graph": "complete"} | options)


@pytest.fixture(scope="module")
def path_fit(world):
    return how(num_lams=6).fit(world.x, world.y)


@pytest.fixture(scope="module")
def plain(world):
    return how(lam=0.5).fit(world.x, world.y)


# Units


@pytest.mark.parametrize("scaling", ["t", *FACTORS])
def test_lam_is_in_the_unit_asked_for(world, plain, scaling):
    lam = 0.5 if scaling == "t" else plain.alpha / FACTORS[scaling](15)

    found = how(lam=lam, scaling=scaling).fit(world.x, world.y)

    assert found.alpha == pytest.approx(plain.alpha, rel=1e-12)
    assert found.t == pytest.approx(0.5, rel=1e-12)
    np.testing.assert_allclose(found.models[found.label], plain.models[plain.label], atol=1e-9)


@pytest.mark.parametrize("graph", ["complete", "knn", "mixture"])
@pytest.mark.parametrize("t", [0.99, 1.0, 1.01])
def test_from_alpha_hat_on_there_is_one_model(world, graph, t):
    found = how(lam=t, graph=graph, num_neighbors=4).fit(world.x, world.y)

    assert found.certificate.exact
    assert (len(found.models) == 1) == (t >= 1)
    assert found.label.shape == (15,)


def test_the_answer_is_that_of_the_solver(plain):
    wanted = solve(Problem(plain.clients, complete(15), plain.alpha))

    np.testing.assert_allclose(plain.models[plain.label], wanted.x, atol=1e-9)
    assert same_partition(plain.label, wanted.label)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_fitted_and_proved(loss):
    data = tables(loss)

    found = convex_clustering(loss=loss, ridge=1e-2, lam=0.5, num_neighbors=3).fit(data.x, data.y)

    assert found.certificate.exact
    rows = found.predict(4, data.x[4])
    model = found.models[found.label[4]].reshape(3, -1)
    wanted = np.concatenate([data.x[4], np.ones((6, 1))], axis=1) @ model
    np.testing.assert_allclose(rows, wanted if loss == "multinomial" else wanted[:, 0], atol=1e-12)


# Paths


def test_the_path_goes_down_from_alpha_hat(path_fit):
    steps = len(path_fit.path.solutions)

    np.testing.assert_allclose(path_fit.path.t, np.geomspace(1, 0.01, 6)[:steps], rtol=1e-9)
    assert path_fit.path.num_clusters[0] == 1
    assert path_fit.path.alpha_hat == path_fit.alpha_hat
    assert path_fit.alpha in path_fit.path.alphas


def test_the_path_ends_where_there_are_more_clusters_than_half_the_clients(path_fit):
    beyond = path_fit.alpha_hat * np.geomspace(1, 0.01, 6)[len(path_fit.path.solutions)]

    found = solve(Problem(path_fit.clients, complete(15), beyond))

    assert path_fit.path.num_clusters.max() <= 7 < found.num_clusters


def test_fit_path_is_fit_without_a_lam(world, path_fit):
    found = how(num_lams=6, lam=0.3).fit_path(world.x, world.y)

    assert found.alpha == path_fit.alpha
    np.testing.assert_array_equal(found.label, path_fit.label)


def test_the_criterion_chooses_unless_told_otherwise(path_fit):
    step = by_criterion(path_fit.path, path_fit.clients)

    assert path_fit.alpha == path_fit.path.alphas[step]


def test_the_longest_plateau_is_taken_on_request(world, path_fit):
    found = how(num_lams=6, select="plateau").fit(world.x, world.y)

    assert found.alpha == path_fit.path.alphas[by_plateau(path_fit.path, path_fit.clients)]


def test_hold_out_chooses_by_rows_that_are_left_out(world, path_fit):
    found = how(num_lams=6, select="hold-out", seed=3).fit(world.x, world.y)

    kept, held = _held_out(path_fit.clients, 3)
    step = by_hold_out(follow(kept, complete(15), path_fit.path.alphas, consensus(kept)), held)
    assert found.alpha == path_fit.path.alphas[step]
    np.testing.assert_array_equal(found.label, path_fit.path.solutions[step].label)


def test_planted_clusters_are_found_by_default():
    data = ellipses(0)

    found = convex_clustering(loss="squared_hinge", num_neighbors=5, num_lams=12).fit(data.x, data.y)

    assert found.certificate.exact
    assert same_partition(found.label, data.kind)


def test_a_path_tells_how_far_it_is(world):
    told = []

    how(num_lams=3, least=0.5).fit(world.x, world.y, tell=lambda *done: told.append(done))

    assert told == [(1, 3), (2, 3), (3, 3)]


# Hold-out


def test_a_fifth_of_every_clients_rows_is_held_out(path_fit):
    kept, held = _held_out(path_fit.clients, 0)

    np.testing.assert_array_equal(held.counts, np.full(15, 2))
    np.testing.assert_array_equal(kept.counts, np.full(15, 8))
    assert not ((kept.share > 0) & (held.share > 0)).any()
    np.testing.assert_allclose(kept.share.sum(1), 1)
    np.testing.assert_allclose(held.share.sum(1), 1)


def test_other_seeds_hold_out_other_rows(path_fit):
    first, second, again = (_held_out(path_fit.clients, seed)[1].share for seed in (0, 1, 0))

    np.testing.assert_array_equal(first, again)
    assert (first != second).any()


def test_ragged_clients_hold_out_rows_of_their_own_and_one_row_is_on_both_sides():
    x, y = [np.ones((n, 1)) for n in (1, 2, 7, 20)], [np.ones(n) for n in (1, 2, 7, 20)]
    clients = how()._clients(x, [one * (np.arange(len(one)) % 2) for one in y])

    kept, held = _held_out(clients, 0)

    np.testing.assert_array_equal(held.counts, [1, 1, 1, 4])
    np.testing.assert_array_equal(kept.counts, [1, 1, 6, 16])
    assert not kept.share[clients.share == 0].any()
    assert not held.share[clients.share == 0].any()


# Refit, weights, prediction


def test_a_refit_trains_every_cluster_by_itself(world, plain):
    found = how(lam=0.5, refit="cluster").fit(world.x, world.y)

    np.testing.assert_array_equal(found.label, plain.label)
    np.testing.assert_allclose(found.solution.models, plain.solution.models)
    for k in range(len(found.models)):
        members = found.clients.take(found.label == k)
        gradient = members.gradient(np.broadcast_to(found.models[k], (members.num, 3))).sum(0)
        np.testing.assert_allclose(gradient, 0, atol=1e-8)
    assert np.abs(found.models - plain.models).max() > 1e-3


def test_clients_count_by_their_rows_on_request(world):
    x, y = [one[i % 2 * 3 :] for i, one in enumerate(world.x)], [one[i % 2 * 3 :] for i, one in enumerate(world.y)]
    counts = np.array([len(one) for one in y])

    found = how(lam=2.0, weighting="examples").fit(x, y)

    plain = how(lam=2.0).fit(x, y)
    each = plain.clients.gradient(np.broadcast_to(found.models[0], (15, 3))) - plain.clients.ridge * found.models[0]
    total = (counts / counts.mean()) @ each + 15 * plain.clients.ridge * found.models[0]
    np.testing.assert_allclose(total, 0, atol=1e-8)
    assert np.abs(plain.models - found.models).max() > 1e-4


def test_equal_clients_weigh_the_same_either_way(world, plain):
    found = how(lam=0.5, weighting="examples").fit(world.x, world.y)

    np.testing.assert_allclose(found.models, plain.models, atol=1e-10)


def test_a_table_of_another_width_is_not_predicted(plain):
    with pytest.raises(BadData, match="the table has 5 columns, the clients' have 2"):
        plain.predict(0, np.ones((3, 5)))


def test_without_an_intercept_a_column_too_few_is_not_predicted(world):
    found = how(lam=0.5, intercept=False).fit(world.x, world.y)

    with pytest.raises(BadData):
        found.predict(0, np.ones((3, 1)))


# Small and odd federations


@pytest.mark.parametrize("lam", ["auto", 0.5])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_few_clients_are_fine(world, number, lam):
    found = convex_clustering(loss="squared_hinge", lam=lam).fit(world.x[:number], world.y[:number])

    assert found.certificate.exact
    assert len(found.label) == number
    assert np.isfinite(found.models).all()


def test_a_lone_client_has_its_own_best_model(world):
    found = how().fit(world.x[:1], world.y[:1])

    np.testing.assert_allclose(found.models, own_best(found.clients, np.zeros((1, 3))).x, atol=1e-8)


def test_a_lone_client_has_an_interval(world):
    assert how(lam=0.5).fit(world.x[:1], world.y[:1]).interval() is not None


@pytest.mark.parametrize("lam", ["auto", 0.5])
def test_equal_clients_are_one_cluster(world, lam):
    found = how(lam=lam, graph="knn", num_neighbors=3).fit([world.x[0]] * 8, [world.y[0]] * 8)

    assert len(found.models) == 1
    assert found.certificate.exact


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_a_client_of_one_class_stays_finite(world, loss, ridge):
    y = [np.ones(10), *world.y[1:]]

    found = how(loss=loss, ridge=ridge, num_lams=4).fit(world.x, y)

    assert all(np.isfinite(one.x).all() for one in found.path.solutions)
    assert all(np.abs(one.x).max() < 100 for one in found.path.solutions)


def test_ragged_clients_are_fitted(world):
    x, y = [one[: 4 + i % 5] for i, one in enumerate(world.x)], [one[: 4 + i % 5] for i, one in enumerate(world.y)]

    found = how(loss="logistic", lam=0.5).fit(x, y)

    assert found.certificate.exact


def test_neighbors_are_found_by_a_sketch_of_the_gradients_on_request():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 9, 6)), 1.0 * rng.integers(0, 2, (12, 9))

    found = how(lam=0.5, graph="knn", num_neighbors=3, sketch=2, seed=5).fit(x, y)

    short = sketched(jax.random.key(5), found.consensus.gradients, 2)
    wanted = nearest(short, 3)
    np.testing.assert_array_equal(found.graph.head, wanted.head)
    np.testing.assert_array_equal(found.graph.tail, wanted.tail)


def test_a_graph_of_ones_own_is_used(world):
    ring = from_edges(15, [[i, (i + 1) % 15] for i in range(15)])

    found = how(lam=0.5, graph=ring).fit(world.x, world.y)

    wanted = solve(Problem(found.clients, ring, found.alpha))
    assert found.graph is ring
    assert found.solution.value == pytest.approx(wanted.value, rel=1e-8)


# What is told


def test_margins_say_how_much_weaker_the_penalty_could_be(world):
    found = how(lam=2.0).fit(world.x, world.y)

    np.testing.assert_allclose(found.margins, [found.alpha_hat], rtol=1e-2)


def test_the_interval_holds_alpha(world):
    found = how(lam=0.6).fit(world.x, world.y)

    ends = found.interval()

    assert ends.low < found.alpha < ends.high


def test_the_summary_tells_what_is_known(plain):
    lines = plain.summary()

    sizes = ", ".join(str(size) for size in sorted(np.bincount(plain.label), reverse=True))
    rounds = plain.solution.rounds
    assert lines[0] == f"alpha {plain.alpha:.6g}, alpha_hat {plain.alpha_hat:.6g}, t 0.5"
    assert lines[1] == f"{len(plain.models)} clusters of {sizes} clients"
    assert lines[2].startswith(
        f"Newton steps and tests {rounds}, for all strengths; as many rounds over a network, "
    )
    assert "each 24 bytes down and at most 96 up per client" in lines[2]
    assert lines[3].startswith("proved: these are the clusters of the exact solution (gap ")
    assert len(lines) == 4


def test_the_summary_says_where_the_model_is_the_global_one(world):
    found = how(lam=1.5).fit(world.x, world.y)

    lines = found.summary()

    assert lines[1] == "1 cluster of all 15 clients"
    assert lines[-1] == "alpha is not below alpha_hat: this is the global model"


def test_the_summary_of_a_path_says_how_long_the_clusters_last(path_fit):
    step = list(path_fit.path.alphas).index(path_fit.alpha)
    first, last = next(run for run in path_fit.path.plateaus() if run[0] <= step <= run[1])

    lines = path_fit.summary()

    upper, lower = path_fit.path.alphas[[first, last]]
    assert f"the same clusters from alpha {lower:.4g} to {upper:.4g} ({upper / lower:.2g} times)" in lines
    at_the_end = "this is the weakest strength that was tried: a longer path (least) may go further"
    assert (at_the_end in lines) == (step == len(path_fit.path.alphas) - 1)


def test_the_summary_says_what_is_not_proved(plain):
    proof = replace(plain.certificate, solved=False, gap=0.25)
    open_end = replace(plain, solution=replace(plain.solution, certificate=proof))

    assert open_end.summary()[3] == "not proved to be exact: the value is at most 2.5e-01 above the best"


def test_the_summary_of_many_clusters_is_short(world):
    found = how(lam=0.01).fit(world.x, world.y)

    assert found.summary()[1] == "15 clusters of 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, .. clients"
