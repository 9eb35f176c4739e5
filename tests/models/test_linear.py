"""Linear models: losses and gradients against their closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.keys import root
from plures.local import objective
from plures.models import linear
from plures.types import Batch, Weights

X = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])
LABELS = np.array([1, 0, 1])
SIGNS = np.array([1.0, -1.0, 1.0])
TARGETS = np.array([0.5, -1.0, 2.0])
KERNEL, BIAS = np.array([0.5, -0.25]), 0.125


def head(kernel, bias):
    return Weights({"head": {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}})


def value_and_slope(model, weights, x, y):
    """The objective at the weights over all rows, and its gradient in the params."""
    batch = Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y), jnp.ones(len(x), bool))

    def of_params(params):
        return objective(model)(root(0), Weights(params), batch)[0]

    return jax.jit(jax.value_and_grad(of_params))(weights.params)


def assert_head(slope, outer):
    """The gradient of a head whose outputs have the derivatives ``outer`` is their mean with the inputs."""
    np.testing.assert_allclose(slope["head"]["kernel"], outer.T @ X / len(X), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(slope["head"]["bias"], outer.mean(0), rtol=1e-5, atol=1e-7)


def test_softmax_gradient_is_probability_minus_label():
    kernel, bias = np.array([[0.5, -0.25], [1.0, 0.0], [-1.0, 0.5]]), np.array([0.1, 0.0, -0.2])
    logits = X @ kernel.T + bias
    chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)

    value, slope = value_and_slope(linear.softmax((2,), 3), head(kernel, bias), X, LABELS)

    np.testing.assert_allclose(value, -np.log(chance[np.arange(3), LABELS]).mean(), rtol=1e-5)
    assert_head(slope, chance - np.eye(3)[LABELS])


def test_logistic_gradient_is_probability_minus_label():
    margin = X @ KERNEL + BIAS

    value, slope = value_and_slope(linear.logistic((2,)), head(KERNEL, BIAS), X, LABELS)

    np.testing.assert_allclose(value, np.log1p(np.exp(-SIGNS * margin)).mean(), rtol=1e-5)
    assert_head(slope, 1 / (1 + np.exp(-margin)) - LABELS)


def test_squared_hinge_gradient_is_minus_twice_the_shortfall():
    """One row beyond the margin (no gradient), the others within it."""
    kernel, bias = np.array([1.0, 0.5]), 0.25
    shortfall = np.maximum(0, 1 - SIGNS * (X @ kernel + bias))

    value, slope = value_and_slope(linear.squared_hinge((2,)), head(kernel, bias), X, LABELS)

    assert 0 in shortfall
    np.testing.assert_allclose(value, np.square(shortfall).mean(), rtol=1e-5)
    assert_head(slope, -2 * SIGNS * shortfall)


def test_least_squares_gradient_is_the_residual():
    residual = X @ KERNEL + BIAS - TARGETS

    value, slope = value_and_slope(linear.least_squares((2,)), head(KERNEL, BIAS), X, TARGETS.astype(np.float32))

    np.testing.assert_allclose(value, np.square(residual).mean() / 2, rtol=1e-5)
    assert_head(slope, residual)


def test_density_gradient_is_probability_minus_frequency():
    logits, symbols = np.array([0.5, -0.5, 0.0, 1.0]), np.array([0, 3, 3])
    chance = np.exp(logits) / np.exp(logits).sum()
    weights = Weights({"logits": jnp.asarray(logits, jnp.float32)})

    value, slope = value_and_slope(linear.density((0,), 4), weights, np.zeros((3, 0)), symbols)

    np.testing.assert_allclose(value, -np.log(chance[symbols]).mean(), rtol=1e-5)
    np.testing.assert_allclose(slope["logits"], chance - np.bincount(symbols, minlength=4) / 3, rtol=1e-4)


def test_mean_gradient_points_away_from_the_average():
    points = np.array([[1.0, 2.0], [3.0, -2.0]], np.float32)
    weights = Weights({"point": jnp.array([5.0, 5.0])})

    value, slope = value_and_slope(linear.mean((0,), 2), weights, np.zeros((2, 0)), points)

    np.testing.assert_allclose(value, (np.square(5 - points).sum(1) / 2).mean(), rtol=1e-6)
    np.testing.assert_allclose(slope["point"], 5 - points.mean(0), rtol=1e-6)


RIDGED = {
    "softmax": (linear.softmax, 3),
    "logistic": (linear.logistic, 2),
    "squared_hinge": (linear.squared_hinge, 2),
    "least_squares": (linear.least_squares, 1),
    "density": (linear.density, 4),
    "mean": (linear.mean, 2),
}


@pytest.mark.parametrize("name", RIDGED)
def test_ridge_is_half_the_squared_norm(name):
    factory, num_outputs = RIDGED[name]
    model = factory((2,), num_outputs, ridge=0.4)
    params = jax.tree.map(lambda leaf: leaf + 3.0, model.init(root(0)).params)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))

    np.testing.assert_allclose(model.penalty(params), 0.2 * 9.0 * size, rtol=1e-6)


@pytest.mark.parametrize("name", RIDGED)
def test_no_ridge_is_no_penalty(name):
    factory, num_outputs = RIDGED[name]

    assert factory((2,), num_outputs).penalty is None


@pytest.mark.parametrize("name", ["softmax", "logistic", "squared_hinge", "least_squares"])
def test_inputs_of_any_shape_are_flattened(name):
    factory, num_outputs = RIDGED[name]
    model = factory((2, 3), num_outputs)
    weights = jax.tree.map(lambda leaf: leaf + 1.0, model.init(root(0)))
    images = jnp.arange(24.0).reshape(4, 2, 3)

    outputs = model.apply(weights, images)

    # All-one kernels and biases: every output is the sum of the pixels plus one.
    expected = images.sum((1, 2)) + 1.0
    np.testing.assert_allclose(outputs.reshape(4, -1), np.tile(expected[:, None], outputs.size // 4))


@pytest.mark.parametrize(("name", "width"), [("density", 4), ("mean", 2)])
def test_models_of_no_input_put_out_the_same_for_every_row(name, width):
    factory, num_outputs = RIDGED[name]
    model = factory((0,), num_outputs)
    weights = Weights(jax.tree.map(lambda leaf: jnp.arange(1.0, 1 + width), model.init(root(0)).params))

    assert model.apply(weights, jnp.zeros((2, 0))).tolist() == [list(range(1, 1 + width))] * 2


@pytest.mark.parametrize("name", ["softmax", "logistic", "squared_hinge", "least_squares"])
def test_features_of_a_linear_model_are_its_flat_inputs(name):
    factory, num_outputs = RIDGED[name]
    model = factory((2, 2), num_outputs)
    images = jnp.arange(8.0).reshape(2, 2, 2)

    assert model.features(model.init(root(0)), images).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_dense_is_the_same_for_every_client_under_vmap():
    layers = {"kernel": jnp.arange(12.0).reshape(2, 3, 2), "bias": jnp.ones((2, 3))}
    x = jnp.asarray(X, jnp.float32)

    together = jax.vmap(linear.dense, (0, None))(layers, x)

    alone = np.einsum("coi,ri->cro", layers["kernel"], x) + 1.0
    np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_least_squares_puts_out_as_many_numbers_as_asked():
    model = linear.least_squares((2,), 3)

    assert model.apply(model.init(root(0)), jnp.zeros((4, 2))).shape == (4, 3)
