"""Clustering methods on quadratics, where algebra says where they end: known clusters, strawmen, attackers."""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.attacks.upload_attacks import edge, large_noise
from plures.data.worlds.known_optima import quadratics
from plures.methods.clustering.oracle import oracle
from plures.methods.threshold import model_table as _rounds
from plures.methods.threshold.federated_clustering import federated_clustering
from plures.methods.threshold.model_table import draw_groups
from plures.methods.threshold.myopic_clustering import myopic_clustering
from plures.types import Plan, Weights

TAU = math.sqrt(20.0)  # between the noise 1 and the gap 20
STEP = Plan(steps=1, batch=None, lr=0.1)


def points(done):
    return np.asarray(done.state.server.models.params["point"])


def started(method, first):
    """The method with everybody's model given."""

    def start(key, num_clients):
        server = method.start(key, num_clients)._replace(models=Weights({"point": jnp.asarray(first)}))
        return draw_groups(server) if hasattr(server, "queue") else server

    return replace(method, start=start)


@pytest.fixture(scope="module")
def line():
    """Even clients have their optimum at 0, odd ones at 20; all start at 10, the first one at 11."""
    return quadratics(num_clients=10, num_groups=2, dim=1, rows=1, sigma=0.0), np.r_[11.0, np.full(9, 10.0)][
        :, None
    ]


def test_slopes_at_different_models_lead_astray(line):
    """Near their optima all gradients are small, so clusters merge, and an early offset never shrinks."""
    world, first = line
    method = started(myopic_clustering(world.model, plan=STEP, radius=5.0), first)

    found = points(run(method, world.federation, rounds=400))[:, 0]

    np.testing.assert_allclose(found[0], 2.681, atol=5e-4)
    np.testing.assert_allclose(found[2::2], 2.4435, atol=5e-5)
    np.testing.assert_allclose(found[1::2], 17.509, atol=5e-4)


@pytest.mark.slow
def test_slopes_at_one_model_lead_to_the_optima(line):
    world, first = line
    method = started(federated_clustering(world.model, plan=STEP, radius=5.0), first)

    found = points(run(method, world.federation, rounds=400))

    np.testing.assert_allclose(found, world.truth, atol=5e-5)


@pytest.mark.slow
def test_noisy_clusters_move_as_if_they_were_known():
    """The same trajectory as with known clusters, at a mean squared distance of lr / (n (2 - lr)), n = 4."""
    world = quadratics(num_clients=8, num_groups=2, dim=10)
    plan = Plan(steps=1, batch=1, lr=0.5)

    def losses(method):
        table = run(method, world.federation, rounds=120, eval_every=10).record.table()
        found = table.filter(kind="personal", split="valid", metric="loss").sort("round", "uid")
        return found["value"].to_numpy().reshape(12, 8)[2:]

    ours = losses(federated_clustering(world.model, plan=plan, radius=TAU))
    known = losses(oracle(world.model, num_groups=2, plan=plan))

    np.testing.assert_allclose(ours, known, rtol=1e-3, atol=1e-5)
    # 10 moments in 2 groups and 10 dimensions: a standard error of 10 %.
    assert 2 * ours.mean() == pytest.approx(0.5 / (4 * 1.5), rel=0.35)


def at_the_edge(num_clients, share, seed=0):
    """Attackers at the edge of the ball of whoever they write to; what else they send is left alone."""
    attack = edge(share=share, radius=TAU, seed=seed).bound(num_clients)

    def forge(key, uploads, weights, uids, receivers):
        return uploads._replace(gradient=attack.forge(key, uploads.gradient, weights, uids, receivers))

    return replace(attack, forge=forge, bound=None)


@pytest.mark.slow
def test_attackers_at_the_edge_of_the_ball_shift_models_as_far_as_the_formula_says(monkeypatch):
    """b attackers among n honest clients move the center by b / (n + b) * 0.9 tau, and the model with it.

    Clients whose models are equal for a while are lied to as one, in one direction: here everyone is asked apart.
    """
    monkeypatch.setattr(_rounds, "first_alike", lambda models, group: jnp.arange(len(group)))
    world = quadratics(num_clients=12, num_groups=2, dim=3, rows=1, sigma=0.0)
    method = federated_clustering(world.model, plan=STEP, radius=TAU)

    done = run(method, world.federation, rounds=100, channels=(at_the_edge(12, 2 / 12),))

    honest = ~done.runner.attackers
    size = np.bincount(world.federation.group[honest])[world.federation.group]
    away = np.linalg.norm(points(done) - world.truth, axis=1)
    np.testing.assert_allclose(away[honest], (2 / (size + 2) * 0.9 * TAU)[honest], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("attackers", "table"), [(1, 0.0586), (2, 0.2020), (4, 0.6491)])
def test_attackers_at_the_edge_end_to_end(attackers, table):
    """Groups of 16 honest clients with noise; the floor of the formula, plus what noise leaves."""
    number = 32 + attackers
    world = quadratics(num_clients=number, num_groups=2, dim=10)
    attack, bad = next(
        (attack, bad)
        for attack in (at_the_edge(number, attackers / number, seed) for seed in range(100))
        for bad in [np.asarray(attack.members(jnp.arange(number)))]
        if (np.bincount(world.federation.group[~bad]) == 16).all()
    )
    method = federated_clustering(world.model, plan=Plan(steps=1, batch=1, lr=0.1), radius=TAU)

    done = run(method, world.federation, rounds=400, eval_every=20, channels=(attack,))

    scores = done.record.table().filter(kind="personal", split="valid", metric="loss")
    late = scores.filter(scores["round"] > 100).sort("round", "uid")["value"].to_numpy().reshape(15, -1)
    found = 2 * late[:, ~bad].mean()
    floor = (attackers / (16 + attackers)) ** 2 * 0.81 * 20 + 0.1 / (16 * 1.9)
    assert found == pytest.approx(floor, rel=0.05)
    assert found == pytest.approx(table, rel=0.05)


@pytest.mark.slow
def test_attackers_outside_the_ball_cannot_be_told_apart():
    """Whatever they send, honest clients have the same models to the last bit."""
    world = quadratics(num_clients=10, num_groups=2, dim=3, rows=20)
    method = federated_clustering(world.model, plan=Plan(steps=1, batch=5, lr=0.1), radius=TAU)

    one, other = (
        run(method, world.federation, rounds=15, channels=(large_noise(share=0.2, offset=offset),))
        for offset in (1e6, -3e4)
    )

    honest = ~one.runner.attackers
    assert honest.sum() == 8
    np.testing.assert_array_equal(points(one)[honest], points(other)[honest])
