"""Traces of the tangent kernel: streamed, from gradients, by probes; scale and other invariances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.local import objective, sgd
from plures.methods.lgmix.mixing import ratio
from plures.methods.lgmix.traces import FeatureMoments, gradient_traces, layers_of, trace_of
from plures.models.linear import least_squares
from plures.models.mlp import mlp
from plures.types import Data, Plan, Rows, Weights

FEATURES = np.asarray(jax.random.normal(jax.random.key(0), (23, 5)) * 3 + 7, np.float32)


def streamed(features, size=4, cross=False):
    moments = FeatureMoments.none(features.shape[1], cross=cross)
    for start in range(0, len(features), size):
        batch = features[start : start + size]
        short = size - len(batch)
        padded = np.concatenate([batch, np.full((short, features.shape[1]), 1e6, np.float32)])
        moments = moments.with_rows(jnp.asarray(padded), jnp.arange(size) < len(batch))
    return moments


def traced(features, **options):
    return float(trace_of(streamed(features), **{"centered": True, "normalized": False, **options}))


def data_of(x, y):
    rows = Rows(x=jnp.asarray(x), y=jnp.asarray(y), start=0, count=len(x), capacity=len(x))
    return Data(train=rows, valid=rows)


def test_the_streamed_trace_is_the_sum_of_variances_and_the_trace_of_the_covariance():
    exact = FEATURES.astype(np.float64)

    assert traced(FEATURES) == pytest.approx(exact.var(0).sum(), rel=1e-5)
    assert traced(FEATURES) == pytest.approx(np.trace(np.cov(exact.T, bias=True)), rel=1e-5)
    assert traced(FEATURES, centered=False) == pytest.approx((exact**2).sum(1).mean(), rel=1e-5)


def test_a_large_mean_does_not_cancel_the_variance():
    """In single precision the mean of squares minus the square of the mean would be off by several units."""
    far = FEATURES + np.float32(4000.0)

    assert traced(far) == pytest.approx(far.astype(np.float64).var(0).sum(), rel=1e-3)


def test_without_its_least_eigenvalue_the_trace_is_that_of_the_others():
    values = np.linalg.eigvalsh(np.cov(FEATURES.T.astype(np.float64), bias=True))

    found = trace_of(streamed(FEATURES, cross=True), centered=True, normalized=False, drop_smallest=True)

    assert float(found) == pytest.approx(values[1:].sum(), rel=1e-4)


@pytest.mark.parametrize("factor", [0.1, 3.0])
def test_the_scale_law_and_the_variant_that_is_free_of_it(factor):
    """Features times a: a^2 T / (a^2 T + T_u). Divided by the mean square, the share does not move."""
    other = FEATURES[::-1] * np.float32(0.5) + np.float32(1.0)
    plain, scaled = traced(FEATURES), traced(FEATURES * np.float32(factor))

    share = ratio(jnp.asarray(scaled), jnp.asarray(traced(other)))
    assert float(share) == pytest.approx(factor**2 * plain / (factor**2 * plain + traced(other)), rel=1e-4)
    free = [traced(one, normalized=True) for one in (FEATURES, FEATURES * np.float32(factor))]
    assert free[0] == pytest.approx(free[1], rel=1e-4)


def test_neither_order_nor_number_of_rows_matters():
    order = np.asarray(jax.random.permutation(jax.random.key(1), len(FEATURES)))

    assert traced(FEATURES[order]) == pytest.approx(traced(FEATURES), rel=1e-5)
    assert traced(np.concatenate([FEATURES, FEATURES])) == pytest.approx(traced(FEATURES), rel=1e-5)


def test_texts_have_a_feature_per_position():
    texts = FEATURES[:20].reshape(5, 4, 5)
    moments = FeatureMoments.none(5).with_rows(jnp.asarray(texts), jnp.array([True, True, True, False, True]))

    kept = np.concatenate([texts[:3], texts[4:]]).reshape(-1, 5).astype(np.float64)
    assert float(trace_of(moments, centered=True, normalized=False)) == pytest.approx(kept.var(0).sum(), rel=1e-5)


def test_for_a_linear_model_the_last_layer_is_the_whole_kernel():
    """|x|^2 + 1 in the mean, by gradients and by features."""
    model = least_squares((5,))
    data = data_of(FEATURES, FEATURES[:, 0])
    weights = model.init(jax.random.key(0))

    found = gradient_traces(model, "ntk", jax.random.key(1), weights, data, probes=1)

    wanted = (FEATURES.astype(np.float64) ** 2).sum(1).mean() + 1
    assert float(sum(found.values())) == pytest.approx(wanted, rel=1e-5)
    assert traced(FEATURES, centered=False) + 1 == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("outputs", [3, 5])
def test_the_number_of_classes_cancels(outputs):
    """The last layer's part of the kernel is outputs * (|h|^2 + 1)."""
    model = mlp((5,), outputs, hidden=(4,))
    weights = model.init(jax.random.key(2))
    data = data_of(FEATURES, np.zeros(len(FEATURES), np.int32))

    found = gradient_traces(model, "ntk", jax.random.key(1), weights, data, probes=1)

    h = np.asarray(model.features(weights, jnp.asarray(FEATURES)), np.float64)
    assert layers_of(weights.params) == ["dense_0", "head"]
    assert float(found["head"]) == pytest.approx(outputs * ((h**2).sum(1).mean() + 1), rel=1e-4)


def test_probes_are_right_in_the_mean_and_exact_for_one_row_with_one_output():
    model = least_squares((5,))
    weights = model.init(jax.random.key(0))
    one, many = data_of(FEATURES[:1], FEATURES[:1, 0]), data_of(FEATURES, FEATURES[:, 0])

    single = gradient_traces(model, "hutchinson", jax.random.key(1), weights, one, probes=1)
    several = gradient_traces(model, "hutchinson", jax.random.key(1), weights, many, probes=4000)

    assert float(sum(single.values())) == pytest.approx(float((FEATURES[0] ** 2).sum() + 1), rel=1e-5)
    wanted = float((FEATURES**2).sum(1).mean() + 1)
    # One probe has a variance of at most 2 |H|^2 / n^2 (H of n rows): four standard errors of 4,000 probes.
    kernel = np.concatenate([FEATURES, np.ones((len(FEATURES), 1))], axis=1).astype(np.float64)
    spread = np.sqrt(2 * ((kernel @ kernel.T) ** 2).sum()) / len(FEATURES)
    assert float(sum(several.values())) == pytest.approx(wanted, abs=4 * spread / np.sqrt(4000))


def test_residuals_decay_along_the_eigenvectors_of_the_kernel():
    """Gradient descent on half the mean squared error: exp(-lr eig t / n), for small steps."""
    x, y = FEATURES[:6] - 7, FEATURES[:6, 0] * 2
    model, lr, steps = least_squares((5,)), 0.0004, 100
    kernel = np.concatenate([x, np.ones((6, 1))], axis=1).astype(np.float64)
    values, vectors = np.linalg.eigh(kernel @ kernel.T)
    data = data_of(x, y)

    after, _ = sgd(
        jax.random.key(0),
        model.init(jax.random.key(0)),
        data,
        Plan(steps=steps, batch=None, lr=lr),
        objective(model),
    )

    before, left = vectors.T @ y, vectors.T @ np.asarray(y - model.apply(after, jnp.asarray(x)))
    np.testing.assert_allclose(left, before * (1 - lr * values / 6) ** steps, atol=1e-3)
    np.testing.assert_allclose(left, before * np.exp(-lr * values / 6 * steps), rtol=0.02, atol=1e-3)


def test_rows_that_do_not_count_have_no_gradients():
    model = least_squares((5,))
    data = data_of(FEATURES, FEATURES[:, 0])
    short = Data(
        train=Rows(x=data.train.x, y=data.train.y, start=0, count=jnp.asarray(3), capacity=23), valid=data.valid
    )
    weights: Weights = model.init(jax.random.key(0))

    found = [
        sum(gradient_traces(model, rule, jax.random.key(1), weights, short, probes=1).values())
        for rule in ("ntk", "hutchinson")
    ]

    assert float(found[0]) == pytest.approx(float((FEATURES[:3] ** 2).sum(1).mean() + 1), rel=1e-5)
    assert float(found[1]) <= 3 * float((FEATURES[:3] ** 2).sum(1).max() + 1)
