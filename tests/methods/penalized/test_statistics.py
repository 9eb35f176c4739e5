"""How much to collaborate, from rounds of statistics: likelihoods, spreads, paces."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from regressions import DIM, FEDERATION, MODEL, SIZES, moments, regression
from scipy.special import gammainc

from plures import run
from plures.methods.penalized.descent import PenaltySettings
from plures.methods.penalized.fedclup import fedclup
from plures.methods.penalized.rounds import _count_votes, pace
from plures.methods.penalized.statistics import (
    GRID,
    CommonModel,
    HalvesReply,
    heterogeneity,
    train_halves,
    weigh_grid,
)
from plures.methods.penalized.vector import make_part
from plures.models.cnn import emnist_cnn
from plures.moreau import shrink_factor
from plures.solvers import as_clients
from plures.solvers.reml import reml_degree
from plures.types import Data, Plan, Rows, Weights


def facts_of(federation, **options):
    return run(fedclup(MODEL, **options), federation, rounds=5, executor="vectorized").state.server


@pytest.fixture(scope="module")
def facts():
    return facts_of(FEDERATION)


def client_of(federation, name):
    x, y = federation.rows_of(name, "train")
    rows = Rows(x=jnp.asarray(x), y=jnp.asarray(y), start=0, count=len(x), capacity=len(x))
    return Data(train=rows, valid=replace(rows, count=0)), x.astype(float), y.astype(float)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 3])
def test_what_a_client_says_of_the_grid_is_the_likelihood_of_its_rows(which):
    """y ~ N(X c, phi + tau^2 X X'): -2 log density is A + B / phi, up to a constant, for tau^2 = phi / (n lam_i)."""
    data, x, y = client_of(FEDERATION, FEDERATION.names[which])
    center, size, usual = np.array([0.8, 1.1, 0.9]), 0.3, 0.05
    asked = CommonModel(Weights({"kernel": jnp.asarray(center, jnp.float32)}), jnp.float32(1.3), jnp.float32(usual))

    told = weigh_grid(make_part(MODEL, None, 0.0), 0.0, jax.random.key(0), asked, data)

    found, wanted = [], []
    for place in range(12, 40, 3):
        lam = 1.3 * GRID[place] / (len(x) * usual)
        cover = size * (np.eye(len(x)) + x @ x.T / (len(x) * lam))
        off = y - x @ center
        wanted.append(np.linalg.slogdet(cover)[1] + off @ np.linalg.solve(cover, off))
        found.append(float(told.volume[place] + told.misfit[place] / size))
    np.testing.assert_allclose(np.diff(found), np.diff(wanted), atol=2e-3)
    # What is left of the squares after the best fit, over rows beyond numbers, times these.
    best = np.linalg.lstsq(x, y, rcond=None)[1][0]
    assert float(told.left) == pytest.approx(best, rel=1e-3)
    assert float(told.spare) == len(x) - DIM


@pytest.mark.parametrize(
    ("sizes", "unit"),
    [(SIZES, [1.0, 1.0, 1.0]), ((60, 4, 15, 5, 9, 30), [1.0, 0.03, 10.0])],
    ids=["alike", "unlike"],
)
def test_the_automatic_lam_is_that_of_the_exact_likelihood_in_double_precision(sizes, unit):
    """With columns of any scale and clients of any size, some with hardly more rows than columns."""
    federation = regression(sizes=sizes)
    federation = replace(federation, x=(federation.x * np.array(unit)).astype(np.float32))
    rows = [federation.rows_of(name, "train") for name in federation.names]
    tables = [x for x, _ in rows], [y for _, y in rows]
    exact = reml_degree(as_clients(*tables, loss="least_squares", intercept=False, ridge=0.0))

    server = facts_of(federation)

    assert float(server.lam[0]) == pytest.approx(exact.lam, rel=0.15)


def test_curvature_is_that_of_the_hessians(facts):
    values = np.linalg.eigvalsh(moments(FEDERATION)[0])

    assert float(facts.facts.bounds.least) == pytest.approx(values.min(), rel=1e-3)
    assert float(facts.facts.bounds.most) == pytest.approx(values.max(), rel=1e-3)


@pytest.mark.slow
def test_lam_has_the_unit_of_curvature(facts):
    """Targets times 10 leave it; columns times 2 make it 4 times as large, both rounded to a percent."""
    other = facts_of(regression(scale=10.0, unit=2.0))

    assert float(other.lam[0]) == pytest.approx(4 * float(facts.lam[0]), rel=0.0102)


def said(own, noise):
    """What clients say of local models whose noise is alike."""
    level = jnp.full(len(own), noise, jnp.float32)
    return HalvesReply(jnp.asarray(own, jnp.float32), level, level, level, level)


def test_a_spread_below_the_noise_is_told_and_leaves_little_heterogeneity():
    own, counts = [[0.0], [1.0], [2.0]], jnp.full(3, True)

    left, alike = heterogeneity(said(own, 5.0), counts)

    assert bool(alike)
    shrink = shrink_factor(1 / 5, 2.0, gammainc)  # the spread is 1, with two degrees of freedom
    assert float(left) == pytest.approx(5 * (1 - shrink) / shrink, rel=1e-4)


def test_with_many_clients_heterogeneity_is_the_spread_less_the_noise():
    """Of the clients that count."""
    own = 3 * jax.random.normal(jax.random.key(0), (500, 4))
    counts = jnp.arange(500) < 400
    spread = np.square(own[:400] - own[:400].mean(0)).sum() / 399

    left, alike = heterogeneity(said(own, 9.0), counts)

    assert float(left) == pytest.approx(spread - 9.0, rel=0.02)
    assert not alike


@pytest.mark.parametrize("ratio", [0.01, 0.5, 1.0, 1.3, 30.0])
@pytest.mark.parametrize("freedom", [1.0, 95.0, 5000.0])
def test_the_shrink_factor_is_the_same_in_single_precision(ratio, freedom):
    single = shrink_factor(jnp.float32(ratio), jnp.float32(freedom), jax.scipy.special.gammainc, xp=jnp)

    assert float(single) == pytest.approx(float(shrink_factor(ratio, freedom, gammainc)), rel=2e-3)


def test_two_halves_tell_the_noise_of_a_model_that_one_step_finds():
    """For mean estimation a full-batch step of 1 is exact: s = |mean of one half - mean of the other|^2 / 4."""
    from plures.models.linear import mean

    y = jax.random.normal(jax.random.key(1), (10, 2))
    model = mean((0,), 2)
    rows = Rows(x=jnp.zeros((10, 0)), y=y, start=0, count=10, capacity=10)
    data = Data(train=rows, valid=replace(rows, count=0))
    plan = Plan(steps=1, batch=None, lr=1.0)

    told = train_halves(make_part(model, None, 0.0), plan, jax.random.key(5), model.init(jax.random.key(0)), data)

    key = jax.random.split(jax.random.key(5))[0]
    half = np.array([bool(jax.random.bernoulli(jax.random.fold_in(key, row))) for row in range(10)])
    one, other = 2 * (half[:, None] * y).mean(0), 2 * (~half[:, None] * y).mean(0)
    assert float(told.noise) == pytest.approx(float(np.square(one - other).sum() / 4), rel=1e-5)
    assert float(told.curved_noise) == pytest.approx(float(told.noise), rel=1e-4)  # all curvature is 1
    np.testing.assert_allclose(told.own, y.mean(0), rtol=1e-5)


@pytest.mark.slow
def test_a_convolutional_network_can_give_statistics():
    model = emnist_cnn((8, 8), 3)
    x = jax.random.uniform(jax.random.key(0), (6, 8, 8))
    rows = Rows(x=x, y=jnp.arange(6) % 3, start=0, count=6, capacity=6)
    plan = Plan(steps=1, batch=None, lr=0.1)
    data = Data(train=rows, valid=replace(rows, count=0))

    told = train_halves(make_part(model, None, 0.0), plan, jax.random.key(1), model.init(jax.random.key(2)), data)

    assert all(np.isfinite(leaf).all() for leaf in told)
    assert float(told.most) > 0
    assert float(told.time) == pytest.approx(0.1)


@pytest.mark.slow
def test_lam_does_not_outrun_the_plan_and_the_pace_makes_up_for_the_lag():
    """All clients alike: lam would be large, and ends at 1 / (4 T)."""
    plan = Plan(epochs=20, batch=None, lr=0.1)
    federation = regression(sizes=(8,) * 6, radius=0.0, sigma=1.0, seed=2)
    result = run(fedclup(MODEL, local="sgd", plan=plan), federation, rounds=5, executor="vectorized")

    server = result.state.server

    assert float(server.lam[0]) == pytest.approx(0.25 / (20 * 0.1), rel=1e-5)
    found = pace(PenaltySettings(), False, server, server.facts.factor, jnp.ones(6))
    assert float(found[0]) == pytest.approx(0.25 / (1 - np.exp(-0.25)), rel=1e-5)


def test_the_pace_is_one_over_the_curvature_of_the_envelope(facts):
    """gamma sum_i p_i lam_i with gamma = 1 / sum_i p_i lam_i L / (lam_i + L), of the clients that are there."""
    factor, mass = jnp.array([0.5, 1.0, 4.0]), jnp.array([1.0, 2.0, 1.0])
    most, lams = float(facts.facts.bounds.most), float(facts.lam[0]) * np.array(factor)
    share = np.array(mass / mass.sum())

    found = pace(PenaltySettings(), True, facts, factor, mass)

    bent = (share * most / (lams + most)).sum()
    assert float(found[0]) == pytest.approx(1 / bent, rel=1e-5)
    fixed = pace(PenaltySettings(gamma=0.3), True, facts, factor, mass)
    assert float(fixed[0]) == pytest.approx(0.3 / (share / lams).sum(), rel=1e-5)


def test_a_model_that_blew_up_loses_the_vote_of_a_client_that_still_votes():
    before = (jnp.zeros((2, 3)), jnp.zeros(2, bool))
    losses = jnp.array([[1.0, jnp.nan, 0.5], [2.0, jnp.inf, 9.0]])

    table, voted = _count_votes(before, (losses, jnp.full(2, True)), jnp.ones(2), jnp.arange(2))

    assert voted.all()
    assert table.mean(0).argmin() == 0  # 1.5 against 1e30 and 4.75


@pytest.mark.slow
def test_of_one_client_nothing_is_told_of_heterogeneity():
    result = run(fedclup(MODEL), regression(sizes=(20,)), rounds=5, executor="vectorized")

    assert "one client was heard: there is nothing to share" in result.report.findings[0]
