"""How much to personalize: from valid rows. From one round of local estimates: papers/fedclup."""

import numpy as np
import pytest
from offsets import offsets, regression
from scipy.integrate import quad
from scipy.special import gammainc

from plures.errors import BadData
from plures.moreau import shrink_factor
from plures.solvers.degree import valid_degree
from plures.solvers.penalized import Penalized


@pytest.mark.parametrize(("ratio", "freedom"), [(0.4, 7.0), (1.0, 95.0), (3.0, 20.0)])
def test_the_shrink_factor_is_the_mean_of_its_posterior(ratio, freedom):
    """S2 / (s + R2) is chi-square over its freedom; the prior of t = R2 / s is 2 / (1 + t)^3, so that of B is 2 B."""

    def density(b):
        return b * b ** (freedom / 2) * np.exp(-freedom * ratio * (b - 1) / 2)

    mean = quad(lambda b: b * density(b), 0, 1)[0] / quad(density, 0, 1)[0]

    assert shrink_factor(ratio, freedom, gammainc) == pytest.approx(mean, rel=1e-6)


def test_the_shrink_factor_is_steady_where_the_distribution_is_far_away():
    below, above = (shrink_factor(ratio, 4000.0, gammainc) for ratio in (0.2, 0.3))

    assert 0.999 < above < below < 1


def halves(seed=9, num=12, radius=0.4):
    x, y, truth = offsets(radius, repeats=1, num=num, rows=60, dim=3, seed=seed)
    return regression(x[0][:, :20], y[0][:, :20]), regression(x[0][:, 20:], y[0][:, 20:]), truth[0]


LAMS = np.geomspace(1e-2, 1e2, 9)


def test_valid_rows_choose_the_least_mean_loss():
    train, valid, _ = halves()
    own = Penalized(train).solve(LAMS).own

    found = valid_degree(train, valid, LAMS)

    losses = np.array([valid.value(one) for one in own])  # there is no ridge
    np.testing.assert_allclose(found.losses, losses)
    assert found.lam == LAMS[losses.mean(1).argmin()]


def test_a_client_leaves_the_populations_lam_only_for_a_clear_gain():
    """One client is far from all others: it must go alone. Another's best lam is hardly better: it stays."""
    train, valid, truth = halves(radius=0.05)
    far = np.array([9.0, -9.0, 9.0])
    for part in (train, valid):
        part.y[0] += part.a[0] @ (far - truth[0])

    found = valid_degree(train, valid, LAMS, weights=np.r_[0.01, np.full(11, 0.09)])

    assert found.own_lams[0] == LAMS[0] < found.lam
    rivals = found.losses.argmin(0)
    stays = (found.own_places == found.place) & (rivals != found.place)
    assert stays[1:].any()
    gains = np.stack([valid.loss.value(valid.outputs(one), valid.y) for one in found.path.own])
    for client in range(1, 12):
        fall = gains[found.place, client] - gains[rivals[client], client]
        clear = fall.mean() > fall.std(ddof=1) / np.sqrt(40)
        assert found.own_lams[client] == (LAMS[rivals[client]] if clear else found.lam)


def test_valid_rows_must_be_those_of_the_same_clients():
    train, valid, _ = halves()

    with pytest.raises(BadData, match="valid rows are those of the same clients: 12 of 3 numbers trained, 11 of 3"):
        valid_degree(train, valid.take(np.arange(11)), LAMS)
