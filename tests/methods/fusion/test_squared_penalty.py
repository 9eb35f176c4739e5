"""The squared penalty: closed forms of quadratics, optimality with any cohort, newcomers."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from plures import run
from plures.data.worlds import logistic_clusters, mean_estimation
from plures.engine.clients import view
from plures.errors import BadValue, UnknownChoice
from plures.methods.fusion.squared_penalty import squared_penalty

WORLD = mean_estimation(num_clients=6, dim=2, rows=8, radius=1.0, sigma=0.1)
MEANS = np.stack([WORLD.federation.rows_of(name, "train")[1].mean(0) for name in WORLD.federation.names])
GAMMA = 0.05


def closed_form(targets, gamma):
    """x_i = mean + (a_i - mean) / (1 + 2 N gamma) minimizes sum |x_i - a_i|^2 / 2 + gamma sum_(i<j) |x_i - x_j|^2."""
    middle = targets.mean(0)
    return middle + (targets - middle) / (1 + 2 * len(targets) * gamma)


@pytest.mark.parametrize(("cohort", "rounds"), [(None, 12), (2, 80)])
def test_models_of_quadratics_are_shrunk_towards_the_mean(cohort, rounds):
    method = squared_penalty(WORLD.model, gamma=GAMMA, rho=0.5, ridge=0.0, warm=0)

    server = run(method, WORLD.federation, rounds=rounds, cohort=cohort, executor="vectorized").state.server

    np.testing.assert_allclose(server.own, closed_form(MEANS, GAMMA), atol=1e-5)


def test_the_closed_form_is_a_minimum():
    """In the words of L2GD: (lambda / 2) sum |x_i - mean|^2 with lambda = 2 N gamma."""
    found = closed_form(MEANS, GAMMA)
    pairs = 0.5 * np.square(found[:, None] - found[None]).sum()
    around = np.square(found - found.mean(0)).sum()

    assert GAMMA * pairs == pytest.approx(0.5 * (2 * 6 * GAMMA) * around)
    np.testing.assert_allclose(found - MEANS + 2 * GAMMA * (6 * found - found.sum(0)), 0, atol=1e-6)


@pytest.mark.slow
def test_the_optimum_is_reached_by_parts_of_the_clients():
    """grad f_i(x_i) + 2 gamma (N x_i - sum_j x_j) = 0, with rho chosen from one round of statistics."""
    world = logistic_clusters(num_clients=6, num_groups=2, dim=2, rows=40)
    method = squared_penalty(world.model, gamma=0.01, ridge=0.01)

    server = run(method, world.federation, rounds=7 + 60, cohort=3, executor="vectorized").state.server

    models = np.asarray(server.own, float)
    pull = 2 * 0.01 * (6 * models - models.sum(0))
    for uid, name in enumerate(world.federation.names):
        x, y = world.federation.rows_of(name, "train")
        scores = x @ models[uid, 1:] + models[uid, 0]
        force = 1 / (1 + np.exp(-scores)) - y
        gradient = np.append(force.mean(), force @ x / len(y)) + 0.01 * models[uid]
        np.testing.assert_allclose(gradient + pull[uid], 0, atol=2e-5)


def test_a_newcomer_solves_its_own_problem_around_the_mean():
    """argmin |x - a|^2 / 2 + gamma N |x - mean|^2 = (a + 2 gamma N mean) / (1 + 2 gamma N)."""
    seen, unseen = WORLD.federation.hold_out(num_clients=1)
    method = squared_penalty(WORLD.model, gamma=GAMMA, rho=0.5, ridge=0.0, warm=0)
    result = run(method, seen, unseen=unseen, rounds=12, executor="vectorized")
    runner, state = result.runner, result.state

    target = unseen.rows_of(unseen.names[0], "train")[1].mean(0)
    middle = np.asarray(state.server.own).mean(0)
    given = method.offered(state.server, np.asarray(5))
    assert not bool(given.known)

    place = jax.tree.map(lambda leaf: leaf[5], runner.places)
    served = method.serve(jax.random.key(0), given, (), view(runner.layout, runner.arrays, place))
    weight = 2 * GAMMA * 5
    np.testing.assert_allclose(served.params["point"], (target + weight * middle) / (1 + weight), atol=1e-5)


def test_an_unsettled_run_says_so():
    method = squared_penalty(WORLD.model, gamma=GAMMA, rho=5.0, ridge=0.0, warm=0)

    early, late = (
        jax.device_get(
            run(
                replace(method, views=replace(method.views, report=None)), WORLD.federation, rounds=rounds
            ).state.server
        )
        for rounds in (1, 60)
    )

    assert "residual" in method.views.report(early).warnings[0]
    assert not method.views.report(late).warnings


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"gamma": -1.0}, BadValue, "gamma must be"),
        ({"gamma": float("nan")}, BadValue, "gamma must be"),
        ({"rho": -1.0}, BadValue, "rho must be"),
        ({"warm": -1}, BadValue, "warm must be"),
        ({"part": "head"}, UnknownChoice, "no part of this model"),
    ],
)
def test_what_cannot_be_is_refused(options, error, match):
    with pytest.raises(error, match=match):
        squared_penalty(WORLD.model, **options)
