"""FedCLUP: closed forms of its problem, cohorts, lams side by side."""

from dataclasses import replace
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from regressions import DIM, FEDERATION, LAM, MODEL, SIZES, moments, own_of, regression, shared_of, solved

from plures import run
from plures.data import from_arrays
from plures.data.worlds.offsets import linear_offsets
from plures.methods.penalized.fedclup import fedclup
from plures.methods.penalized.mr_mtl import mr_mtl
from plures.methods.penalized.rounds import PenaltyUpload
from plures.types import Plan, Weights


@pytest.fixture(scope="module")
def by_examples():
    return run(fedclup(MODEL, lam=LAM, weighting="examples"), FEDERATION, rounds=60, executor="vectorized")


def test_models_reach_the_solution_of_the_linear_system(by_examples):
    shared, own = solved(FEDERATION, LAM, np.array(SIZES) / sum(SIZES))

    np.testing.assert_allclose(shared_of(by_examples), shared, atol=2e-5)
    np.testing.assert_allclose(own_of(by_examples), own, atol=2e-5)


def test_the_shared_model_is_the_weighted_mean_of_personal_ones(by_examples):
    weights = np.array(SIZES) / sum(SIZES)

    np.testing.assert_allclose(shared_of(by_examples), weights @ own_of(by_examples), atol=1e-5)
    # The server's step is not a plain mean, so this is a property of the optimum and not of the algorithm.
    assert pace_told(by_examples) > 1.05


def pace_told(result):
    line = next(one for one in result.report.findings if "server pace" in one)
    return float(line.split("server pace ")[1].split()[0])


def test_told_are_lam_the_steps_and_a_gradient_near_zero(by_examples):
    first, second = by_examples.report.findings

    assert first.startswith(f"lam {LAM:g}; ")
    assert "client steps" in first
    assert float(second.rpartition(" ")[2]) < 1e-4


@pytest.mark.slow
def test_a_newcomer_gets_its_best_model_near_the_shared_one_however_steep_its_loss():
    """The step of the others would be far too long for it: its columns are six times as large."""
    seen = FEDERATION.take([0, 1, 2, 3])
    unseen = replace(FEDERATION.take([4]), x=6 * FEDERATION.x)
    result = run(fedclup(MODEL, lam=LAM), seen, unseen=unseen, rounds=60, executor="vectorized")
    a, b = moments(unseen)

    served = result.model_for(4).weights.params["kernel"]

    wanted = np.linalg.solve(a[0] + LAM * np.eye(DIM), b[0] + LAM * shared_of(result))
    np.testing.assert_allclose(served, wanted, atol=2e-4)


def test_every_client_may_have_its_own_lam():
    result = run(fedclup(MODEL, lam="own"), FEDERATION, rounds=80, executor="vectorized")
    lams = result.clients["lam"].to_numpy()

    # A client of n rows has lam / n, and its loss counts in proportion to n.
    shared, own = solved(FEDERATION, lams, (1 / lams) / (1 / lams).sum())

    np.testing.assert_allclose(lams * np.array(SIZES), (lams * np.array(SIZES))[0], rtol=1e-5)
    np.testing.assert_allclose(shared_of(result), shared, atol=5e-5)
    np.testing.assert_allclose(own_of(result), own, atol=5e-5)


@pytest.mark.slow
def test_a_server_step_of_one_over_lam_is_averaging():
    one, other = (
        run(build, FEDERATION, rounds=8, cohort=3, executor="vectorized")
        for build in (fedclup(MODEL, lam=LAM, gamma=1 / LAM, inner=5), mr_mtl(MODEL, lam=LAM, inner=5))
    )

    np.testing.assert_allclose(shared_of(one), shared_of(other), atol=1e-6)
    assert np.abs(shared_of(one)).max() > 0.1


class Merging:
    """A method's server after everybody was heard once, and uploads of all."""

    def __init__(self, **options):
        self.method = fedclup(MODEL, lam=LAM, local="sgd", weighting="examples", **options)
        models = jax.random.normal(jax.random.key(3), (4, 1, DIM))
        self.uploads = PenaltyUpload(Weights({"kernel": models}), ())
        self.weights = jnp.array([1.0, 2.0, 3.0, 6.0])
        self.server = self.merged(self.method.start(jax.random.key(0), 4), range(4))

    def merged(self, server, members, scale=1.0):
        index = jnp.array(list(members))
        sent = jax.tree.map(lambda leaf: scale * leaf[index], self.uploads)
        return self.method.merge(server, sent, self.weights[index], index)

    def step(self, members, scale=1.0):
        after = self.merged(self.server, members, scale)
        return np.asarray(after.shared.params["kernel"] - self.server.shared.params["kernel"])[0]


@pytest.mark.parametrize("absent", ["sampled", "stale", "unbiased"])
def test_with_everybody_there_all_meanings_of_a_cohort_agree(absent):
    full, plain = Merging(absent=absent), Merging()

    np.testing.assert_allclose(full.step(range(4), 2.0), plain.step(range(4), 2.0), atol=1e-6)


def test_the_unbiased_step_is_right_on_average_over_all_cohorts():
    """Sums over cohorts of two of four clients, each of weight p_i, against the step with everybody."""
    world, biased = Merging(absent="unbiased"), Merging(absent="sampled")
    pairs = list(combinations(range(4), 2))

    mean = np.mean([world.step(pair, 2.0) for pair in pairs], axis=0)
    other = np.mean([biased.step(pair, 2.0) for pair in pairs], axis=0)

    np.testing.assert_allclose(mean, world.step(range(4), 2.0), atol=1e-6)
    assert np.abs(other - mean).max() > 0.05


def test_stale_models_of_the_absent_still_count():
    world = Merging(absent="stale")
    models = np.asarray(world.uploads.models.params["kernel"])[:, 0]
    now = models * np.array([2.0, 2.0, 1.0, 1.0])[:, None]  # clients 0 and 1 send other models, 2 and 3 stay away

    after = world.merged(world.server, [0, 1], 2.0)

    weights = np.array([1, 2, 3, 6]) / 12
    np.testing.assert_allclose(np.asarray(after.shared.params["kernel"])[0], weights @ now, atol=1e-6)


def valid_world():
    """Clients that all agree, with valid rows: the more they collaborate, the better."""
    base = regression(sizes=(20,) * 6, radius=0.0, sigma=1.0, seed=4)
    tables = [base.rows_of(name, "train") for name in base.names]
    x, y = (np.concatenate([table[place] for table in tables]) for place in (0, 1))
    who = np.repeat(np.array(base.names), 20)
    return from_arrays(x, y, who, shares=(0.4, 0.6, 0.0), task="regression", title="alike")


@pytest.mark.slow
def test_valid_rows_choose_among_lams_side_by_side():
    result = run(fedclup(MODEL, lam="valid", num_lams=3), valid_world(), rounds=30, executor="vectorized")
    server = result.state.server
    losses = np.asarray(server.votes[0]).mean(0)

    chosen = result.clients["lam"].unique().to_list()

    assert chosen == [pytest.approx(float(server.lam[losses.argmin()]))]
    np.testing.assert_allclose(server.lam[1:] / server.lam[:-1], 4.0, rtol=1e-5)
    served = [result.model_for(k).weights.params["kernel"] for k in range(6)]
    np.testing.assert_allclose(served, result.state.private.weights.params["kernel"][:, losses.argmin()])


@pytest.mark.slow
def test_clients_may_leave_what_all_chose():
    world = linear_offsets(num_clients=12, seed=1)
    result = run(
        fedclup(world.model, lam="valid-own", num_lams=3), world.federation, rounds=20, executor="vectorized"
    )
    private, told = result.state.private, result.clients["lam"]

    assert told.n_unique() > 1
    for k in range(12):
        lane = int(private.lane[k])
        np.testing.assert_allclose(
            result.model_for(k).weights.params["kernel"], private.weights.params["kernel"][k, lane]
        )
        assert told[k] == pytest.approx(float(result.state.server.lam[lane]))


def test_a_large_lam_does_not_send_the_plans_steps_astray():
    """A step longer than 1 / lam is shortened: personal models stay at the shared one."""
    method = fedclup(MODEL, lam=1e4, local="sgd", plan=Plan(epochs=3, batch=4, lr=0.5))
    result = run(method, FEDERATION, rounds=5, executor="vectorized")

    assert np.isfinite(own_of(result)).all()
    assert np.abs(own_of(result) - shared_of(result)).max() < 0.01


def test_a_liar_does_not_move_a_median():
    world = Merging(aggregate="median")
    honest = np.asarray(world.uploads.models.params["kernel"])[:3, 0]
    lied = jax.tree.map(lambda leaf: leaf.at[3].set(1e6), world.uploads)

    after = world.method.merge(world.method.start(jax.random.key(0), 4), lied, jnp.ones(4), jnp.arange(4))

    assert np.abs(np.asarray(after.shared.params["kernel"])).max() <= np.abs(honest).max() + 1e-6
