"""L2GD and pFedMe: steps on the same problem as FedCLUP."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from regressions import DIM, FEDERATION, LAM, MODEL, moments, own_of, shared_of, solved

from plures import run
from plures.methods.penalized.descent import Penalty, PenaltySettings
from plures.methods.penalized.fedclup import fedclup
from plures.methods.penalized.l2gd import l2gd
from plures.methods.penalized.pfedme import pfedme
from plures.types import Data, Plan, Rows, Weights


def penalty_gradient(own, mean):
    """The gradient of sum_i p_i (L_i + lam / 2 |w_i - mean|^2) with respect to the w_i, over p_i."""
    a, b = moments(FEDERATION)
    return np.einsum("kij,kj->ki", a, own) - b + LAM * (own - mean)


def test_a_toss_of_the_coin_is_a_gradient_step_on_average():
    """(1 - p) tails + p heads = w_i - alpha gradient, for any models."""
    from plures.methods.penalized.descent import PersonalDescent, Steps
    from plures.methods.penalized.l2gd import Coin

    own = np.asarray(jax.random.normal(jax.random.key(0), (5, DIM)))
    chance, alpha = 0.3, 0.05
    coin = Coin(
        PersonalDescent.of(MODEL, Plan(), PenaltySettings(penalty=Penalty(lam=LAM))), chance, alpha, "fixed"
    )
    steps = Steps(*(jnp.asarray(value) for value in (LAM, 1.0, 0.1, 1, 1, True)))
    mean, found = own.mean(0), []
    for k, name in enumerate(FEDERATION.names):
        x, y = FEDERATION.rows_of(name, "train")
        rows = Rows(x=jnp.asarray(x), y=jnp.asarray(y), start=0, count=len(x), capacity=len(x))
        data = Data(train=rows, valid=replace(rows, count=0))
        tails, _ = coin.alone(
            jax.random.key(0), Weights({"kernel": jnp.asarray(own[k])}), steps, jnp.asarray(1), data
        )
        heads = mean + float(coin.left(steps, data, jnp.asarray(1))) * (own[k] - mean)
        found.append((1 - chance) * np.asarray(tails.params["kernel"]) + chance * heads)

    np.testing.assert_allclose(found, own - alpha * penalty_gradient(own, mean), atol=1e-5)


@pytest.mark.slow
def test_l2gd_with_small_steps_comes_near_the_optimum_of_the_same_problem():
    method = l2gd(MODEL, lam=LAM, alpha=0.01, coin="fixed", p=0.5)
    result = run(method, FEDERATION, rounds=600, executor="vectorized")

    _, own = solved(FEDERATION, LAM, np.full(5, 0.2))

    np.testing.assert_allclose(own_of(result), own, atol=0.02)


def test_runs_of_tails_have_the_mean_of_a_geometric_distribution():
    from plures.methods.penalized.descent import PersonalDescent
    from plures.methods.penalized.l2gd import Coin

    coin = Coin(PersonalDescent.of(MODEL, Plan(), PenaltySettings(penalty=Penalty(lam=LAM))), 0.25, None, "random")
    server = fedclup(MODEL, lam=LAM, local="sgd").start(jax.random.key(0), 3)
    keys = jax.random.split(jax.random.key(1), 4000)

    lengths = jax.vmap(lambda key: coin.tails(server._replace(key=key)))(keys)
    heads = jax.vmap(lambda key: coin.heads(server._replace(key=key)))(keys)

    assert float(lengths.mean()) == pytest.approx(4.0, abs=0.25)
    assert float(heads.mean()) == pytest.approx(4 / 3, abs=0.06)
    assert (int(lengths.min()), int(heads.min())) == (1, 1)


@pytest.mark.slow
def test_more_local_rounds_of_pfedme_leave_the_optimum():
    """With one local round w_g is the optimum of (P); with five, clients that differ pull it away."""
    shared, _ = solved(FEDERATION, LAM, np.full(5, 0.2))
    gaps = [
        np.abs(
            shared_of(run(pfedme(MODEL, lam=LAM, local_rounds=n), FEDERATION, rounds=80, executor="vectorized"))
            - shared
        ).max()
        for n in (1, 5)
    ]

    assert gaps[0] < 2e-5
    assert gaps[1] > 1e-3
