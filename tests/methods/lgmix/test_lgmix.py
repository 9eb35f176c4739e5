"""LG-Mix: its exact properties, its memory, its choices; what it refuses."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import tree
from plures.contract import worlds
from plures.engine import run
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.local import objective, sgd
from plures.methods.fedavg import fedavg
from plures.methods.lgmix.lgmix import MixOffer, MixState, lgmix
from plures.methods.lgmix.mixing import MixingRule, first_mixing, ratio, remember
from plures.methods.local_only import local_only
from plures.models.build import CLASSIFICATION, from_functions
from plures.models.mlp import mlp
from plures.types import Data, Plan, Rows, Weights

NORMED = worlds.model(norm=True)
PLAN = Plan(epochs=2, batch=4, lr=0.2)
CLIENTS = worlds.limit_world("clients")
SHARES = np.asarray(CLIENTS.count[:, 0] / CLIENTS.count[:, 0].sum(), np.float32)


def played(method, rounds=3, **settings):
    return run(method, CLIENTS, rounds=rounds, executor="vectorized", **settings).state


def mean_of(models):
    return jax.tree.map(lambda leaf: jnp.tensordot(SHARES, leaf, axes=1), models)


def close(left, right, atol=1e-6):
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(one, other, atol=atol)


def client(rows=6, seed=0, model=NORMED):
    """One client's data, and a model."""
    key_x, key_y = jax.random.split(jax.random.key(seed))
    x = jax.random.normal(key_x, (rows, worlds.DIM))
    y = jax.random.randint(key_y, (rows,), 0, worlds.CLASSES)
    mine = Rows(x=x, y=y, start=0, count=rows, capacity=rows)
    return Data(train=mine, valid=mine), model.init(jax.random.key(seed + 1))


def joined(method, weights):
    return method.join(jax.random.key(0), MixOffer(weights, ()))


def test_without_a_share_for_the_own_update_it_is_fedavg_bit_for_bit():
    ours, theirs = played(lgmix(NORMED, plan=PLAN, lam=0.0)), played(fedavg(NORMED, plan=PLAN))

    shared = theirs.server.weights
    for mine, one in zip(jax.tree.leaves(ours.private.weights.params), jax.tree.leaves(shared.params), strict=True):
        for row in mine:
            np.testing.assert_array_equal(row, one)
    close(ours.server.shared, shared)
    for row in range(4):
        close(tree.at(ours.private.weights.stats, row), shared.stats)


@pytest.mark.slow
def test_with_the_own_update_alone_every_client_trains_alone_and_the_shared_model_is_their_mean():
    ours, alone = played(lgmix(NORMED, plan=PLAN, lam=1.0)), played(local_only(NORMED, plan=PLAN))

    close(ours.private.weights, alone.private.weights)
    close(ours.server.shared, mean_of(ours.private.weights))


@pytest.mark.slow
def test_with_one_share_for_all_the_mean_of_the_models_is_the_shared_one_and_with_several_it_is_not():
    equal = played(lgmix(NORMED, plan=PLAN, lam=0.3))
    own = played(lgmix(NORMED, plan=PLAN))

    close(equal.server.shared, mean_of(equal.private.weights))
    gap = tree.subtract(own.server.shared.params, mean_of(own.private.weights).params)
    assert float(jnp.sqrt(tree.squared_norm(gap))) > 1e-3
    assert np.ptp(np.asarray(own.private.mixing.lam)) > 1e-3


@pytest.mark.slow
def test_the_share_is_a_half_where_both_models_are_equal():
    """Same mode, same rows: exactly; and strictly between 0 and 1 later."""
    full = Plan(steps=1, batch=None, lr=0.2)
    once = played(lgmix(NORMED, plan=full), rounds=1).private.mixing
    later = played(lgmix(NORMED, plan=PLAN), rounds=3).private.mixing

    np.testing.assert_array_equal(once.lam, 0.5)
    assert float(once.own.min()) > 0
    assert np.all((later.lam > 0) & (later.lam < 1))


def test_all_epochs_count_in_an_update():
    data, weights = client()
    method = lgmix(NORMED, plan=Plan(epochs=3, batch=None, lr=0.2))
    own = joined(method, weights)

    upload, private, _ = method.train(jax.random.key(1), (), own, data)

    after, _ = sgd(jax.random.key(1), weights, data, Plan(epochs=3, batch=None, lr=0.2), objective(NORMED))
    close(upload, tree.subtract(after, weights))
    close(private.weights, weights, atol=0)  # training is only measured: the model moves when the answer comes


@pytest.mark.parametrize("published", [False, True])
def test_running_variances_never_become_negative(published):
    """Everyone else's variances fall by more than the client's own has."""
    data, weights = client()
    method = lgmix(NORMED, published=published)
    own = joined(method, weights)
    small = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.01), weights.stats)
    still = tree.zeros_like(weights)
    half = own.mixing._replace(lam=jnp.full(1, 0.5))
    own = own._replace(weights=weights._replace(stats=small), update=still, mixing=half)
    fallen = jax.tree.map(lambda leaf: jnp.full_like(leaf, -0.5), weights.stats)

    settled = method.settle(jax.random.key(1), still._replace(stats=fallen), own, data)

    variances = [leaf for path, leaf in _named(settled.weights.stats) if path.endswith("var")]
    assert all(float(leaf.min()) >= 0 for leaf in variances)
    assert all(np.allclose(leaf, 0.001) for leaf in variances)  # 0.01 - 0.25 is held at a tenth of 0.01


def _named(stats):
    return list(zip(tree.paths(stats), jax.tree.leaves(stats), strict=True))


@pytest.mark.slow
def test_the_published_setting_is_the_published_rule():
    """Two rounds written out: centered covariance, least eigenvalue dropped, mixed modes, running mean, updates mixed."""
    plan = Plan(steps=1, batch=None, lr=0.2)
    ours = played(lgmix(NORMED, plan=plan, published=True), rounds=2)

    own, shared, history = _by_hand(plan, rounds=2)

    close(ours.server.shared, shared, atol=1e-5)
    for row in range(4):
        close(tree.at(ours.private.weights, row), own[row], atol=1e-5)
        np.testing.assert_allclose(ours.private.mixing.lam[row, 0], np.mean(history[row]), atol=1e-4)


def _by_hand(plan, rounds):
    shared = _initial()
    own, history = [shared] * 4, [[] for _ in range(4)]
    for _ in range(rounds):
        updates = []
        for row in range(4):
            data = _data_of(row)
            batch = data.train.all()
            _, mine, _ = NORMED.featured(jax.random.key(0), own[row], batch.x, batch.mask)
            traces = [_published_trace(h) for h in (mine, NORMED.features(shared, batch.x))]
            history[row].append(traces[0] / sum(traces))
            after, _ = sgd(jax.random.key(0), own[row], data, plan, objective(NORMED))
            updates.append(tree.subtract(after, own[row]))
        everyones = jax.tree.map(lambda *leaves: jnp.tensordot(SHARES, jnp.stack(leaves), axes=1), *updates)
        for row in range(4):
            lam = float(np.mean(history[row]))
            mix = jax.tree.map(lambda mine, all_, lam=lam: lam * mine + (1 - lam) * all_, updates[row], everyones)
            own[row] = tree.add(own[row], mix)
        shared = tree.add(shared, everyones)
    return own, shared, history


def _initial():
    """The model that every run of seed 0 starts from: what a client is offered before the first round."""
    return played(lgmix(NORMED, plan=Plan(epochs=0)), rounds=1).server.shared


def _data_of(row):
    start, count = CLIENTS.start[row], CLIENTS.count[row]
    x, y = jnp.asarray(CLIENTS.x), jnp.asarray(CLIENTS.y)
    number = int(count[0])
    rows = Rows(x=x, y=y, start=int(start[0]), count=number, capacity=number)
    return Data(train=rows, valid=rows)


def _published_trace(features):
    """The sum of the eigenvalues of the centered covariance but for the last, as by a loop and an SVD."""
    centered = np.asarray(features, np.float64) - np.asarray(features, np.float64).mean(0)
    covariance = sum(np.outer(row, row) for row in centered) / len(centered)
    return np.linalg.svd(covariance, compute_uv=False)[:-1].sum()


def test_the_published_modes_make_the_first_share_an_artefact():
    """Own batch statistics against running ones that are still 0 and 1: the first ratio is far from a half."""
    state = played(lgmix(NORMED, plan=Plan(steps=1, batch=None, lr=0.2), published=True), rounds=1)

    assert float(jnp.abs(state.private.mixing.lam - 0.5).max()) > 0.05


@pytest.mark.parametrize(
    ("memory", "wanted"), [("none", 0.9), ("mean", 0.6), ("ema", 0.5 * (0.5 * (0.2 + 0.7)) + 0.45)]
)
def test_memories(memory, wanted):
    rule = MixingRule(memory=memory, decay=0.5)
    mixing = first_mixing(NORMED, rule)
    for found in (0.2, 0.7, 0.9):
        mixing = remember(rule, mixing, jnp.array([found]), jnp.asarray(True))

    assert float(mixing.lam[0]) == pytest.approx(wanted)
    assert float(mixing.rounds) == 3


def test_a_client_without_rows_follows_the_shared_model():
    data, weights = client()
    method = lgmix(NORMED)
    empty = replace(data.train, count=jnp.asarray(0))
    update = tree.scale(0.5, weights)

    _, after, _ = method.train(jax.random.key(2), (), joined(method, weights), Data(train=empty, valid=empty))
    settled = method.settle(jax.random.key(3), update, after, Data(train=empty, valid=empty))

    np.testing.assert_array_equal(after.mixing.lam, 0.0)
    assert not bool(after.trained)
    close(settled.weights.params, tree.add(weights.params, update.params))
    assert float(ratio(jnp.zeros(1), jnp.zeros(1))[0]) == 0.5


def test_valid_rows_choose_the_update_that_helps_them():
    data, weights = client()
    method = lgmix(NORMED, lam="valid", memory="none")
    good, _ = sgd(jax.random.key(1), weights, data, Plan(epochs=20, batch=None, lr=0.1), objective(NORMED))
    update = tree.subtract(good, weights)
    bad = Weights(tree.scale(-3.0, update.params), update.stats)
    own = joined(method, weights)

    alone = method.settle(jax.random.key(2), bad, own._replace(update=update), data)
    together = method.settle(jax.random.key(2), update, own._replace(update=bad), data)

    assert float(alone.mixing.lam[0]) == 1.0
    assert float(together.mixing.lam[0]) == 0.0


@pytest.mark.slow
def test_an_absent_client_skips_what_it_misses_or_takes_it_when_it_returns():
    """Without a share for the own update, who comes back and applies is where everyone is; who skips is not."""
    settings = {"cohort": 2, "rounds": 5}
    skipping = played(lgmix(NORMED, plan=PLAN, lam=0.0), **settings)
    applying = run(lgmix(NORMED, plan=PLAN, lam=0.0, absent="apply"), CLIENTS, executor="vectorized", **settings)
    common = played(fedavg(NORMED, plan=PLAN), **settings)

    close(applying.state.server.shared, common.server.weights, atol=1e-5)
    for uid in range(4):
        close(applying.model_for(uid).weights, common.server.weights, atol=1e-5)
    for row in range(4):
        if int(skipping.visits[row]):
            close(
                tree.at(skipping.private.weights.params, row), tree.at(skipping.private.shared.params, row), atol=0
            )
    assert max(_gap(skipping, row) for row in range(4) if int(skipping.visits[row])) > 1e-3


def _gap(state, row):
    own = tree.at(state.private.weights.params, row)
    return float(jnp.sqrt(tree.squared_norm(tree.subtract(own, state.server.shared.params))))


@pytest.mark.parametrize("norm", ["local", "affine"])
def test_private_normalization_never_travels_and_moves_by_the_own_update(norm):
    data, weights = client()
    method = lgmix(NORMED, plan=Plan(steps=1, batch=None, lr=0.2), lam=0.0, norm=norm)
    own = joined(method, weights)

    upload, private, _ = method.train(jax.random.key(1), (), own, data)
    settled = method.settle(jax.random.key(2), tree.scale(0.0, upload), private, data)

    names = set(tree.paths(upload))
    assert not any(name.startswith("stats") for name in names)
    assert any("BatchNorm" in name for name in names) == (norm == "affine")
    after, _ = sgd(jax.random.key(1), weights, data, Plan(steps=1, batch=None, lr=0.2), objective(NORMED))
    close(settled.weights.stats, after.stats)
    layer = settled.weights.params["body"]["BatchNorm_0"]
    wanted = (after if norm == "local" else weights).params["body"]["BatchNorm_0"]
    close(layer, wanted)
    close(settled.weights.params["head"], weights.params["head"], atol=0)
    assert method.traits.norm == norm


def test_every_layer_may_have_a_share_of_its_own():
    data, weights = client(model=mlp((worlds.DIM,), worlds.CLASSES, hidden=(4,)))
    model = mlp((worlds.DIM,), worlds.CLASSES, hidden=(4,))
    method = lgmix(model, lam="ntk", scope="layer", plan=Plan(steps=1, batch=None, lr=0.2), memory="none")
    own = joined(method, weights)
    own = own._replace(shared=tree.scale(0.5, weights))

    upload, private, _ = method.train(jax.random.key(1), (), own, data)
    settled = method.settle(jax.random.key(2), tree.zeros_like(weights), private, data)

    lam = private.mixing.lam
    assert lam.shape == (2,)
    assert float(jnp.abs(lam[0] - lam[1])) > 1e-3
    for name, share in zip(("dense_0", "head"), lam, strict=True):
        wanted = tree.add(weights.params[name], tree.scale(share, upload.params[name]))
        close(settled.weights.params[name], wanted)
    told = method.views.facts(MixOffer(weights, ()), settled, settled.weights)
    assert float(told["lam_head"]) == pytest.approx(float(lam[1]))
    assert float(told["cosine"]) == 0.0


def test_a_trained_client_without_valid_rows_keeps_its_statistics():
    data, weights = client()
    blind = Data(train=data.train, valid=replace(data.valid, count=jnp.asarray(0)))
    method = lgmix(NORMED, plan=Plan(steps=1, batch=None, lr=0.2), lam="valid", norm="affine")

    upload, private, _ = method.train(jax.random.key(1), (), joined(method, weights), blind)
    settled = method.settle(jax.random.key(2), upload, private, blind)

    served = method.serve(jax.random.key(3), MixOffer(weights, ()), settled, blind)
    close(served.stats, settled.weights.stats, atol=0)
    assert float(settled.mixing.lam[0]) == 0.0


def test_what_a_run_tells_of_every_client():
    result = run(lgmix(NORMED, plan=PLAN), CLIENTS, rounds=2, executor="vectorized", eval_every=1)

    table = result.clients
    lam = np.asarray(result.state.private.mixing.lam[:, 0])
    np.testing.assert_allclose(table["lam"], lam, rtol=1e-6)
    np.testing.assert_allclose(table["trace_own"], np.asarray(result.state.private.mixing.own[:, 0]), rtol=1e-6)
    assert set(np.sign(table["drift"])) == {1.0}
    assert all(-1 <= value <= 1 for value in table["cosine"])


NO_FEATURES = from_functions(
    init=lambda key: {"kernel": jnp.zeros((worlds.DIM, 2))},
    apply=lambda params, x: x @ params["kernel"],
    task=CLASSIFICATION,
    parts={"all": ("*",)},
)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"lam": 1.5},
            BadValue,
            r"lam must be a number in \[0, 1\] or one of features, head, ntk, hutchinson, valid, got 1.5",
        ),
        ({"lam": float("nan")}, BadValue, "lam must be"),
        ({"lam": "trace"}, UnknownChoice, "no rule for lam is called 'trace'"),
        ({"memory": "long"}, UnknownChoice, "no memory is called 'long'"),
        ({"mode": "both"}, UnknownChoice, "no mode is called 'both'"),
        ({"absent": "sick"}, UnknownChoice, "no way to be absent is called 'sick'"),
        ({"scope": "layer"}, Unsupported, "scope=layer needs a lam from gradients"),
        ({"scale": "normalized", "centered": False}, Unsupported, "scale=normalized is for lam=features"),
        ({"decay": 1.0}, BadValue, "decay"),
        ({"published": True, "memory": "ema"}, BadValue, "memory must be left out with published=true"),
        ({"probes": 0}, BadValue, "probes"),
        ({"norm": "mine"}, UnknownChoice, "no norm policy is called 'mine'"),
    ],
)
def test_bad_options_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        lgmix(NORMED, **options)


def test_a_model_without_features_is_refused_by_name_with_what_it_has():
    with pytest.raises(
        Unsupported, match=r"lgmix with lam=features needs a model that tells its features.*named parts: all"
    ):
        lgmix(NO_FEATURES)
    assert isinstance(joined(lgmix(NO_FEATURES, lam="ntk"), NO_FEATURES.init(jax.random.key(0))), MixState)
