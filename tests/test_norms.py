"""Policies for normalization layers: what travels, whose statistics are served, what is refused."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from plures import tree
from plures.contract import worlds
from plures.engine import run
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.methods.fedavg import fedavg
from plures.methods.parts.fedbn import fedbn
from plures.methods.scaffold import scaffold
from plures.methods.threshold.momentum_clustering import momentum_clustering
from plures.models.convolutional import cifar_cnn
from plures.models.norm_layers import has_norm, has_statistics, recalibrated
from plures.study import build_method
from plures.study.grid import compare
from plures.types import Data, Plan, Rows
from plures.wrap.norms import normalized

NORMED = worlds.model(norm=True)
STEP = Plan(steps=1, batch=None, lr=0.2)


def rows(count=6, capacity=9, seed=0):
    x = jax.random.normal(jax.random.key(seed), (capacity, worlds.DIM)) * 2 + 1
    return Rows(x=x, y=jnp.arange(capacity) % worlds.CLASSES, start=0, count=jnp.asarray(count), capacity=capacity)


def test_recalibrated_statistics_are_those_of_the_rows():
    """Of the layer's inputs, rows that do not count left out; the model then puts out what it does in training."""
    weights, own = NORMED.init(jax.random.key(1)), rows()

    found = recalibrated(NORMED, jax.random.key(0), weights, own)

    layer = weights.params["body"]["Dense_0"]
    inputs = np.asarray(own.x[:6] @ layer["kernel"] + layer["bias"], np.float64)
    stats = found.stats["body"]["BatchNorm_0"]
    np.testing.assert_allclose(stats["mean"], inputs.mean(0), atol=1e-5)
    np.testing.assert_allclose(stats["var"], inputs.var(0), rtol=1e-4)
    training, _ = NORMED.forward(jax.random.key(0), weights, own.x[:6], jnp.ones(6, bool))
    np.testing.assert_allclose(NORMED.apply(found, own.x[:6]), training, atol=1e-4)


def test_rows_in_any_order_are_taken_block_by_block():
    """Sorted rows: the variance between blocks counts."""
    weights, own = NORMED.init(jax.random.key(1)), rows(count=600, capacity=600)
    own = replace(own, x=own.x[jnp.argsort(own.x[:, 0])])

    found = recalibrated(NORMED, jax.random.key(0), weights, own)

    layer = weights.params["body"]["Dense_0"]
    inputs = np.asarray(own.x @ layer["kernel"] + layer["bias"], np.float64)
    np.testing.assert_allclose(found.stats["body"]["BatchNorm_0"]["mean"], inputs.mean(0), atol=1e-4)
    np.testing.assert_allclose(found.stats["body"]["BatchNorm_0"]["var"], inputs.var(0), rtol=1e-4)


@pytest.mark.parametrize("scale", [1e-3, 1e5])
def test_statistics_of_large_and_small_numbers_are_as_exact(scale):
    weights, own = NORMED.init(jax.random.key(1)), rows()
    own = replace(own, x=scale * own.x)

    found = recalibrated(NORMED, jax.random.key(0), weights, own)

    layer = weights.params["body"]["Dense_0"]
    inputs = np.asarray(own.x[:6] @ layer["kernel"] + layer["bias"], np.float64)
    np.testing.assert_allclose(found.stats["body"]["BatchNorm_0"]["var"], inputs.var(0), rtol=1e-3)


@pytest.mark.parametrize(("count", "wanted"), [(6, False), (0, True), (3, True)])
def test_with_few_rows_or_no_wish_nothing_is_recalibrated(count, wanted):
    weights = NORMED.init(jax.random.key(1))

    found = recalibrated(NORMED, jax.random.key(0), weights, rows(count=count), wanted=wanted)

    assert jax.tree.all(jax.tree.map(jnp.array_equal, found, weights))


@pytest.mark.parametrize(
    ("policy", "absent"),
    [("share", ()), ("local", ("BatchNorm", "stats")), ("affine", ("stats",)), ("recalibrate", ())],
)
def test_what_travels(policy, absent):
    method = normalized(fedavg(NORMED, plan=STEP), policy)
    server = method.start(jax.random.key(0), 2)

    names = tree.paths(method.send(server, jnp.zeros((), jnp.int32)))

    assert method.traits.norm == policy
    for word in ("BatchNorm", "stats"):
        assert any(word in name for name in names) == (word not in absent), word


def test_fedbn_shares_all_but_normalization_and_serves_a_clients_own():
    seen, unseen = worlds.awkward()
    result = run(fedbn(NORMED, plan=worlds.PLAN), seen, unseen=unseen, rounds=2, executor="vectorized")
    state = result.state

    scales = [leaf for leaf in state.private.own if leaf.ndim == 2]
    assert len(scales) == 4  # scale, shift, mean, variance
    one, other = (result.model_for(uid).weights for uid in (0, 1))
    np.testing.assert_array_equal(one.params["head"]["kernel"], other.params["head"]["kernel"])
    assert (one.params["body"]["BatchNorm_0"]["scale"] != other.params["body"]["BatchNorm_0"]["scale"]).any()
    first = jax.tree.leaves(state.server.weights.stats)[1]
    np.testing.assert_array_equal(first, jnp.ones_like(first))  # the server never heard of any variance


def test_a_newcomer_is_served_with_the_statistics_of_its_own_rows():
    method, own = fedbn(NORMED, plan=STEP), rows()
    data = Data(train=own, valid=own)
    weights = NORMED.init(jax.random.key(1))
    kept = method.join(jax.random.key(0), weights)

    new = method.serve(jax.random.key(2), weights, kept, data)
    known = method.serve(jax.random.key(2), weights, kept._replace(trained=jnp.asarray(True)), data)

    wanted = recalibrated(NORMED, jax.random.key(0), weights, own)
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-6), new, wanted))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, known, weights))


def test_recalibrating_serves_the_shared_model_with_own_statistics():
    method, own = normalized(fedavg(NORMED, plan=STEP), "recalibrate"), rows()
    weights = NORMED.init(jax.random.key(1))

    served = method.serve(jax.random.key(2), weights, (), Data(train=own, valid=own))

    wanted = recalibrated(NORMED, jax.random.key(0), weights, own)
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-6), served, wanted))


@pytest.mark.slow
def test_a_study_gives_its_policy_to_methods_that_have_none_and_tells_it(tmp_path):
    federation = worlds.limit_world("clients")
    result = compare(
        ["fedavg", "lgmix", "local_only"],
        federation,
        model=NORMED,
        plan=STEP,
        norm="local",
        rounds=1,
        seeds=[0],
        executor="vectorized",
        out=tmp_path,
    )

    assert result.norms == dict.fromkeys(("fedavg", "lgmix", "local_only"), "local")
    assert json.loads((tmp_path / "summary.json").read_text())["norm"] == dict(result.norms)
    record = tmp_path / "runs" / "fedavg" / "seed-0" / "record.parquet"
    assert json.loads(pl.read_parquet_metadata(record)["plures"])["norm"] == "local"
    down = {row["method"]: row["bytes_up"] for row in result.clients.to_dicts()}
    assert down["lgmix"] == down["fedavg"]
    plain = compare(["fedavg"], federation, plan=STEP, rounds=1, seeds=[0], executor="vectorized")
    assert plain.norms == {}


def test_a_private_head_and_private_normalization_go_together():
    """What stays is both: the head of FedPer and the layers of FedBN; the rest is shared."""
    own = rows()
    method = build_method("fedper", NORMED, plan=STEP, norm="local")
    server = method.start(jax.random.key(0), 2)
    first = method.offered(server, jnp.zeros((), jnp.int32))
    kept = method.join(jax.random.key(1), first)
    sent = method.send(server, jnp.zeros((), jnp.int32))

    upload, after, _ = method.train(jax.random.key(2), sent, kept, Data(train=own, valid=own))

    assert tree.paths(sent) == tree.paths(upload) == ["params/body/Dense_0/bias", "params/body/Dense_0/kernel"]
    update, _, _ = fedavg(NORMED, plan=STEP).train(jax.random.key(2), first, (), Data(train=own, valid=own))
    whole = tree.add(first, update)
    known = after._replace(base=after.base._replace(trained=jnp.asarray(True)))
    served = method.serve(jax.random.key(3), first, known, Data(train=own, valid=own))
    assert jax.tree.all(jax.tree.map(jnp.allclose, served.params["head"], whole.params["head"]))
    assert jax.tree.all(jax.tree.map(jnp.allclose, served.stats, whole.stats))
    layer = served.params["body"]["BatchNorm_0"]
    assert jax.tree.all(jax.tree.map(jnp.allclose, layer, whole.params["body"]["BatchNorm_0"]))


GROUPED = cifar_cnn((8, 8, 3), 3)


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (
            lambda: fedbn(worlds.model(parts=True)),
            Unsupported,
            "fedbn needs a model with normalization layers; this one has: body, head",
        ),
        (
            lambda: normalized(fedavg(worlds.model()), "affine"),
            Unsupported,
            "norm=affine needs a model with normalization",
        ),
        (lambda: normalized(fedavg(NORMED), "lokal"), UnknownChoice, "no norm policy is called 'lokal'"),
        (lambda: normalized(fedbn(NORMED), "affine"), BadValue, "a policy of its own"),
        (lambda: normalized(fedavg(GROUPED), "recalibrate"), Unsupported, "keeps none: use local"),
        (
            lambda: build_method("scaffold", NORMED, plan=STEP, norm="local"),
            Unsupported,
            "scaffold with norm=local",
        ),
    ],
)
def test_what_is_refused(build, error, text):
    with pytest.raises(error, match=text):
        build()


def test_group_norm_is_normalization_without_statistics():
    assert has_norm(GROUPED)
    assert not has_statistics(GROUPED)
    assert normalized(fedavg(GROUPED), "local").traits.norm == "local"
    assert not has_norm(worlds.model())
    assert isinstance(scaffold(NORMED).traits.norm, str)


@pytest.mark.slow
def test_momenta_of_statistics_do_not_lead_below_zero():
    """Small inputs: variances fall from 1 to nearly 0, and a momentum would carry them on."""
    federation = worlds.limit_world("clients")
    small = replace(federation, x=np.asarray(0.05 * federation.x, np.float32))
    method = momentum_clustering(NORMED, plan=Plan(epochs=4, batch=4, lr=0.2), num_clusters=2, alpha=0.2)

    result = run(method, small, rounds=6, executor="vectorized")

    for uid in range(4):
        stats = result.model_for(uid).weights.stats["body"]["BatchNorm_0"]
        assert float(stats["var"].min()) > 0
        assert float(stats["var"].max()) < 1
