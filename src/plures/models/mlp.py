"""A multilayer perceptron with ReLU, for classification."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array

from plures import registry
from plures.errors import BadValue
from plures.models.build import CLASSIFICATION, from_functions
from plures.models.linear import dense, flat, ridge_penalty
from plures.types import Key, Model, Tree


def dense_init(key: Key, width: int, outputs: int) -> Tree:
    """He-normal kernel, zero bias."""
    kernel = jax.random.normal(key, (outputs, width)) * math.sqrt(2.0 / width)
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}


@registry.model(title="Multilayer perceptron")
def mlp(shape: tuple[int, ...], num_outputs: int, *, hidden: tuple[int, ...] = (128,), ridge: float = 0.0) -> Model:
    """Dense layers with ReLU between them; the last one is the head.

    Args:
        hidden: Widths of the hidden layers, from the inputs on, such as 64x32; none leaves a linear model.
        ridge: Strength of the penalty (ridge / 2) |params|^2 on the training loss; 0 has none, larger ones draw all
            parameters, biases too, towards 0.
    """
    if any(width < 1 for width in hidden):
        raise BadValue("hidden", hidden, "a tuple of positive widths")
    names = [f"dense_{i}" for i in range(len(hidden))]
    widths = [math.prod(shape), *hidden, num_outputs]

    def init(key: Key) -> Tree:
        keys = jax.random.split(key, len(widths) - 1)
        return {name: dense_init(keys[i], widths[i], widths[i + 1]) for i, name in enumerate([*names, "head"])}

    def features(params: Tree, x: Array) -> Array:
        x = flat(x)
        for name in names:
            x = jax.nn.relu(dense(params[name], x))
        return x

    return from_functions(
        init=init,
        apply=lambda params, x: dense(params["head"], features(params, x)),
        task=CLASSIFICATION,
        parts={"body": ("dense_*",), "head": ("head/*",)},
        features=features,
        penalty=ridge_penalty(ridge),
    )
