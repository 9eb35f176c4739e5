"""The envelope's formulas: its curvature, the steps that follow from it, and the number of inner steps."""

import jax.numpy as jnp
import numpy as np
import pytest

from plures.moreau import Bounds, client_step, envelope, num_inner, server_step

LOSS = Bounds(0.608, 11.86)
TABLE = {0.01: (1.02, 14), 0.1: (1.15, 16), 1.0: (2.44, 14), 10.0: (9.47, 6), 100.0: (17.55, 3), 1000.0: (19.29, 2)}


def feed(loss, lam, gamma, number):
    """The matrix of the two errors of a round, of the shared model and of the worst personal one."""
    mean, reach = envelope(loss, lam), lam / (lam + loss.least)
    shrink = (1 - (loss.least + lam) / (loss.most + lam)) ** number
    return np.array(
        [
            [1 - gamma * mean.least, gamma * lam],
            [shrink * reach * gamma * mean.most, shrink * (1 + reach * gamma * lam)],
        ]
    )


def radius(matrix):
    return np.abs(np.linalg.eigvals(matrix)).max()


@pytest.mark.parametrize("lam", TABLE)
def test_condition_and_inner_steps_are_those_of_the_table(lam):
    condition, number = TABLE[lam]

    assert envelope(LOSS, lam).condition == pytest.approx(condition, abs=0.006)  # mu and L have three digits
    assert num_inner(LOSS, lam) == number


@pytest.mark.parametrize("lam", [1e-3, 0.3, 7.0, 2e4])
@pytest.mark.parametrize("pace", [0.4, 1.0])
def test_inner_steps_are_the_fewest_that_keep_half_of_the_rate(lam, pace):
    gamma = pace * server_step(LOSS, lam)
    wanted = 1 - gamma * envelope(LOSS, lam).least / 2

    number = num_inner(LOSS, lam, gamma)

    assert radius(feed(LOSS, lam, gamma, number)) <= wanted + 1e-12
    assert number == 1 or radius(feed(LOSS, lam, gamma, number - 1)) > wanted


def test_the_envelope_of_a_parabola_has_the_curvature_of_its_minimum():
    """min_u s u^2 / 2 + lam (w - u)^2 / 2 at w = 1 is lam s / (lam + s) / 2."""
    u = np.linspace(0.0, 1.0, 100_001)

    for s, curvature in zip((0.5, 4.0), envelope(Bounds(0.5, 4.0), 1.5), strict=True):
        assert curvature == pytest.approx(2 * (s * u**2 / 2 + 1.5 * (1 - u) ** 2 / 2).min(), abs=1e-8)


@pytest.mark.parametrize("lam", [0.01, 1.0, 1e3])
def test_the_servers_step_is_one_over_the_envelopes_curvature(lam):
    assert server_step(LOSS, lam) == pytest.approx(1 / envelope(LOSS, lam).most, rel=1e-14)
    assert client_step(LOSS, lam) == pytest.approx(1 / (11.86 + lam), rel=1e-14)


def test_the_condition_goes_from_one_to_that_of_the_loss():
    few, many = envelope(LOSS, 1e-9), envelope(LOSS, 1e9)

    assert few.condition == pytest.approx(1, abs=1e-8)
    assert many.condition == pytest.approx(LOSS.condition, rel=1e-7)


def test_equal_curvatures_need_one_inner_step():
    assert num_inner(Bounds(2.0, 2.0), 3.0) == 1


def test_jax_finds_the_same_number_for_many_strengths_at_once():
    lams = np.array(list(TABLE))

    found = num_inner(Bounds(jnp.float32(0.608), jnp.float32(11.86)), jnp.asarray(lams, jnp.float32), xp=jnp)

    np.testing.assert_array_equal(found, [number for _, number in TABLE.values()])
