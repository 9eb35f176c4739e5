"""The CNN for motion windows: its size, parts, features and masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import tree
from plures.errors import BadValue
from plures.keys import root
from plures.models.convolutional import har_cnn
from plures.models.networks import halve_times

MODEL = har_cnn((17, 3), 4)
WEIGHTS = jax.jit(MODEL.init)(root(0))
X = jax.random.normal(root(1), (6, 17, 3))
SOME = jnp.array([True, True, True, True, False, False])


def test_the_cnn_has_the_size_of_its_layers():
    """Kernels of 9 times, and 128 / 8 = 16 times left for the dense layer."""
    weights = jax.eval_shape(har_cnn((128, 9), 6).init, root(0))

    layers = (9 * 9 + 1) * 16 + (9 * 16 + 1) * 32 + (9 * 32 + 1) * 32 + (16 * 32 + 1) * 64 + (64 + 1) * 6
    channels = 16 + 32 + 32 + 64
    assert sum(leaf.size for leaf in jax.tree.leaves(weights.params)) == layers + 2 * channels == 48_710
    assert sum(leaf.size for leaf in jax.tree.leaves(weights.stats)) == 2 * channels


def test_pooling_takes_the_larger_of_two_times():
    x = jnp.array([3.0, 1.0, 2.0, 5.0, 9.0]).reshape(1, 5, 1, 1)

    assert halve_times(x).reshape(-1).tolist() == [3.0, 5.0]


def test_body_and_head_are_all_of_the_model_and_share_nothing():
    body, head, norm = (np.array(tree.matches(WEIGHTS, MODEL.parts[name])) for name in ("body", "head", "norm"))

    assert (body != head).all()
    assert (norm <= body).all()
    assert (sum(head), sum(norm)) == (2, 4 * 4)


def test_the_training_pass_with_features_is_the_training_pass():
    outputs, features, stats = MODEL.featured(root(2), WEIGHTS, X, SOME)

    wanted = MODEL.forward(root(2), WEIGHTS, X, SOME)
    head = WEIGHTS.params["head"]
    assert features.shape == (6, 64)
    np.testing.assert_allclose(features @ head["kernel"] + head["bias"], outputs, atol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), (outputs, stats), wanted)


def test_rows_that_do_not_count_change_nothing():
    outputs, stats = MODEL.forward(root(2), WEIGHTS, X, SOME)

    spoiled, same = MODEL.forward(root(2), WEIGHTS, X.at[4:].set(1e3), SOME)

    np.testing.assert_allclose(spoiled[:4], outputs[:4], rtol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, same, stats)


@pytest.mark.parametrize("shape", [(128,), (7, 9), (128, 0), (128, 9, 1)])
def test_what_is_no_window_is_refused(shape):
    with pytest.raises(BadValue, match=r"shape must be a window \(times, channels\) of 8 times or more"):
        har_cnn(shape, 6)
