"""A new client, all others staying: the rule says what an interior-point method finds."""

import cvxpy as cp
import numpy as np
import pytest
from ellipses_world import ellipses, newcomer
from referee import own_loss, solved

from plures.errors import BadData
from plures.solvers import Graph, complete, convex_clustering
from plures.solvers.newcomer import as_newcomer, ties_of


def fitted(graph, **options):
    world = ellipses(0, per=6)
    options = {"loss": "squared_hinge", "ridge": 1e-2, "lam": 0.5, "graph": graph, "num_neighbors": 4} | options
    return convex_clustering(**options).fit(world.x, world.y), world


@pytest.fixture(scope="module", params=["complete", "knn", "mixture"])
def fit(request):
    return fitted(request.param)[0]


def own_problem(fit, new, ties):
    """The newcomer's best model: its loss, and the pull of every cluster."""
    x = cp.Variable(fit.clients.dim)
    pulls = sum(tie * cp.norm(x - w) for tie, w in zip(ties, fit.solution.models, strict=True))
    return solved(own_loss(new, 0, x) + fit.alpha * pulls, x)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_the_rule_is_the_solution_with_all_others_fixed(fit, kind):
    for seed in range(6):
        x, y = newcomer(seed, kind)

        found = fit.place(x, y)

        new = as_newcomer(fit, x, y)
        best = own_problem(fit, new, ties_of(fit, new))
        apart = np.linalg.norm(fit.solution.models - best, axis=1)
        assert found.cluster == (int(np.argmin(apart)) if apart.min() < 1e-5 else -1), (seed, apart.min())


def test_the_excess_is_the_force_beyond_what_a_cluster_holds(fit):
    """|grad f(w_k) + alpha sum_{l != k} W_l (w_k - w_l) / |w_k - w_l|| - alpha W_k."""
    x, y = newcomer(0, 1)
    new, w = as_newcomer(fit, x, y), fit.solution.models
    ties = ties_of(fit, new)

    found = fit.place(x, y).excess

    for k in range(len(w)):
        pulls = [ties[m] * (w[k] - w[m]) / np.linalg.norm(w[k] - w[m]) for m in range(len(w)) if m != k]
        force = new.gradient(w[k : k + 1])[0] + fit.alpha * sum(pulls)
        assert found[k] == pytest.approx(np.linalg.norm(force) - fit.alpha * ties[k], rel=1e-9)


def test_some_newcomers_fuse_and_some_do_not(fit):
    """So that the test above looks at both."""
    found = [fit.place(*newcomer(seed, kind)).cluster for kind in range(3) for seed in range(6)]

    assert max(found) >= 0


def test_a_newcomer_that_nobody_holds_is_served_by_the_cluster_of_least_loss():
    fit, _ = fitted("complete", lam=0.1)
    x, y = newcomer(0, 1)

    found = fit.place(x, y)

    new = as_newcomer(fit, x, y)
    losses = [new.value(w[None])[0] for w in fit.solution.models]
    assert found.cluster == -1
    assert found.serves == found.least_loss == int(np.argmin(losses))
    assert (found.excess > 0).all()


def test_a_newcomer_that_fuses_is_served_by_its_cluster():
    fit, world = fitted("knn")
    kinds = [np.bincount(world.kind[fit.label == k]).argmax() for k in range(len(fit.models))]

    served = [kinds[fit.place(*newcomer(seed, kind)).serves] == kind for kind in range(3) for seed in range(10)]

    assert np.mean(served) >= 0.9


def test_ties_to_everybody_are_the_sizes_of_the_clusters():
    fit, _ = fitted("complete")

    np.testing.assert_array_equal(ties_of(fit, as_newcomer(fit, *newcomer(0, 0))), fit.solution.sizes)


def test_ties_to_neighbors_weigh_as_the_others_edges_do():
    fit, _ = fitted("knn")
    new = as_newcomer(fit, *newcomer(0, 0))

    ties = ties_of(fit, new)

    apart = np.linalg.norm(fit.consensus.gradients - new.gradient(fit.consensus.model[None]), axis=1)
    near = np.bincount(fit.label[np.argsort(apart)[:4]], minlength=len(fit.models))
    np.testing.assert_allclose(ties, fit.graph.weight[0] * near)


def test_ties_of_a_mixture_are_its_shares_of_both():
    mixture, _ = fitted("mixture", theta=0.3)
    new = as_newcomer(mixture, *newcomer(0, 0))

    ties = ties_of(mixture, new)

    assert ties.sum() == pytest.approx(0.3 * 18 + 4 * (mixture.graph.weight.max() - 0.3), rel=1e-12)
    assert (ties >= 0.3 * mixture.solution.sizes - 1e-12).all()


def test_above_alpha_hat_every_newcomer_fuses():
    fit, _ = fitted("complete", lam=3.0)

    assert fit.place(*newcomer(0, 0)).cluster == 0


def test_half_the_weights_and_twice_the_alpha_place_alike():
    whole = complete(18)
    light = Graph(18, whole.head, whole.tail, 0.5 * whole.weight)
    x, y = newcomer(0, 0)

    one, other = (
        fitted(graph, lam=lam, scaling="alpha")[0].place(x, y) for graph, lam in ((whole, 0.2), (light, 0.4))
    )

    np.testing.assert_allclose(one.excess, other.excess, atol=1e-8)


def test_a_newcomer_counts_by_its_rows_where_the_others_do():
    """Twice the rows of everybody: twice the loss."""
    fit, _ = fitted("complete", weighting="examples")
    x, y = newcomer(0, 0)

    once, twice = as_newcomer(fit, x, y), as_newcomer(fit, np.tile(x, (2, 1)), np.tile(y, 2))

    w = fit.models[:1]
    ridge = 0.5 * (w * w) @ fit.clients.ridge
    np.testing.assert_allclose(twice.value(w) - ridge, 2 * (once.value(w) - ridge))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.full((4, 2), np.nan), np.zeros(4)),
        (np.ones((4, 5)), np.zeros(4)),
        (np.ones((4, 2)), np.zeros(3)),
        (np.ones((4, 2)), np.full(4, 7.0)),
        (np.ones((0, 2)), np.zeros(0)),
    ],
    ids=["not finite", "other columns", "other rows", "other classes", "empty"],
)
def test_a_newcomer_that_does_not_fit_is_refused(x, y):
    fit, _ = fitted("complete")

    with pytest.raises(BadData):
        fit.place(x, y)


def test_without_an_intercept_a_column_too_few_is_refused():
    fit, world = fitted("complete", intercept=False)

    with pytest.raises(BadData):
        fit.place(world.x[0][:, :1], world.y[0])
