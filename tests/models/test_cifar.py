"""The CNN with group norm: its size, parts and features; rows do not touch each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import tree
from plures.errors import BadValue
from plures.keys import root
from plures.models.convolutional import cifar_cnn

MODEL = cifar_cnn((8, 8, 3), 4)
WEIGHTS = jax.jit(MODEL.init)(root(0))
X = jax.random.normal(root(1), (3, 8, 8, 3))
ALL = jnp.ones(3, bool)


def test_the_cnn_has_the_size_of_its_layers_and_no_statistics():
    weights = jax.eval_shape(cifar_cnn((32, 32, 3), 10).init, root(0))

    layers = (9 * 3 + 1) * 32 + (9 * 32 + 1) * 32 + (9 * 32 + 1) * 64 + (8 * 8 * 64 + 1) * 128 + (128 + 1) * 10
    assert sum(leaf.size for leaf in jax.tree.leaves(weights.params)) == layers + 2 * (32 + 32 + 64) == 554_602
    assert jax.tree.leaves(weights.stats) == []


def test_group_norm_is_the_norm_part():
    body, head, norm = (np.array(tree.matches(WEIGHTS, MODEL.parts[name])) for name in ("body", "head", "norm"))

    assert (body != head).all()
    assert (sum(head), sum(norm)) == (2, 3 * 2)
    assert all("GroupNorm" in path for path, one in zip(tree.paths(WEIGHTS), norm, strict=True) if one)


def test_the_training_pass_with_features_is_the_training_pass():
    outputs, features, _ = MODEL.featured(root(2), WEIGHTS, X, ALL)

    head = WEIGHTS.params["head"]
    assert features.shape == (3, 128)
    np.testing.assert_allclose(outputs, MODEL.forward(root(2), WEIGHTS, X, ALL)[0], atol=1e-5)
    np.testing.assert_allclose(features @ head["kernel"] + head["bias"], outputs, atol=1e-4)


def test_training_outputs_of_a_row_do_not_depend_on_the_others():
    outputs, _ = MODEL.forward(root(2), WEIGHTS, X, ALL)

    other, _ = MODEL.forward(root(2), WEIGHTS, X.at[1:].multiply(-7.0), ALL)

    np.testing.assert_allclose(other[0], outputs[0], rtol=1e-5)
    assert (other[1:] != outputs[1:]).all()


@pytest.mark.parametrize("shape", [(3072,), (3, 32, 3)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(BadValue, match="shape must be an image"):
        cifar_cnn(shape, 10)
