"""The CNN and its layers against the library's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from plures.errors import BadValue
from plures.models.cnn import emnist_cnn
from plures.models.conv import conv2d, dropout, max_pool2


def library_conv(x, kernel):
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def library_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@pytest.mark.parametrize(("channels", "size"), [(1, 3), (4, 3), (5, 2)], ids=["few taps", "many taps", "2x2"])
def test_convolution_and_its_gradients_equal_the_librarys_per_client(channels, size):
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (3, 2, 7, 6, channels))
    kernel = jax.random.normal(keys[1], (3, size, size, channels, 4))
    bias = jax.random.normal(keys[2], (3, 4))

    def ours(x, kernel, bias):
        return jnp.sin(jax.vmap(conv2d)(x, kernel, bias)).sum()

    def library(x, kernel, bias):
        return jnp.sin(jax.vmap(library_conv)(x, kernel) + bias[:, None, None, None]).sum()

    found, wanted = (jax.jit(jax.value_and_grad(f, (0, 1, 2)))(x, kernel, bias) for f in (ours, library))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def test_pooling_and_its_gradient_equal_the_librarys_even_with_ties():
    x = jax.random.randint(jax.random.key(1), (2, 6, 4, 3), 0, 3).astype(float)

    found, wanted = (jax.value_and_grad(lambda v, f=f: (f(v) ** 3).sum())(x) for f in (max_pool2, library_pool))

    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])


def test_an_odd_last_row_and_column_are_dropped():
    assert max_pool2(jnp.zeros((1, 5, 7, 2))).shape == (1, 2, 3, 2)


def test_dropout_keeps_the_share_and_the_mean():
    out = dropout(jax.random.key(2), jnp.ones((100, 1000)), 0.75)

    assert float((out > 0).mean()) == pytest.approx(0.75, abs=0.005)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.01)
    with pytest.raises(BadValue):
        dropout(jax.random.key(2), jnp.ones(3), 0.0)


def test_the_emnist_cnn_has_the_published_parameter_counts():
    weights = jax.eval_shape(emnist_cnn((28, 28, 1), 62).init, jax.random.key(0))

    counts = [sum(leaf.size for leaf in jax.tree.leaves(layer)) for layer in weights.params.values()]
    assert counts == [320, 18_496, 1_179_776, 7_998]


def test_dropout_acts_in_training_only():
    model = emnist_cnn((8, 8), 3)
    weights = model.init(jax.random.key(0))
    x, mask = jax.random.normal(jax.random.key(1), (4, 8, 8)), jnp.ones(4, bool)

    plain = model.apply(weights, x)
    first, _ = model.forward(jax.random.key(2), weights, x, mask)
    other, _ = model.forward(jax.random.key(3), weights, x, mask)

    assert plain.shape == (4, 3)
    np.testing.assert_array_equal(plain, model.apply(weights, x))
    assert (first != other).any()
    assert (first != plain).any()


def test_features_feed_the_head():
    model = emnist_cnn((8, 8), 3)
    weights = model.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 8, 8))

    features = model.features(weights, x)

    head = weights.params["head"]
    np.testing.assert_allclose(features @ head["kernel"] + head["bias"], model.apply(weights, x), atol=1e-5)


def test_inputs_that_are_no_images_are_refused():
    with pytest.raises(BadValue, match="shape must be an image"):
        emnist_cnn((784,), 10)
