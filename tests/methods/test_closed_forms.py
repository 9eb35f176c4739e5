"""Methods against algebra: what they must reach where the answer is known."""

from dataclasses import replace

import numpy as np
import optax
import pytest

from plures import run
from plures.data.worlds import linear_clusters, mean_estimation
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.methods.clustering.oracle import oracle
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.methods.fedprox import fedprox
from plures.methods.local_only import local_only
from plures.methods.scaffold import scaffold
from plures.types import Plan

EXACT = Plan(batch=None, lr=1.0)
WORLD = mean_estimation(num_clients=4, dim=2, rows=6, radius=1.0, sigma=0.1)


def local_means(federation):
    return np.stack([federation.rows_of(name, "train")[1].mean(0) for name in federation.names])


def server_point(result):
    return np.asarray(result.state.server.weights.params["point"])


def own_points(result, num_clients=4):
    return np.stack([result.model_for(uid).weights.params["point"] for uid in range(num_clients)])


def unequal():
    """Two clients with 2 and 6 rows."""
    federation = WORLD.federation.subset(["client-0", "client-1"])
    count = federation.count.copy()
    count[0, 0] = 2
    return replace(federation, count=count)


def test_fedavg_weighs_clients_by_their_rows_or_equally():
    federation = unequal()
    means = local_means(federation)

    by_rows = run(fedavg(WORLD.model, plan=EXACT), federation, rounds=1)
    equally = run(fedavg(WORLD.model, plan=EXACT, weighting="uniform"), federation, rounds=1)

    np.testing.assert_allclose(server_point(by_rows), (2 * means[0] + 6 * means[1]) / 8, atol=1e-5)
    np.testing.assert_allclose(server_point(equally), means.mean(0), atol=1e-5)


def test_server_momentum_is_heavy_ball():
    """From 0 with mean update m - w: v1 = m, w1 = m; v2 = 0.5 m + 0, w2 = 1.5 m."""
    target = local_means(WORLD.federation).mean(0)

    result = run(fedavg(WORLD.model, plan=EXACT, momentum=0.5), WORLD.federation, rounds=2)

    np.testing.assert_allclose(server_point(result), 1.5 * target, atol=1e-5)


def test_server_step_size_scales_the_mean_update():
    result = run(fedavg(WORLD.model, plan=EXACT, server_lr=0.25), WORLD.federation, rounds=1)

    np.testing.assert_allclose(server_point(result), 0.25 * local_means(WORLD.federation).mean(0), atol=1e-5)


def test_fedprox_reaches_the_proximal_points_mean():
    """The client's minimizer of |w - m_k|^2/2 + lam |w|^2/2 from the shared 0 is m_k / (1 + lam)."""
    lam = 3.0

    result = run(fedprox(WORLD.model, plan=EXACT, lam=lam), WORLD.federation, rounds=1)

    np.testing.assert_allclose(server_point(result), local_means(WORLD.federation).mean(0) / (1 + lam), atol=1e-5)


def test_a_step_that_suits_the_loss_suits_any_proximal_term():
    """A full step on |v - m_k|^2/2 alone is one on the whole objective: it ends at (m_k + lam w) / (1 + lam), w = 0 at first."""
    for lam in (0.1, 10.0, 1e4):
        result = run(ditto(WORLD.model, plan=EXACT, lam=lam), WORLD.federation, rounds=1)

        np.testing.assert_allclose(own_points(result), local_means(WORLD.federation) / (1 + lam), atol=1e-5)


@pytest.mark.parametrize("optimizer", [optax.sgd, optax.adam])
def test_a_huge_proximal_term_serves_the_shared_model_with_any_optimizer(optimizer):
    plan = Plan(batch=None, lr=0.1, epochs=3, optimizer=optimizer)

    result = run(ditto(WORLD.model, plan=plan, lam=1e6), WORLD.federation, rounds=30)
    before = run(fedavg(WORLD.model, plan=plan), WORLD.federation, rounds=29)

    np.testing.assert_allclose(own_points(result), np.tile(server_point(before), (4, 1)), atol=1e-3)


def test_dittos_own_models_lie_between_own_and_shared_optimum():
    """v_k = (m_k + lam w) / (1 + lam) with w the mean of all."""
    lam = 1.0
    plan = Plan(batch=None, lr=0.5, epochs=30)
    means = local_means(WORLD.federation)

    result = run(ditto(WORLD.model, plan=plan, lam=lam), WORLD.federation, rounds=3)

    np.testing.assert_allclose(own_points(result), (means + lam * means.mean(0)) / (1 + lam), atol=1e-4)


def test_the_oracle_averages_within_groups_and_leaves_an_empty_group_alone():
    federation = replace(WORLD.federation, group=np.array([0, 0, 2, 2]), num_groups=3)
    means = local_means(federation)

    result = run(oracle(WORLD.model, plan=EXACT, num_groups=3, momentum=0.9), federation, rounds=1)

    models = np.asarray(result.state.server.weights.params["point"])
    np.testing.assert_allclose(models[0], means[:2].mean(0), atol=1e-5)
    np.testing.assert_allclose(models[2], means[2:].mean(0), atol=1e-5)
    np.testing.assert_array_equal(models[1], np.zeros(2))


@pytest.mark.parametrize("num_groups", [0, 2])
def test_the_oracle_refuses_clients_with_other_groups_than_it_reads(num_groups):
    federation = replace(WORLD.federation, group=np.array([0, 1, 0, 1]), num_groups=num_groups)

    with pytest.raises(Unsupported, match="this method reads 3 planted groups"):
        run(oracle(WORLD.model, num_groups=3), federation, rounds=1)


def test_training_alone_does_not_wait_to_be_drawn():
    drawn, everyone = (
        run(local_only(WORLD.model, plan=Plan(batch=None, lr=0.5)), WORLD.federation, rounds=2, cohort=cohort)
        for cohort in (1, None)
    )

    np.testing.assert_array_equal(own_points(drawn), own_points(everyone))


def test_an_unseen_client_of_local_only_trains_when_served():
    seen, unseen = mean_estimation(num_clients=5, dim=2).federation.hold_out(clients=["client-3"])
    method = local_only(WORLD.model, plan=EXACT, newcomer_epochs=1)

    result = run(method, seen, unseen=unseen, rounds=1)

    expected = unseen.rows_of("client-3", "train")[1].mean(0)
    np.testing.assert_allclose(result.model_for(4).weights.params["point"], expected, atol=1e-5)


def pooled_least_squares(federation):
    """The minimizer of sum_k p_k L_k with equal p_k, by normal equations with a bias column."""
    gram, moment = 0.0, 0.0
    for name in federation.names:
        x, y = federation.rows_of(name, "train")
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        gram, moment = gram + x.T @ x / len(x), moment + x.T @ y / len(x)
    return np.linalg.solve(gram, moment)


def solution(result):
    weights = result.runner.method.views.common(result.runner.method.send(result.state.server, 0))
    head = weights.params["head"]
    return np.append(np.asarray(head["kernel"]), np.asarray(head["bias"]))


def test_scaffold_reaches_the_pooled_minimizer_where_fedavg_stops_short():
    """With several local steps on different clients FedAvg has another fixed point; SCAFFOLD has the right one."""
    world = linear_clusters(num_clients=4, num_groups=4, dim=2, rows=20, gap=6.0)
    plan = Plan(batch=None, lr=0.2, epochs=5)
    target = pooled_least_squares(world.federation)

    corrected = run(scaffold(world.model, plan=plan), world.federation, rounds=60)
    plain = run(fedavg(world.model, plan=plan, weighting="uniform"), world.federation, rounds=60)

    np.testing.assert_allclose(solution(corrected), target, atol=1e-4)
    assert np.abs(solution(plain) - target).max() > 1e-2


def test_scaffolds_server_control_is_the_mean_of_the_clients_controls():
    result = run(scaffold(WORLD.model, plan=EXACT), WORLD.federation, rounds=3, cohort=2)

    own = np.asarray(result.state.private["point"])
    np.testing.assert_allclose(result.state.server.control["point"], own.mean(0), atol=1e-5)


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda: fedavg(WORLD.model, server_lr=0.0), BadValue, "server_lr must be a positive number"),
        (lambda: fedavg(WORLD.model, momentum=1.0), BadValue, "momentum must be a number in"),
        (lambda: fedavg(WORLD.model, weighting="equal"), UnknownChoice, "no weighting is called 'equal'"),
        (lambda: fedprox(WORLD.model, lam=-1.0), BadValue, "lam must be 0 or more"),
        (lambda: ditto(WORLD.model, lam=float("nan")), BadValue, "lam must be 0 or more"),
        (lambda: oracle(WORLD.model, num_groups=0), BadValue, "num_groups must be 1 or more"),
        (lambda: local_only(WORLD.model, newcomer_epochs=-1), BadValue, "newcomer_epochs must be 0 or more"),
        (
            lambda: scaffold(WORLD.model, plan=Plan(optimizer=lambda lr: None)),
            Unsupported,
            "scaffold corrects plain SGD",
        ),
    ],
)
def test_options_are_checked_when_a_method_is_built(build, error, said):
    with pytest.raises(error, match=said):
        build()
