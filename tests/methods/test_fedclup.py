"""FedCLUP and its relatives: closed forms of (P), the automatic degree, cohorts, and what is refused."""

import re
from dataclasses import replace
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammainc

from plures import run
from plures.data import from_arrays
from plures.data.clustered import through_origin
from plures.data.degrees import linear_offsets
from plures.envelope import Bounds, shrink_factor
from plures.errors import BadValue, MethodWarning, UnknownChoice, Unsupported
from plures.methods._degree import GRID, Asked, Said, blank, halved, heterogeneity, weighed
from plures.methods._part import make_part
from plures.methods._penalized import Upload, _voted, pace
from plures.methods._pull import How
from plures.methods.fedclup import fedclup
from plures.methods.l2gd import l2gd
from plures.methods.mr_mtl import mr_mtl
from plures.methods.pfedme import pfedme
from plures.models.cnn import emnist_cnn
from plures.models.mlp import mlp
from plures.solvers import as_clients
from plures.solvers.settled import settled_degree
from plures.types import Data, Plan, Rows, Weights

DIM, LAM = 3, 0.7
SIZES = (12, 20, 16, 30, 24)


def regression(*, sizes=SIZES, radius=0.6, sigma=0.5, scale=1.0, unit=1.0, seed=0):
    """Linear regressions whose coefficients differ; columns times ``unit``, targets times ``scale``."""
    keys = jax.random.split(jax.random.key(seed), 3)
    truth = 1 + radius * np.asarray(jax.random.normal(keys[0], (len(sizes), DIM)))
    who = np.repeat(np.arange(len(sizes)), sizes)
    x = np.asarray(jax.random.normal(keys[1], (len(who), DIM))) * np.array([1.0, 1.5, 0.7])
    y = (x * truth[who]).sum(1) + sigma * np.asarray(jax.random.normal(keys[2], len(who)))
    names = np.array([f"client-{k}" for k in who])
    return from_arrays(
        (unit * x).astype(np.float32),
        (scale * y).astype(np.float32),
        names,
        shares=(1.0, 0.0, 0.0),
        task="regression",
        title="regressions",
    )


FEDERATION, MODEL = regression(), through_origin(DIM)


def moments(federation):
    """A_i = X'X / n and b_i = X'y / n."""
    tables = [federation.rows_of(name, "train") for name in federation.names]
    return (
        np.stack([x.T @ x / len(x) for x, _ in tables]).astype(float),
        np.stack([x.T @ y / len(x) for x, y in tables]).astype(float),
    )


def solved(federation, lam, weights):
    """(P) of quadratics as one linear system of all models: [w_g, w_1, .., w_m]."""
    a, b = moments(federation)
    number, dim = b.shape
    lam = np.broadcast_to(lam, number)
    size = (number + 1) * dim
    left, right = np.zeros((size, size)), np.zeros(size)
    for k in range(number):
        at = slice((k + 1) * dim, (k + 2) * dim)
        left[at, at], left[at, :dim] = a[k] + lam[k] * np.eye(dim), -lam[k] * np.eye(dim)
        right[at] = b[k]
        left[:dim, :dim] += weights[k] * lam[k] * np.eye(dim)
        left[:dim, at] = -weights[k] * lam[k] * np.eye(dim)
    found = np.linalg.solve(left, right).reshape(number + 1, dim)
    return found[0], found[1:]


def shared_of(result):
    return np.asarray(result.state.server.shared.params["kernel"])[0]


def own_of(result):
    return np.asarray(result.state.private.weights.params["kernel"])[:, 0]


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
    line = next(one for one in result.told if "server pace" in one)
    return float(line.split("server pace ")[1].split()[0])


def test_told_are_lam_the_steps_and_a_gradient_near_zero(by_examples):
    first, second = by_examples.told

    assert first.startswith(f"lam {LAM:g}; ")
    assert "client steps" in first
    assert float(second.rpartition(" ")[2]) < 1e-4


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


def test_a_server_step_of_one_over_lam_is_averaging():
    one, other = (
        run(build, FEDERATION, rounds=8, cohort=3, executor="vectorized")
        for build in (fedclup(MODEL, lam=LAM, gamma=1 / LAM, inner=5), mr_mtl(MODEL, lam=LAM, inner=5))
    )

    np.testing.assert_allclose(shared_of(one), shared_of(other), atol=1e-6)
    assert np.abs(shared_of(one)).max() > 0.1


FOUND = blank(Weights({"kernel": jnp.zeros(DIM)}), 4)._replace(
    bounds=Bounds(jnp.float32(0.5), jnp.float32(4.0)), lam=jnp.float32(1.0), heard=jnp.float32(4.0)
)


class Merging:
    """A method's server after everybody was heard once, and uploads of all."""

    def __init__(self, **options):
        self.method = fedclup(MODEL, lam=LAM, local="sgd", weighting="examples", **options)
        models = jax.random.normal(jax.random.key(3), (4, 1, DIM))
        self.uploads = Upload(Weights({"kernel": models}), ())
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


def facts_of(federation, **options):
    return run(fedclup(MODEL, **options), federation, rounds=5, executor="vectorized").state.server


@pytest.fixture(scope="module")
def facts():
    return facts_of(FEDERATION)


def client_of(federation, name):
    x, y = federation.rows_of(name, "train")
    rows = Rows(x=jnp.asarray(x), y=jnp.asarray(y), start=0, count=len(x), capacity=len(x))
    return Data(train=rows, valid=replace(rows, count=0)), x.astype(float), y.astype(float)


@pytest.mark.parametrize("which", [0, 3])
def test_what_a_client_says_of_the_grid_is_the_likelihood_of_its_rows(which):
    """y ~ N(X c, phi + tau^2 X X'): -2 log density is A + B / phi, up to a constant, for tau^2 = phi / (n lam_i)."""
    data, x, y = client_of(FEDERATION, FEDERATION.names[which])
    center, size, usual = np.array([0.8, 1.1, 0.9]), 0.3, 0.05
    asked = Asked(Weights({"kernel": jnp.asarray(center, jnp.float32)}), jnp.float32(1.3), jnp.float32(usual))

    told = weighed(make_part(MODEL, None, 0.0), 0.0, jax.random.key(0), asked, data)

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
    exact = settled_degree(as_clients(*tables, loss="least_squares", intercept=False, ridge=0.0))

    server = facts_of(federation)

    assert float(server.lam[0]) == pytest.approx(exact.lam, rel=0.15)


def test_curvature_is_that_of_the_hessians(facts):
    values = np.linalg.eigvalsh(moments(FEDERATION)[0])

    assert float(facts.bounds.least) == pytest.approx(values.min(), rel=1e-3)
    assert float(facts.bounds.most) == pytest.approx(values.max(), rel=1e-3)


def test_lam_has_the_unit_of_curvature(facts):
    """Targets times 10 leave it; columns times 2 make it 4 times as large."""
    other = facts_of(regression(scale=10.0, unit=2.0))

    assert float(other.lam[0]) == pytest.approx(4 * float(facts.lam[0]), rel=1e-3)


def said(own, noise):
    """What clients say of local models whose noise is alike."""
    level = jnp.full(len(own), noise, jnp.float32)
    return Said(jnp.asarray(own, jnp.float32), level, level, level, level)


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

    told = halved(make_part(model, None, 0.0), plan, jax.random.key(5), model.init(jax.random.key(0)), data)

    key = jax.random.split(jax.random.key(5))[0]
    half = np.array([bool(jax.random.bernoulli(jax.random.fold_in(key, row))) for row in range(10)])
    one, other = 2 * (half[:, None] * y).mean(0), 2 * (~half[:, None] * y).mean(0)
    assert float(told.noise) == pytest.approx(float(np.square(one - other).sum() / 4), rel=1e-5)
    assert float(told.pull) == pytest.approx(float(told.noise), rel=1e-4)  # all curvature is 1
    np.testing.assert_allclose(told.own, y.mean(0), rtol=1e-5)


def test_a_convolutional_network_can_give_statistics():
    model = emnist_cnn((8, 8), 3)
    x = jax.random.uniform(jax.random.key(0), (6, 8, 8))
    rows = Rows(x=x, y=jnp.arange(6) % 3, start=0, count=6, capacity=6)
    plan = Plan(steps=1, batch=None, lr=0.1)
    data = Data(train=rows, valid=replace(rows, count=0))

    told = halved(make_part(model, None, 0.0), plan, jax.random.key(1), model.init(jax.random.key(2)), data)

    assert all(np.isfinite(leaf).all() for leaf in told)
    assert float(told.most) > 0
    assert float(told.time) == pytest.approx(0.1)


def test_lam_does_not_outrun_the_plan_and_the_pace_makes_up_for_the_lag():
    """All clients alike: lam would be large, and ends at 1 / (4 T)."""
    plan = Plan(epochs=20, batch=None, lr=0.1)
    federation = regression(sizes=(8,) * 6, radius=0.0, sigma=1.0, seed=2)
    result = run(fedclup(MODEL, local="sgd", plan=plan), federation, rounds=5, executor="vectorized")

    server = result.state.server

    assert float(server.lam[0]) == pytest.approx(0.25 / (20 * 0.1), rel=1e-5)
    found = pace(How(), False, server, server.factor, jnp.ones(6))
    assert float(found[0]) == pytest.approx(0.25 / (1 - np.exp(-0.25)), rel=1e-5)


def test_the_pace_is_one_over_the_curvature_of_the_envelope(facts):
    """gamma sum_i p_i lam_i with gamma = 1 / sum_i p_i lam_i L / (lam_i + L), of the clients that are there."""
    factor, mass = jnp.array([0.5, 1.0, 4.0]), jnp.array([1.0, 2.0, 1.0])
    most, lams = float(facts.bounds.most), float(facts.lam[0]) * np.array(factor)
    share = np.array(mass / mass.sum())

    found = pace(How(), True, facts, factor, mass)

    bent = (share * most / (lams + most)).sum()
    assert float(found[0]) == pytest.approx(1 / bent, rel=1e-5)
    fixed = pace(How(gamma=0.3), True, facts, factor, mass)
    assert float(fixed[0]) == pytest.approx(0.3 / (share / lams).sum(), rel=1e-5)


def test_a_model_that_blew_up_loses_the_vote_of_a_client_that_still_votes():
    before = (jnp.zeros((2, 3)), jnp.zeros(2, bool))
    losses = jnp.array([[1.0, jnp.nan, 0.5], [2.0, jnp.inf, 9.0]])

    table, voted = _voted(before, (losses, jnp.full(2, True)), jnp.ones(2), jnp.arange(2))

    assert voted.all()
    assert table.mean(0).argmin() == 0  # 1.5 against 1e30 and 4.75


def valid_world():
    """Clients that all agree, with valid rows: the more they collaborate, the better."""
    base = regression(sizes=(20,) * 6, radius=0.0, sigma=1.0, seed=4)
    tables = [base.rows_of(name, "train") for name in base.names]
    x, y = (np.concatenate([table[place] for table in tables]) for place in (0, 1))
    who = np.repeat(np.array(base.names), 20)
    return from_arrays(x, y, who, shares=(0.4, 0.6, 0.0), task="regression", title="alike")


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


def penalty_gradient(own, mean):
    """The gradient of sum_i p_i (L_i + lam / 2 |w_i - mean|^2) with respect to the w_i, over p_i."""
    a, b = moments(FEDERATION)
    return np.einsum("kij,kj->ki", a, own) - b + LAM * (own - mean)


def test_a_toss_of_the_coin_is_a_gradient_step_on_average():
    """(1 - p) tails + p heads = w_i - alpha gradient, for any models."""
    from plures.methods._pull import Descent, How, Steps
    from plures.methods.l2gd import _Coin

    own = np.asarray(jax.random.normal(jax.random.key(0), (5, DIM)))
    chance, alpha = 0.3, 0.05
    coin = _Coin(Descent.of(MODEL, Plan(), How(lam=LAM)), chance, alpha, "fixed")
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


def test_l2gd_with_small_steps_comes_near_the_optimum_of_the_same_problem():
    method = l2gd(MODEL, lam=LAM, alpha=0.01, coin="fixed", p=0.5)
    result = run(method, FEDERATION, rounds=600, executor="vectorized")

    _, own = solved(FEDERATION, LAM, np.full(5, 0.2))

    np.testing.assert_allclose(own_of(result), own, atol=0.02)


def test_runs_of_tails_have_the_mean_of_a_geometric_distribution():
    from plures.methods._pull import Descent, How
    from plures.methods.l2gd import _Coin

    coin = _Coin(Descent.of(MODEL, Plan(), How(lam=LAM)), 0.25, None, "random")
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


@pytest.mark.parametrize(
    ("build", "options", "said"),
    [
        (
            fedclup,
            {"lam": LAM, "alpha": 3.0},
            r"client steps of alpha = 3 diverge: .* below 2 / \(L \+ lam\) = 0\.\d+; 0\.\d+ would do",
        ),
        (
            fedclup,
            {"lam": "valid", "num_lams": 9, "alpha": 0.4},
            r"client steps of alpha = 0.4 diverge",
        ),
        (fedclup, {"lam": LAM, "gamma": 9.0}, r"server steps of gamma = 9 diverge: .* 2 / L_g = \d.* would do"),
        (pfedme, {"lam": LAM, "eta": 50.0}, r"steps of eta = 50 diverge: eta must be below 2 / L_g = .* would do"),
        (l2gd, {"lam": LAM, "alpha": 10.0}, r"steps of alpha = 10 diverge: alpha must be below .* would do"),
    ],
)
def test_a_step_that_diverges_is_refused_with_one_that_would_do(build, options, said):
    assert re.search(said, build(MODEL, **options).prelude.refuse(FOUND))


@pytest.mark.parametrize("options", [{"alpha": 0.3}, {"gamma": 2.0}, {"lam": "valid", "num_lams": 2, "alpha": 0.3}])
def test_a_step_that_converges_is_not_refused(options):
    assert fedclup(MODEL, **{"lam": LAM, **options}).prelude.refuse(FOUND) is None


def test_a_run_ends_where_its_prelude_says_so():
    with pytest.raises(Unsupported, match="client steps of alpha = 3 diverge"):
        run(fedclup(MODEL, lam=LAM, alpha=3.0), FEDERATION, rounds=5, executor="vectorized")


def test_where_no_client_has_rows_to_spare_there_is_no_automatic_lam():
    tight = FOUND._replace(spare=jnp.zeros(()))

    assert "no client has more rows than its model has numbers" in fedclup(MODEL).prelude.refuse(tight)
    assert fedclup(MODEL, lam="valid").prelude.refuse(tight) is None
    assert fedclup(MODEL, lam=LAM).prelude.refuse(tight) is None


def test_without_statistics_there_is_no_automatic_lam():
    silent = FOUND._replace(heard=jnp.zeros(()))

    said = fedclup(MODEL).prelude.refuse(silent)

    assert "lam='auto' needs statistics, and no client could give any" in said


def test_a_plan_that_diverges_is_named():
    with pytest.warns(MethodWarning, match=r"fedclup: training diverged, lr = 50 is too long a step"):
        run(
            fedclup(MODEL, lam=0.01, local="sgd", plan=Plan(lr=50.0, epochs=40)),
            FEDERATION,
            rounds=8,
            executor="vectorized",
        )


def test_of_one_client_nothing_is_told_of_heterogeneity():
    result = run(fedclup(MODEL), regression(sizes=(20,)), rounds=5, executor="vectorized")

    assert "one client was heard: there is nothing to share" in result.told[0]


@pytest.mark.parametrize(
    ("build", "options", "said"),
    [
        (fedclup, {"lam": -0.1}, "lam must be 0 or more, or one of auto, own, valid, valid-own, got -0.1"),
        (fedclup, {"lam": float("nan")}, "lam must be 0 or more"),
        (fedclup, {"local": "sgd", "alpha": 0.1}, "alpha must be left out: clients train by the plan here"),
        (fedclup, {"local": "sgd", "inner": 7}, "inner must be left out: clients train by the plan here"),
        (l2gd, {"local": "sgd", "p": 0.5}, "p must be left out: clients train by the plan here"),
        (fedclup, {"lam": "aut"}, "one of auto, own, valid, valid-own, got 'aut'"),
        (fedclup, {"gamma": 0.0}, "gamma must be a positive number, or one of auto, mean"),
        (fedclup, {"gamma": "many"}, "gamma must be a positive number, or one of auto, mean"),
        (fedclup, {"alpha": -1.0}, "alpha must be a positive number"),
        (fedclup, {"inner": 0}, 'inner must be "auto" or a number of steps'),
        (fedclup, {"inner": "all"}, 'inner must be "auto" or a number of steps'),
        (fedclup, {"absent": "gone"}, "no absent is called 'gone'"),
        (fedclup, {"local": "newton"}, "no local is called 'newton'"),
        (fedclup, {"num_lams": 1}, "num_lams must be 2 or more"),
        (fedclup, {"newcomer_epochs": -1}, "newcomer_epochs must be 0 or more"),
        (
            fedclup,
            {"aggregate": "median", "absent": "stale"},
            'aggregate must be "mean" unless absent is "sampled"',
        ),
        (pfedme, {"eta": 0.0}, "eta must be a positive number"),
        (pfedme, {"beta": 3.0}, r"beta must be a number in \(0, 2\]"),
        (pfedme, {"local_rounds": 0}, "local_rounds must be 1 or more"),
        (l2gd, {"p": 1.0}, r"p must be a number in \(0, 1\)"),
        (l2gd, {"alpha": 0.0}, "alpha must be a positive number"),
        (l2gd, {"coin": "bent"}, "no coin is called 'bent'"),
        (l2gd, {"lam": "own"}, "all clients toss one coin"),
    ],
)
def test_options_that_make_no_sense_are_refused(build, options, said):
    with pytest.raises((BadValue, UnknownChoice), match=said):
        build(MODEL, **options)


def test_steps_from_curvature_are_refused_where_nothing_bounds_it():
    with pytest.raises(BadValue, match='local must be "auto" or "sgd": nothing bounds the curvature'):
        fedclup(mlp((DIM,), 2, hidden=(4,)), local="steps")


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
