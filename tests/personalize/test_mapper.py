"""Mapper: mixtures in log space, exact shares found on held-out rows, priors fitted to all clients, joint training."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run
from plures.data.federation import from_arrays
from plures.engine.clients import layout_of, on_device, view
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.keys import permute
from plures.local import draw, objective, sgd
from plures.methods.clustering.hypcluster_auto import hypcluster_auto
from plures.methods.fedavg import fedavg
from plures.methods.local_only import local_only
from plures.models.linear import density, least_squares, logistic, mean, softmax, squared_hinge
from plures.models.sequence import char_mlp
from plures.personalize.dapper import dapper
from plures.personalize.local_models import counts
from plures.personalize.mapper import GRID, curve, fit_prior, mapper, posterior_mean
from plures.personalize.mixtures import MixtureEvidence, best_mixture, evidence, mixture, soft_loss
from plures.types import Batch, Data, Plan, Rows, Weights

KEY = jax.random.key(0)
FULL = Plan(batch=None, lr=0.4)


def log_ratios(*values):
    """Evidence of rows on which the own model is so many times likelier, as logarithms."""
    rows = max(len(values), 5)
    gains = jnp.full(rows, jnp.nan).at[: len(values)].set(jnp.asarray(values, jnp.float32))
    return MixtureEvidence(gains, None, jnp.arange(rows) < len(values))


share_of = jax.jit(best_mixture)


def likelihood(gains, lams):
    """sum over rows of log(1 - lam + lam exp(gain)), for every lam."""
    return np.log1p(np.asarray(lams)[:, None] * np.expm1(np.asarray(gains, float))[None]).sum(1)


@pytest.mark.parametrize(
    "gains", [(2.0, -1.0), (0.3, 0.1, -4.0, 2.0), (1.0, 0.5), (-1.0, -0.2), (-50.0, 3.0, 3.0), (0.0, 0.0)]
)
def test_the_exact_share_is_the_best_of_a_fine_grid(gains):
    lams = np.linspace(0, 1, 200_001)[:-1]  # the last one is minus infinity where a row has no share at all

    found = float(share_of(log_ratios(*gains)))

    assert found == pytest.approx(lams[likelihood(gains, lams).argmax()], abs=2e-5)


def test_numbers_are_mixed_by_the_share_of_least_squares():
    common, own, y = jnp.array([0.0, 0.0, 0.0]), jnp.array([1.0, 2.0, 4.0]), jnp.array([1.0, 0.0, 2.0])
    found = evidence(least_squares((1,)), common, own, y, jnp.ones(3, bool))

    share = (1.0 * 1.0 + 0.0 * 2.0 + 2.0 * 4.0) / (1.0 + 4.0 + 16.0)  # (y - c)(o - c) over (o - c)^2
    assert float(share_of(found)) == pytest.approx(share, rel=1e-5)
    np.testing.assert_allclose(mixture(least_squares((1,)), common, own, 0.25), 0.25 * own)


LOGITS = jax.random.normal(jax.random.key(1), (2, 5, 3)) * 2
SOFTMAX = softmax((2,), 3)


def test_classes_are_mixed_by_probability():
    found = jax.nn.softmax(mixture(SOFTMAX, *LOGITS, jnp.asarray(0.3)))

    first, second = (np.asarray(jax.nn.softmax(one)) for one in LOGITS)
    np.testing.assert_allclose(found, 0.7 * first + 0.3 * second, atol=1e-6)


def test_single_logits_are_mixed_by_probability():
    common, own = LOGITS[0, :, 0], LOGITS[1, :, 0]

    found = jax.nn.sigmoid(mixture(logistic((2,)), common, own, jnp.asarray(0.3)))

    wanted = 0.7 / (1 + np.exp(-np.asarray(common))) + 0.3 / (1 + np.exp(-np.asarray(own)))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


POINT_MASS = jnp.broadcast_to(jnp.array([0.0, -jnp.inf, -jnp.inf]), (5, 3))


@pytest.mark.parametrize(
    ("model", "common", "own"),
    [
        (SOFTMAX, *LOGITS),
        (SOFTMAX, LOGITS[0], POINT_MASS),
        (logistic((2,)), *LOGITS[:, :, 0]),
        (least_squares((2,)), *LOGITS[:, :, 0]),
    ],
    ids=["classes", "point mass", "binary", "numbers"],
)
def test_at_both_ends_the_mixture_is_one_of_the_two_and_never_nan(model, common, own):
    y = jnp.array([0, 1, 0, 1, 0])

    at_common, at_own = (mixture(model, common, own, jnp.asarray(lam)) for lam in (0.0, 1.0))

    np.testing.assert_allclose(at_common, common, atol=1e-6)
    np.testing.assert_allclose(model.loss(at_common, y), model.loss(common, y), atol=1e-6)
    np.testing.assert_allclose(model.loss(at_own, y), model.loss(own, y), atol=1e-5)
    assert not np.isnan(at_own).any()
    found = evidence(model, common, own, y, jnp.ones(5, bool))
    for lam in (0.0, 1.0):
        assert np.isfinite([float(found.total(jnp.asarray(lam))), float(found.gradient(jnp.asarray(lam)))]).all()
        assert found.share(jnp.asarray(lam)).tolist() == [1.0 - lam] * 5


def mixed_loss(flat, x, y, own, lam):
    """The mean of -log((1 - lam) p_common + lam p_own), in double precision, for a (3, 2) kernel and 3 biases."""
    scores = x @ flat[:6].reshape(3, 2).T + flat[6:]
    probs = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return -np.log((1 - lam) * probs[np.arange(len(y)), y] + lam * own).mean()


def test_the_slope_for_the_common_model_is_that_of_rows_weighted_by_responsibility():
    rng = np.random.default_rng(0)
    x, y, lam = rng.normal(size=(6, 2)), rng.integers(0, 3, 6), 0.35
    flat = rng.normal(size=9)
    params = {"head": {"kernel": jnp.asarray(flat[:6].reshape(3, 2)), "bias": jnp.asarray(flat[6:])}}
    outputs_own = jnp.asarray(rng.normal(size=(6, 3)))
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(6, bool))

    def of_mixture(params):
        common = SOFTMAX.apply(Weights(params), batch.x)
        return SOFTMAX.loss(mixture(SOFTMAX, common, outputs_own, jnp.asarray(lam)), batch.y).mean()

    found = evidence(SOFTMAX, SOFTMAX.apply(Weights(params), batch.x), outputs_own, batch.y, batch.mask)
    weighted = batch._replace(weight=found.share(jnp.asarray(lam)))
    ours = jax.jit(jax.grad(lambda p: objective(SOFTMAX)(KEY, Weights(p), weighted)[0]))(params)
    theirs = jax.jit(jax.grad(of_mixture))(params)

    own = np.asarray(jax.nn.softmax(outputs_own))[np.arange(6), y]
    steps = 1e-5 * np.eye(9)
    wanted = [(mixed_loss(flat + h, x, y, own, lam) - mixed_loss(flat - h, x, y, own, lam)) / 2e-5 for h in steps]
    found = np.concatenate([ours["head"]["kernel"].ravel(), ours["head"]["bias"]])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    for one, other in zip(jax.tree.leaves(theirs), jax.tree.leaves(ours), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_soft_labels_cost_what_drawn_labels_cost_on_average():
    outputs, targets = LOGITS

    found = soft_loss(SOFTMAX, outputs, targets)

    of_label = [np.asarray(SOFTMAX.loss(outputs, jnp.full(5, label))) for label in range(3)]
    wanted = (np.asarray(jax.nn.softmax(targets)) * np.stack(of_label, 1)).sum(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def numbers(*y, weight=None):
    """A client's targets, for the model that predicts a single point."""
    values = jnp.asarray(y, jnp.float32)
    return Rows(jnp.zeros((len(y), 0)), values, 0, len(y), len(y), None if weight is None else jnp.asarray(weight))


def test_weighted_rows_pull_by_their_weight():
    """One full step from 1: 1 - lr mean(w (1 - y))."""
    rows = numbers(2.0, 5.0, -3.0, weight=[1.0, 0.5, 0.0])
    model, start = mean((0,), 1), Weights({"point": jnp.ones(1)})

    after, _ = sgd(KEY, start, Data(rows, rows), Plan(batch=None, lr=0.6), objective(model))

    assert float(after.params["point"][0]) == pytest.approx(1 - 0.6 * (1.0 * (1 - 2) + 0.5 * (1 - 5) + 0.0) / 3)


def test_weights_stay_with_their_rows_when_batches_are_shuffled():
    rows = numbers(*range(7), weight=[10.0 * y for y in range(7)])

    batches = [draw(KEY, rows, Plan(batch=3), jnp.asarray(step)) for step in range(3)]

    for batch in batches:
        np.testing.assert_array_equal(batch.weight, 10 * batch.y)
    assert sorted(y for batch in batches for y in batch.y[batch.mask].tolist()) == list(range(7))


SIZES = (30, 12, 7, 1)


@cache
def ragged(task):
    """Clients of unequal sizes whose laws differ; every row is for training."""
    rng = np.random.default_rng(5)
    owner = np.repeat(np.arange(4), SIZES)
    x = rng.normal(size=(len(owner), 2)).astype(np.float32)
    if task == "regression":
        y = (x @ [1.0, -1.0] + owner * x[:, 0] + rng.normal(size=len(owner))).astype(np.float32)
        return from_arrays(x, y, owner, split=["train"] * len(owner), task="regression")
    y = np.where(rng.random(len(owner)) < 0.5, owner, rng.integers(0, 4, len(owner))).astype(np.int32)
    return from_arrays(x, y, owner, split=["train"] * len(owner), task="density", num_classes=4)


def own_rows(federation, client):
    return federation.rows_of(federation.names[client], "train")


def for_all(federation, function):
    """A function of (uid, data) for every client, compiled, its results stacked."""
    arrays, places = on_device(federation)
    layout = layout_of(federation)

    @jax.jit
    def all_of_them(places):
        return jax.vmap(lambda place: function(place.uid, view(layout, arrays, place)))(places)

    return all_of_them(places)


KEYS = jax.random.split(jax.random.key(9), 4)


def served(method, server, federation):
    """What every client is served, stacked."""
    return for_all(federation, lambda uid, data: method.serve(KEYS[uid], method.offered(server, uid), (), data))


def folds_by(key, number):
    """(held, others) of the five folds, by a loop."""
    order = np.asarray(permute(key, jnp.arange(number), number))
    cuts = [fold * number // 5 for fold in range(6)]
    return [(order[cuts[i] : cuts[i + 1]], np.delete(order, np.s_[cuts[i] : cuts[i + 1]])) for i in range(5)]


DENSITY = density((2,), 4)
COMMON = np.array([0.4, 0.3, 0.2, 0.1])


def at_common(base):
    return base.start(KEY, 4)._replace(weights=Weights({"logits": jnp.log(jnp.asarray(COMMON))}))


def crossed_gains(y, key):
    """log p_own - log p_common of every row, its own model fitted to the other folds with 1/2 added to counts."""
    gains = []
    for held, others in folds_by(key, len(y)):
        tally = np.bincount(y[others], minlength=4) + 0.5
        gains += np.log((tally / tally.sum() / COMMON)[y[held]]).tolist()
    return np.array(gains)


def test_shares_are_those_of_a_loop_over_folds():
    federation, base = ragged("density"), fedavg(DENSITY)

    found = served(mapper(base, lam="per_client", local="smoothed"), at_common(base), federation)

    lams = np.linspace(0, 1, 100_001)
    for client in range(4):
        key = jax.random.split(KEYS[client], 3)[2]
        gains = crossed_gains(own_rows(federation, client)[1], key)
        assert float(found.lam[client]) == pytest.approx(lams[likelihood(gains, lams).argmax()], abs=1e-4)
    assert len(set(found.lam.tolist())) > 2


def tuned_by(z, y, start, *, steps):
    """Full-batch steps of 0.4 on half the squared error."""
    w = start.copy()
    for _ in range(steps if len(y) else 0):
        w -= 0.4 * z.T @ (z @ w - y) / len(y)
    return w


def test_shares_of_numbers_are_those_of_least_squares_over_all_folds():
    federation = ragged("regression")
    base = fedavg(least_squares((2,)), plan=FULL)
    start = np.array([2.0, -1.0, 0.5])
    server = base.start(KEY, 4)._replace(
        weights=Weights({"head": {"kernel": jnp.array([2.0, -1.0]), "bias": jnp.array(0.5)}})
    )

    found = served(mapper(base, lam="per_client", epochs=10), server, federation)

    for client in range(3):
        x, y = own_rows(federation, client)
        z = np.concatenate([x, np.ones((len(x), 1))], axis=1).astype(float)
        above = below = 0.0
        for held, others in folds_by(jax.random.split(KEYS[client], 3)[2], len(y)):
            step = z[held] @ (tuned_by(z[others], y[others], start, steps=10) - start)
            above += (step * (y[held] - z[held] @ start)).sum()
            below += (step**2).sum()
        assert float(found.lam[client]) == pytest.approx(np.clip(above / below, 0, 1), abs=1e-4)
    assert 0 < float(found.lam[0]) < 1


def test_a_number_is_the_share_of_unrestricted_own_models():
    """Mixing with own frequencies is the minimizer of own and pooled log-loss by the same share."""
    federation, base = ragged("density"), fedavg(DENSITY, plan=Plan(batch=None, lr=2.0))
    own = [np.bincount(own_rows(federation, client)[1], minlength=4) for client in range(4)]
    pool = np.sum(own, 0) / np.sum(own)
    server = base.start(KEY, 4)._replace(weights=Weights({"logits": jnp.log(jnp.asarray(pool))}))
    mixing = mapper(base, lam=0.3, local="counts")
    moving = dapper(base, lam=0.3, source="statistics", epochs=400)

    mixed = served(mixing, server, federation)
    sums = moving.start(KEY, 4)._replace(base=server, found=jnp.asarray(np.sum(own, 0, keepdims=True), jnp.float32))
    moved = served(moving, sums, federation)

    wanted = np.stack([0.3 * n / n.sum() + 0.7 * pool for n in own])
    blank = jnp.zeros((1, 2))
    outputs = jax.vmap(lambda one: mixing.predict(one, blank)[0])(mixed)
    np.testing.assert_allclose(jax.nn.softmax(outputs), wanted, atol=1e-6)
    np.testing.assert_allclose(jax.nn.softmax(moved.weights.params["logits"]), wanted, atol=2e-5)


def asked(method, federation, base, *, weights=None):
    """The server after the closing round, and the clients' answers."""
    server = method.start(KEY, 4)._replace(base=base)

    def answer(uid, data):
        return method.train(jax.random.fold_in(KEY, uid), method.send(server, uid), (), data)[0]

    answers = for_all(federation, answer)
    heard = jnp.ones(4) if weights is None else jnp.asarray(weights)
    return jax.jit(method.merge)(server, answers, heard, jnp.arange(4)), answers


def test_clients_tell_the_likelihood_of_every_share_and_the_best_sum_is_the_share_of_all():
    federation, base = ragged("density"), fedavg(DENSITY)
    method = mapper(base, lam="global", local="smoothed")

    server, answers = asked(method, federation, at_common(base), weights=[30.0, 12.0, 7.0, 0.0])
    found = served(method, server, federation)

    curves = []
    for client in range(4):
        key = jax.random.fold_in(jax.random.fold_in(KEY, client), 1)
        curves.append(likelihood(crossed_gains(own_rows(federation, client)[1], key), GRID))
    np.testing.assert_allclose(answers, curves, atol=2e-4)
    best = GRID[np.sum(curves[:3], 0).argmax()]  # the answer of the last client was lost
    np.testing.assert_allclose(found.lam, [best] * 4, atol=1e-6)


def prior_of(first, second):
    """A Beta prior on the grid, up to a factor."""
    inside = np.clip(GRID, 0.005, 0.995)
    density = inside ** (first - 1) * (1 - inside) ** (second - 1)
    return jnp.asarray(density / density.sum())


def test_a_shrunk_share_lies_between_the_priors_mean_and_the_clients_own():
    """Nine rows of ten for the own model, again and again: from 0.2 towards the client's own share."""
    prior = prior_of(2.0, 8.0)
    gains = [np.log(4.0)] * 9 + [np.log(0.25)]
    alone = float(share_of(log_ratios(*gains)))

    shrunk = [float(posterior_mean(curve(log_ratios(*gains * times)), prior)) for times in (1, 4, 400)]

    assert float(prior @ GRID) < shrunk[0] < shrunk[1] < shrunk[2] < alone
    assert shrunk[2] == pytest.approx(alone, abs=0.01)


def test_no_rows_leave_the_prior_as_it_is():
    nothing = MixtureEvidence(jnp.zeros(3), None, jnp.zeros(3, bool))

    assert float(posterior_mean(curve(nothing), prior_of(2.0, 8.0))) == pytest.approx(
        float(prior_of(2.0, 8.0) @ GRID), abs=1e-6
    )


def test_the_prior_of_the_clients_is_found():
    """Shares drawn from Beta(2.4, 5.6); two symbols, the own model for one of them, the common one for the other."""
    rng = np.random.default_rng(1)
    lams = rng.beta(2.4, 5.6, size=300)
    common, own = np.array([0.9, 0.1]), np.array([0.1, 0.9])
    hits = rng.binomial(100, (1 - lams) * common[1] + lams * own[1])
    gains = np.log(own / common)
    curves = np.stack(
        [n * np.log1p(GRID * np.expm1(gains[1])) + (100 - n) * np.log1p(GRID * np.expm1(gains[0])) for n in hits]
    )

    prior = np.asarray(fit_prior(jnp.asarray(curves, jnp.float32)))

    middle = prior @ GRID
    spread = np.sqrt(prior @ (GRID - middle) ** 2)
    assert middle == pytest.approx(0.3, abs=0.05)
    assert spread == pytest.approx(np.sqrt(0.3 * 0.7 / 9), rel=0.3)  # the variance of a Beta of strength 8


def test_flat_answers_change_no_prior():
    curves = jnp.asarray(np.stack([likelihood([1.0, 1.0, -2.0], GRID[:-1])] * 5))
    curves = jnp.concatenate([curves, curves[:, -1:]], axis=1)

    with_flat = fit_prior(jnp.concatenate([curves, jnp.zeros((7, len(GRID)))]))

    np.testing.assert_array_equal(with_flat, fit_prior(curves))


@pytest.mark.parametrize("lam", ["per_client", "shrunk"])
def test_an_own_model_that_never_trained_leaves_the_share_unknown(lam):
    federation, base = ragged("regression"), fedavg(least_squares((2,)), plan=FULL)
    method = mapper(base, lam=lam, epochs=0)
    first = base.start(KEY, 4)
    server = asked(method, federation, first)[0] if lam == "shrunk" else first

    found = served(method, server, federation)

    told = method.views.facts((), (), found)
    assert not told["lam_known"].any()
    assert told["lam"].tolist() == pytest.approx([0.0 if lam == "per_client" else 0.5] * 4, abs=1e-6)


@pytest.mark.parametrize("local", ["counts", "smoothed", "symbol", "tuned"])
def test_a_client_without_rows_is_served_the_common_model(local):
    rows = Rows(jnp.zeros((1, 2)), jnp.zeros(1, jnp.int32), 0, jnp.asarray(0), 1)
    method = mapper(fedavg(DENSITY, plan=FULL), lam="per_client", local=local)

    one = jax.jit(method.serve)(KEY, Weights({"logits": jnp.log(jnp.asarray(COMMON))}), (), Data(rows, rows))

    outputs = method.predict(one, jnp.zeros((1, 2)))[0]
    np.testing.assert_allclose(jax.nn.softmax(outputs), COMMON, atol=1e-6)
    assert (float(one.lam), bool(one.known)) == (0.0, False)


def test_counts_of_no_rows_are_the_common_model():
    rows = Rows(jnp.zeros((1, 2)), jnp.zeros(1, jnp.int32), 0, jnp.asarray(0), 1)
    common = Weights({"logits": jnp.log(jnp.asarray(COMMON))})

    np.testing.assert_allclose(jax.nn.softmax(counts().fit(KEY, common, rows)), COMMON, rtol=1e-5)


TEXT = char_mlp((6,), 5, context=2, dim=2, hidden=4)


@pytest.mark.slow
def test_texts_are_mixed_at_every_position():
    """The chances of both models are mixed for each character, and each label has evidence of its own."""
    x = jax.random.randint(KEY, (7, 6), 0, 5)
    rows = Rows(x, jnp.roll(x, -1, axis=1), 0, 7, 7)
    method = mapper(fedavg(TEXT, plan=Plan(batch=None, lr=0.5)), lam="per_client", folds=2)
    common = TEXT.init(KEY)

    one = jax.jit(method.serve)(KEY, common, (), Data(rows, rows))
    found = jax.nn.softmax(method.predict(one, x))

    lam, pair = float(one.lam), [np.asarray(jax.nn.softmax(TEXT.apply(w, x))) for w in (one.common, one.own)]
    assert found.shape == (7, 6, 5)
    np.testing.assert_allclose(found, (1 - lam) * pair[0] + lam * pair[1], atol=1e-6)
    gains = evidence(TEXT, TEXT.apply(one.common, x), TEXT.apply(one.own, x), rows.y, jnp.ones(7, bool)).gain
    labels = np.asarray(rows.y)[..., None]
    wanted = np.log(np.take_along_axis(pair[1], labels, 2) / np.take_along_axis(pair[0], labels, 2))[..., 0]
    np.testing.assert_allclose(gains, wanted, atol=1e-5)


def test_joint_training_weighs_every_row_by_the_common_models_responsibility():
    """With a share given, one full step on mean over rows of r (p_common - label), r = (1 - lam) p_c / mixture."""
    federation = ragged("density")
    base = fedavg(DENSITY, plan=Plan(batch=None, lr=0.5))
    method = mapper(base, lam=0.4, local="smoothed", joint=True)
    common = Weights({"logits": jnp.log(jnp.asarray(COMMON))})

    updates = for_all(federation, lambda uid, data: method.train(KEYS[uid], common, (), data)[0])

    for client in range(4):
        y = own_rows(federation, client)[1]
        key_folds = jax.random.split(KEYS[client])[1]
        order = np.concatenate([held for held, _ in folds_by(key_folds, len(y))])
        r = 0.6 / (0.6 + 0.4 * np.exp(crossed_gains(y, key_folds)))
        slope = (r[:, None] * (COMMON[None] - np.eye(4)[y[order]])).mean(0)
        np.testing.assert_allclose(updates.params["logits"][client], -0.5 * slope, atol=1e-5)


SYMBOLS, CLIENTS = 50, 200


@cache
def two_kinds():
    """Even clients always say the first symbol, odd ones any of 50, ten times each."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, SYMBOLS, (CLIENTS, 10)).astype(np.int32)
    y[::2] = 0
    owner = np.repeat(np.arange(CLIENTS), 10)
    x = np.zeros((len(owner), 0), np.float32)
    options = {"task": "density", "num_classes": SYMBOLS, "split": ["train"] * len(owner)}
    return from_arrays(x, y.ravel(), owner, **options)


@cache
def example(**options):
    base = fedavg(density((0,), SYMBOLS), plan=Plan(batch=None, lr=3.0))
    method = mapper(base, local="symbol", **options)
    return run(method, two_kinds(), rounds=200, executor="vectorized")


def odd_loss(probs):
    """The expected log-loss of an odd client: symbols are uniform."""
    return float(-np.log(probs).mean())


def common_of(result):
    return np.asarray(jax.nn.softmax(result.state.server.base.weights.params["logits"]), float)


@pytest.mark.slow
def test_a_common_model_trained_apart_is_of_no_use_to_those_who_need_it():
    result = example()

    common = common_of(result)
    frequency = np.bincount(two_kinds().y, minlength=SYMBOLS) / len(two_kinds().y)
    np.testing.assert_allclose(common[0], frequency[0], atol=1e-3)
    assert odd_loss(common) > 4.5


@pytest.mark.slow
def test_a_common_model_trained_jointly_serves_those_who_need_it():
    """log 50 = 3.912 is the least there is; the common model is near, and nearly all of even clients is their own."""
    result = example(joint=True, warm=50)

    common = common_of(result)
    assert odd_loss(common) < 3.95
    lams = result.clients["lam"].to_numpy()
    assert lams[::2].min() > 0.9
    assert np.median(lams[1::2]) < 0.05


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda: mapper(fedavg(SOFTMAX), lam=1.5), BadValue, r"lam must be in \[0, 1\], got 1.5"),
        (lambda: mapper(fedavg(SOFTMAX), lam="shrink"), UnknownChoice, "did you mean 'shrunk'"),
        (lambda: mapper(fedavg(SOFTMAX), local="tune"), UnknownChoice, "did you mean 'tuned'"),
        (lambda: mapper(fedavg(SOFTMAX), local="counts"), Unsupported, "for densities over symbols"),
        (lambda: mapper(fedavg(SOFTMAX), folds=1), BadValue, "folds must be 2 or more, got 1"),
        (lambda: mapper(fedavg(SOFTMAX), epochs=-1), BadValue, "epochs must be 0 or more, got -1"),
        (lambda: mapper(fedavg(SOFTMAX), warm=2), Unsupported, "add joint=true"),
        (lambda: mapper(fedavg(squared_hinge((2,)))), Unsupported, "margins, not probabilities"),
        (lambda: mapper(fedavg(least_squares((2,))), joint=True), Unsupported, "predicts probabilities"),
        (lambda: mapper(mapper(fedavg(SOFTMAX))), Unsupported, "mapper needs a base that serves a plain model"),
        (lambda: mapper(hypcluster_auto(SOFTMAX), joint=True), Unsupported, "a base whose last round trains"),
        (lambda: mapper(local_only(SOFTMAX), joint=True, lam=0.5), Unsupported, "a base that trains what it serves"),
        (lambda: mapper(local_only(SOFTMAX)), Unsupported, "a base without private state"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(build, error, said):
    with pytest.raises(error, match=said):
        build()
