"""FedCLUP and its relatives: closed forms of (P), the automatic degree, cohorts, and what is refused."""

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
from plures.envelope import shrink_factor
from plures.errors import BadValue, Unsupported
from plures.methods._degree import Said, heterogeneity, statistics
from plures.methods._part import make_part
from plures.methods._penalized import Upload, pace
from plures.methods._pull import How
from plures.methods.fedclup import fedclup
from plures.methods.l2gd import l2gd
from plures.methods.mr_mtl import mr_mtl
from plures.methods.pfedme import pfedme
from plures.models.cnn import emnist_cnn
from plures.models.mlp import mlp
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


def test_a_newcomer_gets_its_best_model_near_the_shared_one():
    seen, unseen = FEDERATION.take([0, 1, 2, 3]), FEDERATION.take([4])
    result = run(fedclup(MODEL, lam=LAM), seen, unseen=unseen, rounds=60, executor="vectorized")
    a, b = moments(unseen)

    served = result.model_for(4).weights.params["kernel"]

    wanted = np.linalg.solve(a[0] + LAM * np.eye(DIM), b[0] + LAM * shared_of(result))
    np.testing.assert_allclose(served, wanted, atol=2e-5)


def test_every_client_may_have_its_own_lam():
    result = run(fedclup(MODEL, lam="own"), FEDERATION, rounds=80, executor="vectorized")
    lams = result.clients["lam"].to_numpy()

    shared, own = solved(FEDERATION, lams, np.full(5, 0.2))

    assert lams.max() > 1.2 * lams.min()
    np.testing.assert_allclose(shared_of(result), shared, atol=5e-5)
    np.testing.assert_allclose(own_of(result), own, atol=5e-5)


def test_a_server_step_of_one_over_lam_is_averaging():
    one, other = (
        run(build, FEDERATION, rounds=4, cohort=3, executor="vectorized")
        for build in (fedclup(MODEL, lam=LAM, gamma=1 / LAM, inner=5), mr_mtl(MODEL, lam=LAM, inner=5))
    )

    np.testing.assert_allclose(shared_of(one), shared_of(other), atol=1e-6)
    assert np.abs(shared_of(one)).max() > 0.1


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
    return run(fedclup(MODEL, **options), federation, rounds=2, executor="vectorized").state.server


@pytest.fixture(scope="module")
def facts():
    return facts_of(FEDERATION)


def test_the_automatic_lam_is_noise_over_heterogeneity(facts):
    """Against a plain numpy version of the formulas, of all rows and in double precision."""
    a, b = moments(FEDERATION)
    own = np.linalg.solve(a, b[..., None])[..., 0]
    noise, pull, covers = [], [], []
    for k, name in enumerate(FEDERATION.names):
        x, y = FEDERATION.rows_of(name, "train")
        slopes = x * (x @ own[k] - y)[:, None]
        cover = slopes.T @ slopes / (len(x) - DIM) / len(x)
        inverse = np.linalg.inv(a[k])
        covers.append(inverse @ cover @ inverse)
        noise.append(np.trace(covers[-1]))
        pull.append(np.trace(inverse @ cover))
    weight = 2 * np.median(noise) / (np.array(noise) + np.median(noise))
    middle = weight @ own / weight.sum()
    apart = weight @ np.square(own - middle).sum(1)
    free = weight.sum() - np.square(weight).sum() / weight.sum()
    chance = (weight * noise * (1 - weight / weight.sum())).sum()
    square = [np.square(inverse_cover).sum() for inverse_cover in covers]
    freedom = 4 * np.square(noise).sum() / np.sum(square)
    shrink = shrink_factor(apart / chance, freedom, gammainc)
    left = chance / free * (1 - shrink) / shrink

    assert float(facts.noise) == pytest.approx(np.mean(noise), rel=0.03)
    assert float(facts.heterogeneity) == pytest.approx(left, rel=0.03)
    assert float(facts.lam[0]) == pytest.approx(np.mean(pull) / left, rel=0.03)


def test_curvature_is_that_of_the_hessians(facts):
    values = np.linalg.eigvalsh(moments(FEDERATION)[0])

    assert float(facts.bounds.least) == pytest.approx(values.min(), rel=1e-3)
    assert float(facts.bounds.most) == pytest.approx(values.max(), rel=1e-3)


@pytest.mark.parametrize(("change", "factor"), [({"scale": 10.0}, 1.0), ({"unit": 2.0}, 4.0)])
def test_lam_has_the_unit_of_curvature(facts, change, factor):
    """Targets times 10 leave it; columns times 2 make it 4 times as large."""
    other = facts_of(regression(**change))

    assert float(other.lam[0]) == pytest.approx(factor * float(facts.lam[0]), rel=1e-3)


def said(own, noise, *, directions=1):
    """What clients say whose noise is spread evenly over some directions."""
    number = len(own)
    level = jnp.broadcast_to(jnp.asarray(noise, jnp.float32), number)
    one = jnp.ones(number)
    return Said(jnp.asarray(own, jnp.float32), level, level, level**2 / directions, one, one, one)


def test_a_spread_below_the_noise_is_told_and_leaves_little_heterogeneity():
    own, counts = [[0.0], [1.0], [2.0]], jnp.full(3, True)

    spread, left, alike = heterogeneity(said(own, 5.0), counts)

    assert (float(spread), bool(alike)) == (1.0, True)
    shrink = shrink_factor(1 / 5, 2.0, gammainc)  # two degrees of freedom
    assert float(left) == pytest.approx(5 * (1 - shrink) / shrink, rel=1e-4)


def test_with_many_clients_heterogeneity_is_the_spread_less_the_noise():
    """Of the clients that count; (m - 1) d degrees of freedom leave the prior nothing to say."""
    own = 3 * jax.random.normal(jax.random.key(0), (500, 4))
    counts = jnp.arange(500) < 400
    spread = np.square(own[:400] - own[:400].mean(0)).sum() / 399

    found = heterogeneity(said(own, 9.0, directions=4), counts)

    np.testing.assert_allclose(found[:2], [spread, spread - 9.0], rtol=5e-3)
    assert not found[2]


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
    asked = statistics(make_part(model, None, 0.0), Plan(steps=1, batch=None, lr=1.0), exact=False)

    told, _, _ = asked.train(jax.random.key(5), model.init(jax.random.key(0)), (), data)

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
    asked = statistics(make_part(model, None, 0.0), plan, exact=False, by_plan=True)

    told, _, _ = asked.train(
        jax.random.key(1), model.init(jax.random.key(2)), (), Data(train=rows, valid=replace(rows, count=0))
    )

    assert all(np.isfinite(leaf).all() for leaf in told)
    assert float(told.most) > 0
    assert float(told.time) == pytest.approx(0.1)


def test_lam_does_not_outrun_the_plan_and_the_pace_makes_up_for_the_lag():
    """All clients alike: lam would be large, and ends at 1 / T; the pace is then 1 / (1 - 1 / e)."""
    plan = Plan(epochs=20, batch=None, lr=0.1)
    federation = regression(sizes=(8,) * 6, radius=0.0, sigma=1.0, seed=2)
    result = run(fedclup(MODEL, local="sgd", plan=plan), federation, rounds=2, executor="vectorized")

    server = result.state.server

    assert float(server.lam[0]) == pytest.approx(1 / (20 * 0.1), rel=1e-5)
    assert float(pace(How(), False, server)[0]) == pytest.approx(1 / (1 - np.exp(-1)), rel=1e-5)


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


def test_clients_may_leave_what_all_chose():
    result = run(fedclup(MODEL, lam="valid-own", num_lams=3), valid_world(), rounds=30, executor="vectorized")
    private = result.state.private

    for k in range(6):
        lane = int(private.lane[k])
        np.testing.assert_allclose(
            result.model_for(k).weights.params["kernel"], private.weights.params["kernel"][k, lane]
        )
        assert result.clients["lam"][k] == pytest.approx(float(result.state.server.lam[lane]))


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
    steps = Steps(*(jnp.asarray(value) for value in (LAM, 1.0, 0.1, 1, 1)))
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
    ("options", "said"),
    [
        (
            {"lam": LAM, "alpha": 3.0},
            r"client steps of alpha = 3 diverge: .* below 2 / \(L \+ lam\) = 0\.\d+; 0\.\d+ would do",
        ),
        (
            {"lam": LAM, "gamma": 9.0},
            r"server steps of gamma = 9 diverge: gamma must be below 2 / L_g = \d.* would do",
        ),
    ],
)
def test_a_step_that_diverges_is_refused_with_one_that_would_do(options, said):
    with pytest.raises(Unsupported, match=said):
        run(fedclup(MODEL, **options), FEDERATION, rounds=3, executor="vectorized")


def test_without_training_rows_there_is_no_automatic_lam():
    count = FEDERATION.count[:, [1, 0, 2]]  # what was to train on is to validate on
    empty = replace(FEDERATION, count=count, start=FEDERATION.start[:, [1, 0, 2]])

    with pytest.raises(Unsupported, match=r"lam='auto' needs statistics, and no client could give any"):
        run(fedclup(MODEL), empty, rounds=3, executor="vectorized")


@pytest.mark.parametrize(
    ("build", "options", "said"),
    [
        (fedclup, {"lam": -0.1}, "lam must be 0 or more, or one of auto, own, valid, valid-own, got -0.1"),
        (fedclup, {"lam": float("nan")}, "lam must be 0 or more"),
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
    with pytest.raises((BadValue, Exception), match=said):
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
