"""The EMNIST CNN of "Three Approaches for Personalization" (Mansour et al., arXiv 2002.10619, Table 4).

Valid 3x3 convolutions with 32 and 64 features, ReLU, a 2x2 max-pool, dropout (keep 0.75), a dense layer of 128, ReLU,
dropout (keep 0.5), and the head: 320 + 18,496 + 1,179,776 + 7,998 parameters for 28x28x1 images and 62 classes.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array

from plures import registry
from plures.models.build import CLASSIFICATION, from_functions
from plures.models.conv import check_image, conv2d, dropout, max_pool2
from plures.types import Key, Model, Tree

FIRST, SECOND, WIDE = 32, 64, 128


@registry.model(title="EMNIST CNN", paper="arXiv:2002.10619")
def emnist_cnn(
    shape: tuple[int, ...], num_outputs: int, *, keep_pooled: float = 0.75, keep_dense: float = 0.5
) -> Model:
    """Two convolutions, a dense layer and a head, with dropout in training.

    Args:
        keep_pooled: Share of the pooled activations that dropout keeps in a training pass; 1 drops none.
        keep_dense: Share of the dense layer's activations that dropout keeps in a training pass; 1 drops none.
    """
    check_image(shape, 6)
    height, width, channels = (*shape, 1)[:3]
    pooled = ((height - 4) // 2) * ((width - 4) // 2) * SECOND

    def init(key: Key) -> Tree:
        keys = jax.random.split(key, 4)
        return {
            "conv_0": _layer(keys[0], (3, 3, channels, FIRST)),
            "conv_1": _layer(keys[1], (3, 3, FIRST, SECOND)),
            "dense_0": _layer(keys[2], (pooled, WIDE)),
            "head": _layer(keys[3], (WIDE, num_outputs)),
        }

    def features(params: Tree, x: Array, key: Key | None = None) -> Array:
        x = x.reshape(x.shape[0], height, width, channels).astype(jnp.float32)
        first, second, wide = params["conv_0"], params["conv_1"], params["dense_0"]
        x = jax.nn.relu(conv2d(x, first["kernel"], first["bias"]))
        # Bias and ReLU after the pool: the same numbers, a quarter of the work.
        x = jax.nn.relu(max_pool2(conv2d(x, second["kernel"])) + second["bias"])
        x = x.reshape(x.shape[0], -1)
        if key is not None:
            key, key_pooled = jax.random.split(key)
            x = dropout(key_pooled, x, keep_pooled)
        x = jax.nn.relu(x @ wide["kernel"] + wide["bias"])
        return x if key is None else dropout(key, x, keep_dense)

    def head(params: Tree, x: Array) -> Array:
        return x @ params["head"]["kernel"] + params["head"]["bias"]

    return from_functions(
        init=init,
        apply=lambda params, x: head(params, features(params, x)),
        forward=lambda key, params, x: head(params, features(params, x, key)),
        task=CLASSIFICATION,
        parts={"body": ("conv_*", "dense_*"), "head": ("head/*",)},
        features=features,
        train_features=lambda key, params, x: features(params, x, key),
    )


def _layer(key: Key, shape: tuple[int, ...]) -> Tree:
    """He-normal kernel (inputs first, features last), zero bias."""
    spread = math.sqrt(2.0 / math.prod(shape[:-1]))
    return {"kernel": spread * jax.random.normal(key, shape), "bias": jnp.zeros(shape[-1])}
