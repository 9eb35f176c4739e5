"""The digits CNN and the layers under it: sizes, parts, features, masks, and a model per client."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from plures import tree
from plures.errors import BadValue
from plures.keys import root
from plures.models.convolutional import digits_cnn, digits_cnn_small
from plures.models.networks import BatchNorm, Conv
from plures.types import Weights

TINY = digits_cnn_small((8, 8), 3, widths=(2, 3, 2, 4, 5))
WEIGHTS = jax.jit(TINY.init)(root(0))
X = jax.random.normal(root(1), (6, 8, 8))
SOME = jnp.array([True, True, True, True, False, False])
FORWARD = jax.jit(TINY.forward)


def size(part):
    return sum(leaf.size for leaf in jax.tree.leaves(part))


def test_the_digits_cnn_has_the_published_size():
    """FedBN's DigitModel: 14,219,210 parameters; a mean and a variance for 64 + 64 + 128 + 2048 + 512 channels."""
    weights = jax.eval_shape(digits_cnn((28, 28, 3), 10).init, root(0))

    assert (size(weights.params), size(weights.stats)) == (14_219_210, 5_632)


def test_the_sibling_with_the_same_widths_is_the_same_model():
    big, small = digits_cnn((28, 28, 3), 10), digits_cnn_small((28, 28, 3), 10, widths=(64, 64, 128, 2048, 512))

    first, second = (jax.eval_shape(model.init, root(0)) for model in (big, small))

    assert first == second


def test_body_and_head_are_all_of_the_model_and_share_nothing():
    body, head, norm = (np.array(tree.matches(WEIGHTS, TINY.parts[name])) for name in ("body", "head", "norm"))

    assert (body != head).all()
    assert [path for path, inside in zip(tree.paths(WEIGHTS), head, strict=True) if inside] == [
        "params/head/bias",
        "params/head/kernel",
    ]
    assert (norm <= body).all()
    assert sum(norm) == 5 * 4


def test_features_feed_the_head():
    head = WEIGHTS.params["head"]

    features = TINY.features(WEIGHTS, X)

    assert features.shape == (6, 5)
    np.testing.assert_allclose(features @ head["kernel"] + head["bias"], TINY.apply(WEIGHTS, X), atol=1e-5)


def test_the_training_pass_with_features_is_the_training_pass():
    outputs, features, stats = jax.jit(TINY.featured)(root(2), WEIGHTS, X, SOME)

    wanted = FORWARD(root(2), WEIGHTS, X, SOME)
    head = WEIGHTS.params["head"]
    assert features.shape == (6, 5)
    np.testing.assert_allclose(features @ head["kernel"] + head["bias"], outputs, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), (outputs, stats), wanted)


def test_rows_that_do_not_count_change_nothing():
    outputs, stats = FORWARD(root(2), WEIGHTS, X, SOME)

    spoiled, same = FORWARD(root(2), WEIGHTS, X.at[4:].set(1e3), SOME)

    np.testing.assert_allclose(spoiled[:4], outputs[:4], rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, same, stats)


def test_rows_that_count_are_normalized_as_if_they_were_alone():
    outputs, stats = FORWARD(root(2), WEIGHTS, X, SOME)

    alone, wanted = TINY.forward(root(2), WEIGHTS, X[:4], jnp.ones(4, bool))

    np.testing.assert_allclose(outputs[:4], alone, atol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), stats, wanted)


def test_without_rows_statistics_stay_and_all_is_finite():
    start = Weights(WEIGHTS.params, jax.tree.map(lambda leaf: leaf + 0.3, WEIGHTS.stats))

    def loss(params):
        outputs, stats = TINY.forward(root(2), start._replace(params=params), X, jnp.zeros(6, bool))
        return (outputs * jnp.zeros((6, 1))).sum(), (outputs, stats)

    slope, (outputs, stats) = jax.jit(jax.grad(loss, has_aux=True))(start.params)

    jax.tree.map(np.testing.assert_array_equal, stats, start.stats)
    assert bool(jnp.isfinite(outputs).all() & tree.all_finite(slope))


def test_statistics_move_a_tenth_of_the_way():
    layer, x = BatchNorm(), X[:, 0]
    start = layer.init(root(0), x, False)

    _, moved = layer.apply(start, x, True, SOME, mutable=["batch_stats"])

    np.testing.assert_allclose(moved["batch_stats"]["mean"], 0.1 * x[:4].mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(moved["batch_stats"]["var"], 0.9 + 0.1 * x[:4].var(0), rtol=1e-4)


@pytest.mark.parametrize("channels", [3, 9], ids=["few channels", "many channels"])
def test_a_convolution_is_the_librarys_with_zeros_all_around(channels):
    x = jax.random.normal(root(1), (2, 6, 5, channels))
    layer = Conv(4, (5, 3))
    weights = layer.init(root(0), x)

    found = layer.apply(weights, x)

    wanted = lax.conv_general_dilated(
        x, weights["params"]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_features_start_with_the_variance_of_a_rectified_normal():
    """Behind batch norm of gain 1 and a ReLU: var max(z, 0) = 1/2 - 1 / (2 pi) for each of the features."""
    model = digits_cnn_small((8, 8), 2, widths=(4, 4, 4, 64, 64))
    x = jax.random.normal(root(3), (256, 8, 8))

    _, features, _ = jax.jit(model.featured)(root(2), model.init(root(0)), x, jnp.ones(256, bool))

    np.testing.assert_allclose(features.var(0).sum(), 64 * (0.5 - 0.5 / np.pi), rtol=0.05)


@pytest.mark.slow
def test_a_model_per_client_trains_as_each_alone():
    clients = tree.stack([WEIGHTS, TINY.init(root(5))])
    keys, xs, masks = jax.random.split(root(2), 2), jnp.stack([X, -X]), jnp.stack([SOME, ~SOME])

    together = jax.jit(jax.vmap(TINY.forward))(keys, clients, xs, masks)

    alone = tree.stack([FORWARD(keys[k], tree.at(clients, k), xs[k], masks[k]) for k in range(2)])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), together, alone)


def test_gradient_steps_lower_the_loss():
    y = jnp.array([0, 1, 2, 0, 1, 2])

    def loss(params):
        return TINY.loss(TINY.forward(root(2), Weights(params, WEIGHTS.stats), X, jnp.ones(6, bool))[0], y).mean()

    slope = jax.jit(jax.value_and_grad(loss))
    params, losses = WEIGHTS.params, []
    for _ in range(20):
        value, found = slope(params)
        losses.append(float(value))
        params = jax.tree.map(lambda a, b: a - 0.1 * b, params, found)

    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("shape", [(4, 4), (8, 8, 1), (9, 7, 3)])
def test_images_of_any_size_and_channels_are_taken(shape):
    model = digits_cnn_small(shape, 3, widths=(2, 2, 2, 2, 2))

    outputs = jax.eval_shape(lambda key: model.apply(model.init(key), jnp.zeros((5, *shape))), root(0))

    assert outputs.shape == (5, 3)


@pytest.mark.parametrize("shape", [(64,), (3, 8), (8, 3, 3), (8, 8, 0), (2, 8, 8, 3)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(BadValue, match=r"shape must be an image .* 4x4 or larger"):
        digits_cnn_small(shape, 3)


@pytest.mark.parametrize("widths", [(4, 8, 16, 64), (4, 8, 0, 64, 32)])
def test_widths_that_make_no_model_are_refused(widths):
    with pytest.raises(BadValue, match="widths must be five positive numbers"):
        digits_cnn_small((8, 8), 3, widths=widths)
