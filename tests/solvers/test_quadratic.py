"""Quadratic losses: solutions along a path, both of its ends, and what mean estimation says about the best strength."""

import numpy as np
import pytest
from penalized_value import value

from plures.errors import BadData, BadValue, Unsupported
from plures.solvers import Penalized, Quadratics, as_clients
from plures.solvers import quadratic as module

LAMS = np.array([0.0, 1e-8, 1e-3, 0.3, 1.0, 40.0, 1e6, np.inf])
WEIGHTS = np.array([0.1, 0.3, 0.2, 0.15, 0.25])


def regressions(seed=0, num=5, rows=30, dim=3, lead=()):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(*lead, num, rows, dim))
    truth = rng.normal(size=dim) + 0.5 * rng.normal(size=(num, dim))
    return x, np.einsum("...mnd,md->...mn", x, truth) + rng.normal(size=(*lead, num, rows))


@pytest.fixture(scope="module")
def problem():
    return Quadratics.from_rows(*regressions(), weights=WEIGHTS)


def by_one_system(problem, lams):
    """The gradient set to zero as one system of (m + 1) d unknowns, the shared model last; for finite lams (m,)."""
    num, dim = problem.b.shape
    left, right = np.zeros(((num + 1) * dim,) * 2), np.zeros((num + 1) * dim)
    last = slice(num * dim, None)
    for i, lam in enumerate(np.broadcast_to(lams, num)):
        own, unit = slice(i * dim, (i + 1) * dim), lam * problem.weights[i] * np.eye(dim)
        left[own, own] = problem.weights[i] * problem.a[i] + unit
        left[own, last] = left[last, own] = -unit
        left[last, last] += unit
        right[own] = problem.weights[i] * problem.b[i]
    found = np.linalg.solve(left, right).reshape(num + 1, dim)
    return found[-1], found[:-1]


@pytest.mark.parametrize("lam", [1e-3, 0.3, 1.0, 40.0])
def test_solutions_are_those_of_one_large_system(problem, lam):
    found = problem.path([lam])

    shared, own = by_one_system(problem, lam)
    np.testing.assert_allclose(found.shared[0], shared, atol=1e-11)
    np.testing.assert_allclose(found.own[0], own, atol=1e-11)


def test_the_shared_model_is_the_mean_of_the_personal_ones_at_every_lam(problem):
    found = problem.path(LAMS)

    np.testing.assert_allclose(found.shared, np.einsum("m,lmd->ld", WEIGHTS, found.own), rtol=0, atol=2e-15)


def test_almost_no_pull_gives_the_local_minimizers_and_a_strong_one_the_pooled(problem):
    alone = np.linalg.solve(problem.a, problem.b[..., None])[..., 0]
    pooled = np.linalg.solve(np.einsum("m,mij->ij", WEIGHTS, problem.a), WEIGHTS @ problem.b)

    found = problem.path([1e-8, 1e6])

    assert np.abs(found.own[0] - alone).max() < 2e-8
    assert np.abs(found.own[1] - pooled).max() < 1e-5


def test_the_ends_are_exact(problem):
    alone = np.linalg.solve(problem.a, problem.b[..., None])[..., 0]
    pooled = np.linalg.solve(np.einsum("m,mij->ij", WEIGHTS, problem.a), WEIGHTS @ problem.b)

    found = problem.path([0.0, np.inf])

    np.testing.assert_allclose(found.own[0], alone, atol=1e-14)
    np.testing.assert_allclose(found.shared[0], WEIGHTS @ alone, atol=1e-14)
    np.testing.assert_allclose(found.shared[1], pooled, atol=1e-14)
    np.testing.assert_array_equal(found.own[1], np.tile(found.shared[1], (5, 1)))


def test_extreme_strengths_round_to_the_ends(problem):
    found = problem.path([1e-300, 0.0, 1e300, np.inf])

    np.testing.assert_allclose(found.own[0], found.own[1], atol=1e-14)
    np.testing.assert_allclose(found.own[2], found.own[3], atol=1e-14)
    np.testing.assert_allclose(found.shared[::2], found.shared[1::2], atol=1e-14)


def test_a_strength_of_its_own_for_every_client(problem):
    lams = np.array([[0.1, 3.0, 0.0, 50.0, 1.0], [0.2, 0.2, 0.5, 0.0, 0.01]])

    found = problem.path(lams)

    for place, each in enumerate(lams):
        shared, own = by_one_system(problem, each)
        np.testing.assert_allclose(found.shared[place], shared, atol=1e-11)
        np.testing.assert_allclose(found.own[place], own, atol=1e-11)
        mean = (WEIGHTS * each) @ found.own[place] / (WEIGHTS @ each)
        np.testing.assert_allclose(found.shared[place], mean, atol=1e-14)


def test_clients_with_an_infinite_strength_have_the_shared_model(problem):
    """Tied clients are one client: the same as strengths of 1e10, up to 1e-10."""
    lams = np.array([[np.inf, 3.0, 0.0, np.inf, 1.0]])

    found = problem.path(lams)
    nearly = problem.path(np.minimum(lams, 1e10))

    np.testing.assert_array_equal(found.own[0, [0, 3]], np.tile(found.shared[0], (2, 1)))
    np.testing.assert_allclose(found.own, nearly.own, atol=1e-8)


def test_equal_strengths_of_clients_are_one_strength(problem):
    finite = LAMS[1:-1]

    one, each = problem.path(finite), problem.path(np.tile(finite[:, None], (1, 5)))

    np.testing.assert_allclose(one.own, each.own, atol=1e-15)


def test_problems_side_by_side_are_solved_as_if_alone():
    x, y = regressions(lead=(2, 3))

    found = Quadratics.from_rows(x, y, weights=WEIGHTS).path(LAMS)
    alone = Quadratics.from_rows(x[1, 2], y[1, 2], weights=WEIGHTS).path(LAMS)

    assert found.own.shape == (8, 2, 3, 5, 3)
    np.testing.assert_allclose(found.shared[:, 1, 2], alone.shared, atol=1e-14)
    np.testing.assert_allclose(found.own[:, 1, 2], alone.own, atol=1e-14)


@pytest.mark.parametrize("size", [1, 20])
def test_blocks_of_clients_change_nothing(problem, monkeypatch, size):
    whole = problem.path(LAMS)

    monkeypatch.setattr(module, "BLOCK", size)

    np.testing.assert_allclose(problem.path(LAMS).own, whole.own, atol=1e-14)


def test_rows_of_unequal_number_come_from_clients():
    rng = np.random.default_rng(1)
    x = [rng.normal(size=(rows, 2)) for rows in (4, 9, 6)]
    y = [rng.normal(size=len(rows)) for rows in x]

    found = Quadratics.from_clients(as_clients(x, y, loss="least_squares", ridge=0.1, intercept=False))

    for i in range(3):
        np.testing.assert_allclose(found.a[i], x[i].T @ x[i] / len(x[i]) + 0.1 * np.eye(2), atol=1e-14)
        np.testing.assert_allclose(found.b[i], x[i].T @ y[i] / len(x[i]), atol=1e-14)


def test_the_ridge_of_rows_is_that_of_clients():
    x, y = regressions()

    ours = Quadratics.from_rows(x, y, ridge=0.2)
    theirs = Quadratics.from_clients(as_clients(x, y, loss="least_squares", ridge=0.2, intercept=False))

    np.testing.assert_allclose(ours.a, theirs.a, atol=1e-14)
    np.testing.assert_allclose(ours.b, theirs.b, atol=1e-14)


def test_the_value_is_the_sum_of_losses_and_pulls(problem):
    rng = np.random.default_rng(2)
    shared, own = rng.normal(size=(2, 3)), rng.normal(size=(2, 5, 3))
    lams = np.array([0.7, 4.0])

    found = value(problem, shared, own, lams)

    for place, lam in enumerate(lams):
        terms = [
            p * (w @ a @ w / 2 - b @ w + lam / 2 * np.sum((shared[place] - w) ** 2))
            for p, a, b, w in zip(WEIGHTS, problem.a, problem.b, own[place], strict=True)
        ]
        assert found[place] == pytest.approx(sum(terms))
        assert value(problem, shared[place], own[place], lam) == pytest.approx(sum(terms))


def test_nothing_near_a_solution_is_better(problem):
    found, rng = problem.path([0.0, 2.0, np.inf]), np.random.default_rng(3)
    least = value(problem, found.shared, found.own, found.lams)

    for _ in range(20):
        move = 1e-3 * rng.normal(size=(5, 3))
        tied = np.array([1.0, 1.0, 0.0])[:, None, None] * move + move[0] * np.array([0.0, 0.0, 1.0])[:, None, None]
        there = value(problem, found.shared + move[0], found.own + tied, found.lams)
        assert (there > least).all()


def test_a_client_with_few_rows_leans_on_the_others():
    """Two rows for three numbers: no minimizer alone, one solution together."""
    x, y = regressions(rows=2)
    problem = Quadratics.from_rows(x, y)

    found = problem.path([0.5])

    shared, own = by_one_system(problem, 0.5)
    np.testing.assert_allclose(found.own[0], own, atol=1e-10)
    np.testing.assert_allclose(found.shared[0], shared, atol=1e-10)


def test_alone_without_a_minimizer_is_refused_by_name():
    x, y = regressions()
    x[3, :, 2] = 0.0
    problem = Quadratics.from_rows(x, y)

    with pytest.raises(BadData, match=r"at lam = 0 client 3 is alone.*a lam > 0 or a ridge would do"):
        problem.path([1.0, 0.0])
    with pytest.raises(BadData, match="client 3 is alone"):
        problem.path([[1.0, 1.0, 1.0, 0.0, 1.0]])
    assert np.isfinite(problem.path([[0.0, 1.0, 1.0, 1.0, 1.0]]).own).all()


def test_a_direction_that_nobody_sees_is_refused():
    x, y = regressions()
    x[..., 1] = 0.0

    with pytest.raises(BadData, match=r"at lam = 2 the shared model has no single minimizer.*a ridge would do"):
        Quadratics.from_rows(x, y).path([2.0])


@pytest.mark.parametrize("bad", [-0.5, np.nan, -np.inf])
def test_strengths_below_zero_are_refused_by_value(problem, bad):
    with pytest.raises(BadValue, match=rf"lam must be 0 or more.*got {bad}"):
        problem.path([1.0, bad])


@pytest.mark.parametrize("shape", [(2, 4), (1, 5, 1), (0,)])
def test_strengths_of_another_shape_are_refused(problem, shape):
    with pytest.raises(BadData, match=r"strengths are \(L,\), or \(L, 5\)"):
        problem.path(np.ones(shape))


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.0], [1.0, 0.0], [1.5, -0.5], [np.nan, 1.0]])
def test_weights_are_positive_and_sum_to_one(weights):
    with pytest.raises(BadValue, match="2 positive numbers that sum to 1"):
        Quadratics.of([[[1.0]], [[1.0]]], [[0.0], [1.0]], weights)


def test_matrices_are_square_finite_symmetric_and_convex():
    eye = np.eye(2)

    with pytest.raises(BadData, match=r"got \(1, 2, 2\) and \(1, 3\)"):
        Quadratics.of([eye], np.zeros((1, 3)))
    with pytest.raises(BadData, match="not a finite number"):
        Quadratics.of([eye], [[0.0, np.nan]])
    with pytest.raises(BadData, match="client 1 is not symmetric"):
        Quadratics.of([eye, [[1.0, 0.3], [0.0, 1.0]]], np.zeros((2, 2)))
    with pytest.raises(BadData, match=r"client 1 is not convex: an eigenvalue is -1"):
        _ = Quadratics.of([eye, np.diag([-1.0, 2.0])], np.zeros((2, 2))).bounds
    with pytest.raises(BadData, match=r"client \(1, 0\) is not convex"):
        _ = Quadratics.of([[eye], [np.diag([-1.0, 2.0])]], np.zeros((2, 1, 2))).bounds


def test_rows_and_ridge_are_checked():
    x, y = regressions()

    with pytest.raises(BadData, match="rows"):
        Quadratics.from_rows(x, y[:, 1:])
    with pytest.raises(BadValue, match=r"ridge must be 0 or more, got -1"):
        Quadratics.from_rows(x, y, ridge=-1.0)
    with pytest.raises(Unsupported, match="logistic is not"):
        Quadratics.from_clients(as_clients([[[1.0], [2.0]]], [[0.0, 1.0]]))


def test_losses_of_squared_errors_are_solved_without_steps():
    x, y = regressions()
    clients = as_clients(x, y, loss="least_squares", intercept=False, ridge=0.0)

    found = Penalized(clients, WEIGHTS).solve(LAMS)

    assert found.steps == 0
    np.testing.assert_allclose(found.own, Quadratics.from_rows(x, y, weights=WEIGHTS).path(LAMS).own, atol=1e-12)


def risk_by_formula(lam, s, spread, num):
    """s / m + (lam / (1 + lam))^2 R2 + (1 / (1 + lam))^2 s (1 - 1 / m)."""
    pull = 1.0 if lam == np.inf else lam / (1 + lam)
    return s / num + pull**2 * spread + (1 - pull) ** 2 * s * (1 - 1 / num)


MEANS = {0.5: (0.608, 0.1025, 0.258), 0.2: (3.8, 0.0397, 0.048), 0.05: (60.8, 0.01046, 0.0105)}


@pytest.mark.parametrize("radius", MEANS)
def test_the_risk_of_estimated_means_is_the_formulas(radius):
    """20 clients, 25 rows of 4 unit normals each, means at distance R from their average: s = 0.16."""
    num, s, repeats = 20, 4 / 25, 3_000
    rng = np.random.default_rng(0)
    off = rng.normal(size=(num // 2, 4))
    off *= radius / np.linalg.norm(off, axis=1, keepdims=True)
    truth = np.concatenate([off, -off])  # of mean zero, and all of one length
    best, least, pooled = MEANS[radius]
    lams = np.array([0.0, 0.1, best, 10 * best, np.inf])

    means = truth + rng.normal(size=(repeats, num, 4)) / 5
    found = Quadratics.of(np.broadcast_to(np.eye(4), (repeats, num, 4, 4)), means).path(lams).own
    risks = np.square(found - truth).sum(-1).mean(-1)  # (L, repeats)

    wanted = np.array([risk_by_formula(lam, s, radius**2, num) for lam in lams])
    assert (np.abs(risks.mean(1) - wanted) < 4.5 * risks.std(1) / np.sqrt(repeats)).all()
    np.testing.assert_allclose(wanted[[0, 2, 4]], [s, least, pooled], atol=6e-4 if radius > 0.1 else 5e-5)
    assert s * (1 - 1 / num) / radius**2 == pytest.approx(best, rel=1e-3)
