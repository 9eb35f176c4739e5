"""The strength that makes rows most probable, and what it is predicted to be worth."""

import numpy as np
import pytest
from offsets import many, mean_estimation, regression

from plures.solvers.clients import Clients, as_clients
from plures.solvers.degree import plug_in_degree, statistics
from plures.solvers.links import huber
from plures.solvers.penalized import Penalized
from plures.solvers.settled import knowledge, likelihood, outlook, settled_degree


def restricted(x, y, size, scatter):
    """The restricted likelihood of y ~ N(X w, size + scatter X_i X_i^T in blocks), w unknown: the textbook formula."""
    rows = x.shape[1]
    blocks = size * np.eye(rows) + scatter * np.einsum("nid,njd->nij", x, x)
    inverse = np.linalg.inv(blocks)
    cross = np.einsum("nid,nij,nje->de", x, inverse, x)
    center = np.linalg.solve(cross, np.einsum("nid,nij,nj->d", x, inverse, y))
    left = y - x @ center
    fit = np.einsum("ni,nij,nj->", left, inverse, left)
    return -0.5 * (np.linalg.slogdet(blocks)[1].sum() + np.linalg.slogdet(cross)[1] + fit)


def at(clients, size, scatter):
    lams = size / (clients.counts * scatter)
    solved = Penalized(clients, clients.counts / clients.counts.sum()).solve(lams[None])
    return likelihood(clients, solved.own[0], solved.shared[0], lams, size)


def test_the_likelihood_along_the_path_is_the_textbook_one():
    x, y = many(num=4, rows=7)
    clients = regression(x, y)

    ours = at(clients, 1.3, 0.2) - at(clients, 1.3, 2.0)

    assert ours == pytest.approx(restricted(x, y, 1.3, 0.2) - restricted(x, y, 1.3, 2.0))


def evidence(x, y, size, scatter, ridge):
    """log N(y; 0, size + X P X^T), P the covariance of all models: ridges n r / size on each, and the pull to a shared one."""
    num, rows, dim = x.shape
    pull = np.eye(num + 1) / scatter
    pull[-1], pull[:, -1] = -1 / scatter, -1 / scatter
    pull[-1, -1] = num / scatter
    pull[:num, :num] += np.eye(num) * rows * ridge / size
    prior = np.kron(np.linalg.inv(pull)[:num, :num], np.eye(dim))
    wide = np.zeros((num * rows, num * dim))
    for k in range(num):
        wide[k * rows : (k + 1) * rows, k * dim : (k + 1) * dim] = x[k]
    cover = size * np.eye(num * rows) + wide @ prior @ wide.T
    return -0.5 * (np.linalg.slogdet(cover)[1] + y.reshape(-1) @ np.linalg.solve(cover, y.reshape(-1)))


def test_a_ridge_is_a_prior_and_no_evidence():
    x, y = many(num=4, rows=6, dim=2)
    clients = as_clients(x, y, loss="least_squares", ridge=0.4, intercept=False)

    ours = at(clients, 1.3, 0.2) - at(clients, 1.3, 2.0)

    assert ours == pytest.approx(evidence(x, y, 1.3, 0.2, 0.4) - evidence(x, y, 1.3, 2.0, 0.4))


def test_for_means_it_is_the_rule_for_one_round():
    """Hessians are the unit matrix: the spread and its freedom tell all that rows do."""
    x, y, _ = mean_estimation()

    once, found = plug_in_degree(statistics(regression(x, y))), settled_degree(regression(x, y))

    assert found.lam == pytest.approx(once.lam, rel=1e-3)
    assert found.freedom == pytest.approx((6 - 1) * 3 / (1 + found.lam))


def test_a_column_that_one_client_alone_has_says_nothing():
    """Its coefficient fits that client whatever the scatter; the others have zeros there."""
    x, y = many(num=4, rows=8)
    alone = np.zeros((4, 8, 1))
    alone[0] = np.linalg.qr(np.c_[x[0], np.arange(8.0)])[0][:, -1:]  # at right angles to the others
    wide = np.concatenate([x, alone], 2)

    less, more = (at(regression(table, y), 1.0, 0.1) - at(regression(table, y), 1.0, 3.0) for table in (x, wide))

    assert more == pytest.approx(less)


def test_the_estimate_is_near_the_true_scatter_and_inside_its_interval():
    rng = np.random.default_rng(6)
    truth = np.sqrt(0.3) * rng.normal(size=(200, 4))
    x = rng.normal(size=(200, 12, 4))
    y = np.einsum("mnd,md->mn", x, truth) + 2.0 * rng.normal(size=(200, 12))

    found = settled_degree(regression(x, y))

    assert found.spread == pytest.approx(0.3, rel=0.25)
    assert found.dispersion == pytest.approx(4.0, rel=0.1)
    assert found.low < 4.0 / (12 * 0.3) < found.high
    assert found.low < found.lam < found.high


def test_no_client_needs_a_minimizer_of_its_own():
    """Every client's labels are separable, and the ridge next to nothing."""
    clients = as_clients([[[-1.0], [1.0]], [[-2.0], [0.5]], [[1.0], [2.0]]], [[0, 1], [0, 1], [1, 0]], ridge=1e-6)

    found = settled_degree(clients)

    assert 0 < found.low < found.lam < found.high < np.inf


def test_predicted_losses_of_means_are_the_known_ones():
    """s / m + (lam / (1 + lam))^2 R2 + s (1 - 1/m) / (1 + lam)^2 at lam = s / R2; half of it, as losses are halves."""
    x, y, _ = mean_estimation(num=5, dim=2, times=4000, scatter=0.03, seed=7)
    clients = regression(x, y)
    degree = settled_degree(clients)
    solved = Penalized(clients).solve([degree.lam])
    noise, scatter = 2 * degree.dispersion / 8000, 2 * degree.spread * (1 - 1 / 5)
    lam = degree.lam

    means = outlook(clients, degree, solved.own[0]).means

    risk = noise / 5 + (lam / (1 + lam)) ** 2 * scatter + noise * (1 - 1 / 5) / (1 + lam) ** 2
    assert means["alone"] == pytest.approx(noise / 2, rel=1e-3)
    assert means["shared"] == pytest.approx((noise / 5 + scatter) / 2, rel=1e-3)
    assert means["penalized"] == pytest.approx(risk / 2, rel=1e-3)


def test_predicted_losses_are_those_of_fresh_rows():
    rng = np.random.default_rng(8)
    truth = np.sqrt(0.1) * rng.normal(size=(400, 4))
    x = rng.normal(size=(400, 20, 4))
    y = np.einsum("mnd,md->mn", x, truth) + rng.normal(size=(400, 20))
    clients = regression(x, y)
    degree = settled_degree(clients)
    own = Penalized(clients).solve(np.stack([np.zeros(400), np.full(400, np.inf), degree.own_lams])).own

    means = outlook(clients, degree, own[2]).means

    true = 0.5 * np.square(own - truth).sum(-1).mean(1)  # columns of unit size: half the squared error
    assert means["alone"] == pytest.approx(true[0], rel=0.1)
    assert means["shared"] == pytest.approx(true[1], rel=0.1)
    assert means["penalized"] == pytest.approx(true[2], rel=0.1)


def test_knowledge_is_one_where_rows_decide():
    clients = Clients(np.eye(2)[None] * 3, np.zeros((1, 2)), np.ones((1, 2)), np.zeros(2), huber())

    found = knowledge(clients, np.zeros((1, 2)), np.array([1.0]))

    np.testing.assert_allclose(found, 0.9 * np.eye(2)[None])  # 9 / (9 + 1)
