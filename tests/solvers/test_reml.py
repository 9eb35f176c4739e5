"""The strength that makes rows most probable, and what it is predicted to be worth."""

import numpy as np
import pytest
from offsets import many, mean_estimation, regression

from papers.fedclup.degree import degree_statistics, plug_in_degree
from plures import solvers
from plures.solvers.clients import Clients, as_clients
from plures.solvers.losses import huber
from plures.solvers.penalized import Penalized
from plures.solvers.quadratic import Quadratics
from plures.solvers.reml import RemlDegree, knowledge, likelihoods, outlook, reml_degree, shrunk_variances


def means_of(found):
    return {name: getattr(found, name).mean() for name in ("alone", "shared", "penalized")}


def restricted(x, y, size, scatter):
    """The restricted likelihood of y ~ N(X w, size_i + scatter X_i X_i^T in blocks), w unknown: the textbook formula."""
    rows = x.shape[1]
    blocks = np.broadcast_to(size, len(x))[:, None, None] * np.eye(rows) + scatter * np.einsum("nid,njd->nij", x, x)
    inverse = np.linalg.inv(blocks)
    cross = np.einsum("nid,nij,nje->de", x, inverse, x)
    center = np.linalg.solve(cross, np.einsum("nid,nij,nj->d", x, inverse, y))
    left = y - x @ center
    fit = np.einsum("ni,nij,nj->", left, inverse, left)
    return -0.5 * (np.linalg.slogdet(blocks)[1].sum() + np.linalg.slogdet(cross)[1] + fit)


def at(clients, size, scatter):
    sizes = np.broadcast_to(size, clients.num)
    losses = Quadratics.expanded(clients, np.ones((clients.num, clients.dim)))
    return likelihoods(losses, clients, sizes, (sizes / (clients.counts * scatter))[None])[0]


@pytest.mark.parametrize("size", [1.3, np.array([0.2, 1.3, 4.0, 0.7])], ids=["one noise", "a noise each"])
def test_the_likelihood_along_the_path_is_the_textbook_one(size):
    x, y = many(num=4, rows=7)
    clients = regression(x, y)

    ours = at(clients, size, 0.2) - at(clients, size, 2.0)

    assert ours == pytest.approx(restricted(x, y, size, 0.2) - restricted(x, y, size, 2.0))


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

    once, found = plug_in_degree(degree_statistics(regression(x, y))), reml_degree(regression(x, y))

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

    found = reml_degree(regression(x, y))

    assert found.spread == pytest.approx(0.3, rel=0.25)
    assert found.dispersion == pytest.approx(4.0, rel=0.1)
    assert found.low < 4.0 / (12 * 0.3) < found.high
    assert found.low < found.lam < found.high


def test_every_client_has_a_noise_of_its_own():
    """Half of the clients are ten times as noisy: their models are held a hundred times as near to the others."""
    rng = np.random.default_rng(2)
    noise = np.tile([0.3, 3.0], 20)
    x = rng.normal(size=(40, 30, 3))
    y = np.einsum("mnd,md->mn", x, 0.5 * rng.normal(size=(40, 3))) + noise[:, None] * rng.normal(size=(40, 30))

    found = reml_degree(regression(x, y))

    assert found.spread == pytest.approx(0.25, rel=0.3)
    for one in (0.3, 3.0):
        assert np.median(found.dispersion[noise == one]) == pytest.approx(one**2, rel=0.2)
    assert np.median(found.own_lams[1::2]) == pytest.approx(9.0 / (30 * 0.25), rel=0.4)


def test_variances_that_differ_by_chance_alone_become_one():
    rng = np.random.default_rng(5)
    freedom = np.full(200, 6.0)
    alike = 2.0 * rng.chisquare(freedom) / freedom
    apart = np.repeat([0.01, 9.0], 100) * rng.chisquare(freedom) / freedom

    np.testing.assert_allclose(shrunk_variances(alike, freedom), 2.0, rtol=0.3)
    found = shrunk_variances(apart, freedom)
    assert np.median(found[:100]) == pytest.approx(0.01, rel=0.3)
    assert np.median(found[100:]) == pytest.approx(9.0, rel=0.3)
    assert shrunk_variances(np.array([3.0, 0.0]), np.array([5.0, 0.0])) == pytest.approx(3.0)


@pytest.mark.parametrize("sizes", [(0.0, 0.0, 4.0), (3.0, 0.0, 0.0)], ids=["levels", "one slope"])
def test_columns_scatter_by_variances_of_their_own(sizes):
    """The last column is an intercept; a column of which models do not differ is held a hundred times as near."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.normal(size=(30, 15, 2)), np.ones((30, 15, 1))], axis=2)
    truth = np.array(sizes) * rng.normal(size=(30, 3))
    y = np.einsum("mnd,md->mn", x, truth) + rng.normal(size=(30, 15))

    found = reml_degree(regression(x, y), [[0, 0, 1], [0, 1, 2]])

    assert found.scale[np.argmax(sizes)] == 1.0
    assert np.delete(found.scale, np.argmax(sizes)).max() < 0.1
    assert found.spread == pytest.approx(max(sizes) ** 2, rel=0.5)


def test_columns_that_scatter_alike_stay_as_they_are():
    x, y = many(num=20, rows=30)

    found = reml_degree(regression(x, y), [[0, 0, 1], [0, 1, 2]])

    assert found.is_alike


def test_no_client_needs_a_minimizer_of_its_own():
    """Every client's labels are separable, and the ridge next to nothing."""
    clients = as_clients([[[-1.0], [1.0]], [[-2.0], [0.5]], [[1.0], [2.0]]], [[0, 1], [0, 1], [1, 0]], ridge=1e-6)

    found = reml_degree(clients)

    assert 0 < found.low < found.lam < found.high < np.inf


def test_predicted_losses_of_means_are_the_known_ones():
    """s / m + (lam / (1 + lam))^2 R2 + s (1 - 1/m) / (1 + lam)^2 at lam = s / R2; half of it, as losses are halves."""
    x, y, _ = mean_estimation(num=5, dim=2, times=4000, scatter=0.03, seed=7)
    clients = regression(x, y)
    degree = reml_degree(clients)
    solved = Penalized(clients).solve([degree.lam])
    noise, scatter = 2 * degree.dispersion / 8000, 2 * degree.spread * (1 - 1 / 5)
    lam = degree.lam

    means = means_of(outlook(clients, degree, solved.own[0], np.full(5, lam)))

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
    degree = reml_degree(clients)
    own = Penalized(clients).solve(np.stack([np.zeros(400), np.full(400, np.inf), degree.own_lams])).own

    means = means_of(outlook(clients, degree, own[2], degree.own_lams))

    true = 0.5 * np.square(own - truth).sum(-1).mean(1)  # columns of unit size: half the squared error
    assert means["alone"] == pytest.approx(true[0], rel=0.1)
    assert means["shared"] == pytest.approx(true[1], rel=0.1)
    assert means["penalized"] == pytest.approx(true[2], rel=0.1)


def test_knowledge_is_one_where_rows_decide():
    clients = Clients(np.eye(2)[None] * 3, np.zeros((1, 2)), np.ones((1, 2)), np.zeros(2), huber())

    found = knowledge(clients, np.zeros((1, 2)), np.array([1.0]))

    np.testing.assert_allclose(found, 0.9 * np.eye(2)[None])  # 9 / (9 + 1)


def added_up(x, weights, lams, spread, size):
    """(m,) expected excess losses: models are linear in noise and in truths, so each of these adds its own part."""
    num, dim = len(x), x[0].shape[1]
    ids, total = np.arange(num), np.zeros(num)
    for one in range(num):
        noises = np.sqrt(size) * np.eye(len(x[one]))
        truths = np.sqrt(spread) * np.eye(dim)
        for noise, shift in [*((row, np.zeros(dim)) for row in noises), *((0 * noises[0], row) for row in truths)]:
            truth = np.outer(ids == one, shift)
            targets = [table @ w for table, w in zip(x, truth, strict=True)]
            targets[one] = targets[one] + noise
            off = Penalized(regression(x, targets), weights).solve(lams[None]).own[0] - truth
            total += [0.5 * np.square(table @ w).mean() for table, w in zip(x, off, strict=True)]
    return total


def test_predicted_losses_are_those_of_the_lams_that_are_given():
    """Half of the clients have a sixth of the rows; own noise costs n / (n - tr M) times as much on new rows."""
    rng = np.random.default_rng(3)
    counts, dim, spread, size = np.repeat([8, 48], 3), 2, 0.2, 1.3
    x = [rng.normal(size=(n, dim)) for n in counts]
    clients, models = regression(x, [np.zeros(n) for n in counts]), np.zeros((6, dim))
    weights = rng.dirichlet(np.ones(6))
    degree = RemlDegree(1.0, 1.0, 1.0, size / (counts * spread), spread, size, 1.0, 1.0)

    for lams in (np.full(6, 0.7), degree.own_lams):
        ahead = outlook(clients, degree, models, lams, weights=weights)

        known = knowledge(clients, models, lams)
        noise = 0.5 * size / counts * np.einsum("nij,nji->n", known, known)
        taken = np.trace(known, axis1=1, axis2=2)
        wanted = added_up(x, weights, lams, spread, size) + noise * taken / (counts - taken)
        np.testing.assert_allclose(ahead.penalized, wanted)
        np.testing.assert_allclose(ahead.shared, added_up(x, weights, np.full(6, np.inf), spread, size))


def draws(num, rows, sizes, scatter, repeats=20):
    """Regressions on columns of these sizes, models scattering alike in every direction."""
    rng, dim = np.random.default_rng(11), len(sizes)
    truth = rng.normal(size=(repeats, 1, dim)) + scatter * rng.normal(size=(repeats, num, dim))
    x = rng.normal(size=(repeats, num, rows, dim)) * sizes
    return x, np.einsum("smnd,smd->smn", x, truth) + rng.normal(size=(repeats, num, rows)), truth


def excess(x, y, truth, sizes, lams):
    """(L,) tr(A (w - w*)(w - w*)^T) / 2, mean over clients; A is the covariance of columns."""
    own = Quadratics.from_rows(x, y).path(lams).own
    return 0.5 * (np.square(own - truth) * np.square(sizes)).sum(-1).mean(-1)


@pytest.mark.parametrize(
    ("rows", "sizes", "scatter", "plug_in"),
    [(60, np.geomspace(1, 0.01, 10), 0.3, 2.0), (22, np.ones(20), 0.3, None), (22, np.ones(20), 0.1, 1.5)],
    ids=["sizes 1 to 0.01", "hardly more rows than columns", "the same, and alike"],
)
def test_flat_directions_do_not_lead_it_astray(rows, sizes, scatter, plug_in):
    """Traces of the rule for one round are all about them: its lam is far too small, and costs as much as said here."""
    grid = np.geomspace(1e-4, 1e3, 57)
    path, settled, once = [], [], []
    for one in zip(*draws(40, rows, sizes, scatter), strict=True):
        clients = regression(*one[:2])
        path.append(excess(*one, sizes, grid))
        settled.append(excess(*one, sizes, [reml_degree(clients).lam])[0])
        once.append(excess(*one, sizes, [plug_in_degree(degree_statistics(clients)).lam])[0])
    best = np.mean(path, 0).min()

    assert np.mean(settled) < 1.05 * best
    assert plug_in is None or np.mean(once) > plug_in * best


def test_all_is_there_from_the_package():
    for name in ("valid_degree", "reml_degree", "outlook"):
        assert hasattr(solvers, name)
    assert solvers.outlook is outlook
