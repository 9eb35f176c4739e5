"""Agnostic FedAvg: the domains' weights follow their losses, exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.data.federation import from_arrays
from plures.errors import BadValue, UnknownChoice
from plures.methods.agnostic import DomainUpload, agnostic, move_weights
from plures.models.linear import mean as mean_model
from plures.types import Plan

BOTH = jnp.array([True, True])


def test_exponentiated_weights_multiply_by_the_exponential_of_the_loss():
    """Constant losses a > b: after T steps the ratio has grown by exp(step * T * (a - b))."""
    lam = jnp.array([0.25, 0.75])
    for _ in range(20):
        lam = move_weights(lam, jnp.array([2.0, 0.5]), BOTH, 0.05, "exponentiated")

    assert float(lam[0] / lam[1]) == pytest.approx((0.25 / 0.75) * np.exp(0.05 * 20 * 1.5), rel=1e-5)
    assert float(lam.sum()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("rule", ["exponentiated", "projected", "fixed"])
def test_a_domain_nobody_spoke_for_keeps_its_weight(rule):
    seen = jnp.array([True, False, True])

    after = move_weights(jnp.array([0.2, 0.3, 0.5]), jnp.array([1.0, 0.0, 3.0]), seen, 0.1, rule)

    assert float(after[1]) == pytest.approx(0.3, abs=1e-6)
    assert float(after.sum()) == pytest.approx(1.0, abs=1e-6)


def test_the_projected_step_adds_the_centered_losses_inside_the_simplex():
    after = move_weights(jnp.array([0.5, 0.5]), jnp.array([2.0, 1.0]), BOTH, 0.1, "projected")

    np.testing.assert_allclose(after, [0.55, 0.45], atol=1e-6)


def test_the_projected_step_stops_at_a_corner():
    after = move_weights(jnp.array([0.5, 0.5]), jnp.array([30.0, 1.0]), BOTH, 0.1, "projected")

    np.testing.assert_allclose(after, [1.0, 0.0], atol=1e-6)


def two_domains():
    """Nine clients around 0 and one around 1: the mean of all is 0.1, the minimax point of both domains is 0.5."""
    y = np.repeat(np.r_[np.zeros(9), 1.0], 4)[:, None].astype(np.float32)
    client = np.repeat([f"c{k}" for k in range(10)], 4)
    domain = {f"c{k}": int(k == 9) for k in range(10)}
    return from_arrays(
        np.zeros((40, 0), np.float32), y, client, task="regression", shares=(1.0, 0.0, 0.0), domain=domain
    )


@pytest.mark.parametrize("rule", ["exponentiated", "projected"])
def test_the_model_goes_to_the_minimax_point(rule):
    method = agnostic(
        mean_model((0,), 1), num_domains=2, plan=Plan(batch=None, lr=0.2), domain_lr=0.2, rule=rule, window=2
    )

    result = run(method, two_domains(), rounds=150, eval_every=150)

    assert float(result.model_for(0).predict(np.zeros((1, 0))).ravel()[0]) == pytest.approx(0.5, abs=0.02)


def test_fixed_weights_count_domains_equally_whatever_their_size():
    method = agnostic(mean_model((0,), 1), num_domains=2, plan=Plan(batch=None, lr=1.0), rule="fixed")

    result = run(method, two_domains(), rounds=3, eval_every=3)

    assert float(result.model_for(0).predict(np.zeros((1, 0))).ravel()[0]) == pytest.approx(0.5, abs=1e-5)


def test_a_domain_that_was_away_does_not_drown_the_others():
    """Domain 1 is absent in the first round; back in the second, equal domains still count half each."""
    method = agnostic(mean_model((0,), 1), num_domains=2, plan=Plan(batch=None, lr=1.0), rule="fixed")
    server = method.start(jax.random.key(0), 2)

    def report(amounts, domains):
        update = jax.tree.map(lambda leaf: jnp.asarray(amounts).reshape(-1, *leaf.shape), server.base.weights)
        return DomainUpload(update, jnp.asarray(domains), jnp.zeros(len(domains)))

    first = method.merge(server, report([0.0, 0.0], [0, 0]), jnp.ones(2), jnp.arange(2))
    second = method.merge(first, report([1.0, 3.0], [0, 1]), jnp.array([30.0, 1.0]), jnp.arange(2))

    point = jax.tree.leaves(second.base.weights)[0]
    assert float(point.ravel()[0]) == pytest.approx(2.0, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_domains": 0}, BadValue, "num_domains must be 1 or more, got 0"),
        ({"window": 0}, BadValue, "window must be 1 or more, got 0"),
        ({"domain_lr": -1.0}, BadValue, "domain_lr must be 0 or more, got -1.0"),
        ({"rule": "none"}, UnknownChoice, "no rule is called 'none'"),
    ],
)
def test_options_out_of_range_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        agnostic(mean_model((0,), 1), **{"num_domains": 2, **options})
