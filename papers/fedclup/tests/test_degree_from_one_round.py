"""How much to personalize: from one round of local estimates, and from the likelihood of rows."""

import numpy as np
import pytest
from offsets import many, mean_estimation, offsets, regression

from papers.fedclup.degree import RULES, degree_statistics, plug_in, plug_in_degree
from plures.errors import BadData, UnknownChoice
from plures.solvers.clients import as_clients
from plures.solvers.degree import gradient_covariance
from plures.solvers.quadratic import Quadratics
from plures.solvers.reml import reml_degree

LISTED = {  # local, global, best lam of a grid, plug-in; 40 repeats
    0.05: (0.1111, 0.0072, 0.0071, 0.0079),
    0.2: (0.1109, 0.0448, 0.0340, 0.0354),
    0.5: (0.1152, 0.2576, 0.0799, 0.0804),
    1.0: (0.1121, 1.0118, 0.1004, 0.1007),
    2.0: (0.1097, 4.0246, 0.1070, 0.1071),
}
REPEATS = 100
GRID = np.geomspace(1e-3, 1e4, 43)


def errors_of(own, truth):
    """(L, repeats) squared errors, mean over clients."""
    return np.square(own - truth).sum(-1).mean(-1)


def strengths(x, y, how):
    return np.array([how(regression(*one)).lam for one in zip(x, y, strict=True)])


def errors_at(x, y, truth, lams):
    """(repeats,) errors at a strength for each repeat."""
    each = zip(x, y, truth, lams, strict=True)
    return np.array([errors_of(Quadratics.from_rows(a, b).path([lam]).own, w)[0] for a, b, w, lam in each])


def one_round(rule="soft"):
    return lambda clients: plug_in_degree(degree_statistics(clients), rule=rule)


def clearly_within(ours, listed):
    """Whether a mean over our repeats is a listed mean of 40, by four Monte-Carlo errors and the last digit."""
    error = ours.std(ddof=1) * np.sqrt(1 / len(ours) + 1 / 40)
    return abs(ours.mean() - listed) <= 4 * error + 1e-4


@pytest.mark.parametrize("radius", LISTED)
def test_the_plug_in_lam_is_near_the_best_of_a_grid(radius):
    """The reference table: linear regression, 20 clients of 50 rows and 5 columns."""
    x, y, truth = offsets(radius, repeats=REPEATS, seed=1)
    local, shared, best, listed = LISTED[radius]
    path = errors_of(Quadratics.from_rows(x, y).path(np.r_[0.0, np.inf, GRID]).own, truth)
    ours = path[2:][path[2:].mean(1).argmin()]

    cut, soft, settled = (
        errors_at(x, y, truth, strengths(x, y, how)) for how in (one_round("cut"), one_round(), reml_degree)
    )

    assert clearly_within(path[0], local)
    assert clearly_within(path[1], shared)
    assert clearly_within(ours, best)
    assert clearly_within(cut, listed)
    assert cut.mean() < (1.07 if radius >= 0.2 else 1.30) * ours.mean()
    assert soft.mean() < (1.05 if radius >= 0.2 else 1.30) * ours.mean()
    assert settled.mean() < (1.05 if radius >= 0.2 else 1.25) * ours.mean()


@pytest.mark.parametrize("how", [one_round(), reml_degree], ids=["one round", "settled"])
def test_the_same_holds_where_columns_have_different_sizes(how):
    x, y, truth = offsets(0.2, repeats=REPEATS, spread=np.linspace(0.5, 4, 5), seed=2)
    path = errors_of(Quadratics.from_rows(x, y).path(GRID).own, truth).mean(1)

    assert errors_at(x, y, truth, strengths(x, y, how)).mean() < 1.05 * path.min()


def test_the_error_is_u_shaped_near_the_noise_and_monotone_far_from_it():
    grid = np.geomspace(1e-3, 1e3, 13)
    near, low, high = (
        errors_of(Quadratics.from_rows(x, y).path(grid).own, truth).mean(1)
        for x, y, truth in (offsets(radius, repeats=40, seed=3) for radius in (0.34, 0.0, 20.0))
    )

    turn = near.argmin()
    assert 0 < turn < len(grid) - 1
    assert (np.diff(near[: turn + 1]) < 0).all()
    assert (np.diff(near[turn:]) > 0).all()
    assert near[turn] < 0.7 * min(near[0], near[-1])
    assert (np.diff(low) < 0).all()
    assert (np.diff(high[grid > 1e-2]) > 0).all()


def test_for_means_the_statistics_are_the_textbook_ones():
    """Half the mean squared error of sqrt(d) z is |w - mean|^2 / 2: s = variance of the mean, h = 1, lam = s / (S2 - s)."""
    x, y, points = mean_estimation()
    num, times, dim = points.shape
    means = points.mean(1)
    noise = points.var(axis=1, ddof=1).sum(-1).mean() / times
    spread = means.var(axis=0, ddof=1).sum()

    stats = degree_statistics(regression(x, y))
    found = plug_in_degree(stats, rule="cut")

    np.testing.assert_allclose(stats.models, means)
    np.testing.assert_allclose(stats.noise, noise)
    np.testing.assert_allclose(stats.scaled_noise / stats.noise, 1.0)
    np.testing.assert_allclose([found.noise, found.spread, found.unexplained], [noise, spread, spread - noise])
    assert found.lam == pytest.approx(noise / (spread - noise))
    assert found.lam == pytest.approx(float(plug_in(noise, spread, 1.0).lam))
    assert found.freedom == pytest.approx((num - 1) * dim)
    np.testing.assert_allclose(found.own_lams, found.lam)


EVERY = [one_round("soft"), one_round("cut"), reml_degree]


@pytest.mark.parametrize("how", EVERY, ids=["soft", "cut", "settled"])
def test_lam_has_the_unit_of_curvature(how):
    """Ten times the targets change nothing; three times the columns make Hessians, and lam, nine times as large."""
    x, y = many()

    lam = how(regression(x, y)).lam

    assert how(regression(x, 10 * y)).lam == pytest.approx(lam, rel=1e-6)
    assert how(regression(3 * x, y)).lam == pytest.approx(9 * lam, rel=1e-6)


@pytest.mark.parametrize("how", EVERY, ids=["soft", "cut", "settled"])
def test_the_order_of_clients_does_not_matter(how):
    x, y = many()
    order = np.array([3, 1, 7, 0, 2, 6, 5, 4])

    before, after = how(regression(x, y)), how(regression(x[order], y[order]))

    assert after.lam == pytest.approx(before.lam)
    np.testing.assert_allclose(after.own_lams, before.own_lams[order])


def test_lams_of_clients_fall_with_their_rows():
    x, y = many()
    counts = np.array([30, 30, 30, 30, 15, 15, 10, 10])
    clients = regression(
        [a[:n] for a, n in zip(x, counts, strict=True)], [b[:n] for b, n in zip(y, counts, strict=True)]
    )

    for how in EVERY:
        found = how(clients)
        np.testing.assert_allclose(found.own_lams * counts, (found.own_lams * counts)[0])
        assert found.own_lams.mean() == pytest.approx(found.lam)


def labels(loss, seed=5, num=3, rows=80, dim=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, rows, dim))
    y = (x @ np.array([1.0, -0.5]) + rng.logistic(size=(num, rows)) > 0).astype(float)
    return as_clients(x, y, loss=loss, ridge=1e-5)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_likelihoods_have_the_inverse_hessian_as_their_error(loss):
    clients = labels(loss)

    stats = degree_statistics(clients)

    inverse = np.linalg.inv(clients.curvature(stats.models))
    np.testing.assert_allclose(stats.noise, np.trace(inverse, axis1=1, axis2=2) / 80)
    np.testing.assert_allclose(stats.scaled_noise, 3 / 80)


@pytest.mark.parametrize("loss", ["squared_hinge", "huber"])
def test_other_losses_have_a_sandwich(loss):
    clients = labels(loss)

    stats = degree_statistics(clients)

    one = clients.take([1])
    inverse = np.linalg.inv(one.curvature(stats.models[1:2])[0])
    gradients = clients.loss.gradient(one.outputs(stats.models[1:2]), one.y)[0] * one.a[0]
    meat = gradients.T @ gradients / 80
    assert stats.noise[1] == pytest.approx(np.trace(inverse @ meat @ inverse) / 80)
    assert stats.scaled_noise[1] == pytest.approx(np.trace(inverse @ meat) / 80)
    np.testing.assert_allclose(gradient_covariance(one, stats.models[1:2])[0], meat)


def test_a_shift_of_all_classes_does_not_count():
    """Two classes of a multinomial model are a logistic one split in halves: half the squared error, twice the curvature."""
    two, one = degree_statistics(labels("multinomial")), degree_statistics(labels("logistic"))

    np.testing.assert_allclose(two.noise, one.noise / 2, rtol=1e-3)
    np.testing.assert_allclose(two.scaled_noise, one.scaled_noise)
    assert plug_in_degree(two).lam == pytest.approx(2 * plug_in_degree(one).lam, rel=1e-2)


def test_a_client_with_too_few_rows_still_has_a_lam():
    x, y = many()
    short = [*list(x[:-1]), x[-1][:3]], [*list(y[:-1]), y[-1][:3]]

    stats = degree_statistics(regression(*short))

    assert stats.usable.tolist() == [True] * 7 + [False]
    assert stats.scaled_noise[-1] == pytest.approx(stats.scaled_noise[0] * 30 / 3)
    assert np.isfinite(plug_in_degree(stats).own_lams).all()


def test_statistics_that_cannot_be_had_are_refused():
    x, y = many()
    apart = as_clients([[[-1.0], [1.0]]] * 3, [[0, 1]] * 3, loss="logistic", ridge=1e-3)

    with pytest.raises(BadData, match="two clients or more, got 1"):
        degree_statistics(regression(x[:1], y[:1]))
    with pytest.raises(BadData, match="two clients or more, got 1"):
        reml_degree(regression(x[:1], y[:1]))
    with pytest.raises(BadData, match=r"none has more rows \(3 at most\) than numbers in its model \(3\)"):
        degree_statistics(regression(x[:, :3], y[:, :3]))
    with pytest.raises(BadData, match=r"no client has more rows \(3 at most\) than numbers in its model \(3\)"):
        reml_degree(as_clients(x[:, :3], y[:, :3], loss="least_squares", ridge=0.1, intercept=False))
    with pytest.raises(BadData, match=r"0 of 3 clients determine .* as far away as the ridge lets them"):
        degree_statistics(apart)
    with pytest.raises(UnknownChoice, match="no rule is called 'hard'"):
        plug_in_degree(degree_statistics(regression(x, y)), rule="hard")
    assert RULES == ("soft", "cut")


def test_the_plug_in_is_curvature_times_noise_over_heterogeneity():
    found = plug_in(0.5, 2.5, 3.0)

    assert found.lam == pytest.approx(3.0 * 0.5 / 2.0)
    assert found.heterogeneity == pytest.approx(2.0)


def test_a_spread_below_the_noise_leaves_a_share_of_itself():
    """R2 = 0.01 * 0.2 where 0.2 - 0.5 is negative."""
    found = plug_in(0.5, 0.2, 3.0, least=0.01)

    assert found.heterogeneity == pytest.approx(0.002)
    assert found.lam == pytest.approx(750.0)
