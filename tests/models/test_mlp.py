"""The multilayer perceptron: its forward pass by hand, its parts, its first weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import tree
from plures.errors import BadValue
from plures.keys import root
from plures.models.mlp import dense_init, mlp
from plures.types import Weights

X = jnp.array([[1.0, 2.0], [-1.0, 0.5]])


def test_forward_pass_is_dense_relu_dense():
    model = mlp((2,), 2, hidden=(3,))
    params = {
        "dense_0": {
            "kernel": jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]),
            "bias": jnp.array([0.0, 1.0, 0.0]),
        },
        "head": {"kernel": jnp.array([[1.0, 1.0, 1.0], [0.0, 2.0, -1.0]]), "bias": jnp.array([0.5, 0.0])},
    }
    weights = Weights(params)

    # Hidden: relu of (1, 3, -3) and (-1, 1.5, 0.5).
    np.testing.assert_allclose(model.features(weights, X), [[1.0, 3.0, 0.0], [0.0, 1.5, 0.5]])
    np.testing.assert_allclose(model.apply(weights, X), [[4.5, 6.0], [2.5, 2.5]])


def test_two_hidden_layers_are_applied_in_order():
    model = mlp((2,), 1, hidden=(1, 1))
    params = {
        "dense_0": {"kernel": jnp.array([[1.0, 1.0]]), "bias": jnp.zeros(1)},
        "dense_1": {"kernel": jnp.array([[-1.0]]), "bias": jnp.array([5.0])},
        "head": {"kernel": jnp.array([[10.0]]), "bias": jnp.zeros(1)},
    }
    weights = Weights(params)

    # relu(3) = 3 -> relu(5 - 3) = 2 -> 20; relu(-0.5) = 0 -> relu(5) = 5 -> 50.
    assert model.apply(weights, X).tolist() == [[20.0], [50.0]]


def test_layers_have_the_widths_asked_for():
    model = mlp((4, 2), 3, hidden=(5, 6))

    shapes = jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(model.init, root(0)).params)

    assert shapes == {
        "dense_0": {"kernel": (5, 8), "bias": (5,)},
        "dense_1": {"kernel": (6, 5), "bias": (6,)},
        "head": {"kernel": (3, 6), "bias": (3,)},
    }


def test_body_and_head_are_all_of_the_model_and_share_nothing():
    model = mlp((2,), 2, hidden=(3, 3))
    shape = jax.eval_shape(model.init, root(0))

    body, head = (tree.matches(shape, model.parts[name]) for name in ("body", "head"))

    assert [a != b for a, b in zip(body, head, strict=True)] == [True] * 6
    assert sum(head) == 2


def test_first_kernels_have_variance_two_over_width():
    """He: 40,000 draws, so the standard error of the variance is 0.7 %."""
    layer = dense_init(root(0), 100, 400)

    np.testing.assert_allclose(layer["kernel"].var(), 2 / 100, rtol=0.05)
    assert not layer["bias"].any()


def test_layers_start_from_different_keys():
    params = mlp((3,), 3, hidden=(3,)).init(root(0)).params

    assert (params["dense_0"]["kernel"] != params["head"]["kernel"]).all()


def test_no_hidden_layer_is_softmax_regression():
    model = mlp((2,), 2, hidden=())

    np.testing.assert_array_equal(model.features(Weights({}), X), X)


def test_ridge_counts_every_layer():
    model = mlp((2,), 2, hidden=(3,), ridge=0.5)
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), jax.eval_shape(model.init, root(0)).params)

    assert float(model.penalty(params)) == 0.25 * ((3 * 2 + 3) + (2 * 3 + 2))


def test_a_hidden_layer_of_no_width_is_refused():
    with pytest.raises(BadValue) as refusal:
        mlp((2,), 2, hidden=(3, 0))

    assert str(refusal.value) == "hidden must be a tuple of positive widths, got (3, 0)"
