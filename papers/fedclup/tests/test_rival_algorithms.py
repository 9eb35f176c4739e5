"""Rounds of pFedMe, L2GD and Ditto on the problem of FedCLUP: where each ends, and which steps are refused."""

import jax
import numpy as np
import pytest
from ellipses_world import tables

from papers.fedclup.algorithms import ditto, fedclup, l2gd, pfedme
from plures.errors import BadValue
from plures.moreau import envelope
from plures.solvers import Penalized, Quadratics, as_clients


@pytest.fixture(scope="module")
def quadratics():
    """Three clients of unequal weights whose models and curvatures differ."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3, 12, 2)) * np.sqrt([1.0, 8.0])
    truth = rng.normal(size=2) + 0.5 * rng.normal(size=(3, 2))
    y = np.einsum("mnd,md->mn", x, truth) + rng.normal(size=(3, 12))
    return Quadratics.from_rows(x, y, weights=[0.5, 0.2, 0.3], ridge=0.1)


@pytest.fixture(scope="module")
def classes():
    world = tables("logistic", num=6, rows=12)
    return Penalized(as_clients(world.x, world.y, loss="logistic", ridge=0.1), np.arange(1, 7) / 21)


def test_one_local_step_of_pfedme_is_a_round_with_an_exact_prox(quadratics):
    """eta times beta is the server's step gamma."""
    ours = fedclup(quadratics, 2.0, gamma=0.3, inner=np.inf, rounds=5, tol=0.0)

    theirs = pfedme(quadratics, 2.0, eta=0.2, beta=1.5, rounds=5, tol=0.0)

    np.testing.assert_allclose(theirs.shared_error, ours.shared_error, rtol=1e-10)
    np.testing.assert_allclose(theirs.own, ours.own, atol=1e-14)


@pytest.mark.parametrize("beta", [0.6, 1.0])
def test_more_local_steps_of_pfedme_end_elsewhere(quadratics, beta):
    """The fixed point of R steps is sum_i p_i (I - (I - eta E_i)^R) (w - w_i) = 0, E_i the envelope's Hessian."""
    lam, eta, steps = 2.0, 0.2, 6
    left = np.eye(2) - np.linalg.matrix_power(
        np.eye(2) - eta * lam * np.matmul(quadratics.a, np.linalg.inv(quadratics.a + lam * np.eye(2))), steps
    )
    alone = quadratics.path([0.0]).own[0]
    p = quadratics.weights
    ends = np.linalg.solve(np.einsum("m,mij->ij", p, left), np.einsum("m,mij,mj->i", p, left, alone))

    found = pfedme(quadratics, lam, eta=eta, local=steps, beta=beta, rounds=400, tol=0.0)

    np.testing.assert_allclose(found.shared, ends, atol=1e-10)
    assert found.shared_error[-1] > 1e-5
    assert found.gradients == np.inf


def test_an_inexact_prox_of_pfedme_costs_gradients(quadratics):
    found = pfedme(quadratics, 2.0, inner=4, local=1, rounds=300)

    assert found.own_error[-1] <= 1e-8
    assert found.gradients == 4 * found.rounds


@pytest.mark.parametrize("options", [{"eta": 5.0}, {"beta": 0.0}, {"beta": 2.0}, {"local": 0}])
def test_steps_of_pfedme_that_diverge_are_refused(quadratics, options):
    with pytest.raises(BadValue, match=next(iter(options))):
        pfedme(quadratics, 2.0, **options)


def test_a_long_step_of_pfedme_allows_a_small_share_only(quadratics):
    """One step 1.9 / L_g turns errors by 1 - 1.9 = -0.9; the mean of old and new must not: beta < 2 / 1.9."""
    eta = 1.9 / envelope(quadratics.bounds, 2.0).most

    with pytest.raises(BadValue, match=r"below 1.0526"):
        pfedme(quadratics, 2.0, eta=eta, beta=1.06)
    assert pfedme(quadratics, 2.0, eta=eta, beta=1.04).own_error[-1] <= 1e-8
    with pytest.raises(BadValue, match="below 2, where"):  # two such steps turn no error, and end others: 1 - 0
        pfedme(quadratics, 2.0, eta=eta, beta=2.0, local=2)
    assert pfedme(quadratics, 2.0, eta=eta, beta=1.9, local=2, rounds=20).shared_error[-1] < 1


def coins(seed, chance, rounds):
    return np.asarray(jax.random.bernoulli(jax.random.key(seed), chance, (rounds,)))


def test_steps_of_l2gd_are_local_or_toward_the_mean(quadratics):
    lam, alpha, chance = 2.0, 0.02, 0.3
    tossed, own = coins(5, chance, 12), np.zeros((3, 2))
    for average in tossed:
        gradients = np.einsum("mij,mj->mi", quadratics.a, own) - quadratics.b
        mean = quadratics.weights @ own
        own = own - (alpha * lam / chance * (own - mean) if average else alpha / (1 - chance) * gradients)

    found = l2gd(quadratics, lam, jax.random.key(5), alpha=alpha, chance=chance, rounds=12, tol=0.0)

    np.testing.assert_allclose(found.own, own, atol=1e-14)
    np.testing.assert_allclose(found.shared, quadratics.weights @ own, atol=1e-14)
    assert found.gradients == (~tossed).sum()
    assert found.talks == (tossed[1:] & ~tossed[:-1]).sum()


def test_steps_of_l2gd_are_gradient_steps_on_average(quadratics):
    """The mean over coins is gradient descent: w_i -= alpha (slope_i + lam (w_i - mean)), since all steps are linear."""
    lam, alpha, own = 2.0, 0.02, np.zeros((3, 2))
    for _ in range(6):
        gradients = np.einsum("mij,mj->mi", quadratics.a, own) - quadratics.b
        own = own - alpha * (gradients + lam * (own - quadratics.weights @ own))

    runs = [
        l2gd(quadratics, lam, key, alpha=alpha, chance=0.4, rounds=6, tol=0.0).own
        for key in jax.random.split(jax.random.key(0), 400)
    ]

    error = np.std(runs, axis=0) / np.sqrt(len(runs))
    assert (np.abs(np.mean(runs, axis=0) - own) < 4.5 * error).all()


def test_l2gd_ends_near_the_solution_and_nearer_with_shorter_steps(quadratics):
    """What is left is of the order of alpha."""
    key = jax.random.key(1)

    floors = [
        l2gd(quadratics, 2.0, key, alpha=alpha, rounds=4_000, tol=0.0).own_error[-2_000:].mean()
        for alpha in (0.02, 0.005)
    ]

    assert 2 < floors[0] / floors[1] < 8


def test_clients_that_agree_are_solved_exactly_by_l2gd(quadratics):
    """With one loss for all, no step moves the solution."""
    same = Quadratics.of(np.tile(quadratics.a[0], (3, 1, 1)), np.tile(quadratics.b[0], (3, 1)))

    assert l2gd(same, 1.0, jax.random.key(0), rounds=4_000, tol=1e-20).own_error[-1] <= 1e-20


@pytest.mark.parametrize("options", [{"alpha": 1.0}, {"chance": 0.0}, {"chance": 1.0}, {"rounds": 0}])
def test_steps_of_l2gd_that_diverge_are_refused(quadratics, options):
    with pytest.raises(BadValue, match=next(iter(options))):
        l2gd(quadratics, 2.0, jax.random.key(0), **options)


def test_ditto_holds_models_near_the_pooled_minimizer(quadratics):
    lam, best = 2.0, quadratics.path([np.inf]).shared[0]

    found = ditto(quadratics, lam)

    wanted = [
        np.linalg.solve(a + lam * np.eye(2), b + lam * best)
        for a, b in zip(quadratics.a, quadratics.b, strict=True)
    ]
    np.testing.assert_allclose(found.shared, best, atol=1e-14)
    np.testing.assert_allclose(found.own, wanted, atol=1e-13)
    assert found.own_error[0] > 1e-5  # (P) is another problem
    assert found.talks == 0


def test_one_local_step_of_fedavg_ends_at_the_pooled_minimizer(quadratics):
    found = ditto(quadratics, 2.0, local=1, rounds=600)

    np.testing.assert_allclose(found.shared, quadratics.path([np.inf]).shared[0], atol=1e-10)
    np.testing.assert_allclose(found.own, ditto(quadratics, 2.0).own, atol=1e-10)


def test_more_local_steps_of_fedavg_end_elsewhere(quadratics):
    """The fixed point of K steps is sum_i p_i (I - (I - alpha A_i)^K) (w - w_i) = 0, not the pooled minimizer."""
    alpha = 0.5 / quadratics.bounds.most
    left = np.eye(2) - np.linalg.matrix_power(np.eye(2) - alpha * quadratics.a, 8)
    p, alone = quadratics.weights, quadratics.path([0.0]).own[0]
    ends = np.linalg.solve(np.einsum("m,mij->ij", p, left), np.einsum("m,mij,mj->i", p, left, alone))
    pooled = quadratics.path([np.inf]).shared[0]

    found = ditto(quadratics, 2.0, local=8, alpha=alpha, rounds=400)

    np.testing.assert_allclose(found.shared, ends, atol=1e-10)
    assert np.linalg.norm(found.shared - pooled) > 1e-2 * np.linalg.norm(pooled)


def test_fedavg_of_logistic_losses_has_the_same_gap(classes):
    pooled = classes.solve([np.inf]).shared[0]

    one, many = (ditto(classes, 1.0, local=local, rounds=300).shared for local in (1, 20))

    np.testing.assert_allclose(one, pooled, atol=1e-4)
    assert np.linalg.norm(many - pooled) > 0.02 * np.linalg.norm(pooled)


@pytest.mark.parametrize("options", [{"local": 0}, {"local": 1, "alpha": 1.0}])
def test_steps_of_fedavg_that_diverge_are_refused(quadratics, options):
    with pytest.raises(BadValue, match=list(options)[-1]):
        ditto(quadratics, 2.0, **options)
