"""A small CNN over time for windows of motion sensors, such as the raw signals of UCI HAR (128 times, 9 channels).

Three convolutions over 9 times each with batch norm, ReLU and a max-pool by 2 in time, a dense layer of 64, and the
head. The data: Anguita et al., A public domain dataset for human activity recognition using smartphones, ESANN 2013.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from plures import registry
from plures.errors import BadValue
from plures.models.build import CLASSIFICATION
from plures.models.layers import BatchNorm, Conv, dense, headed
from plures.types import Model

CONVOLUTIONS, TIMES, WIDE = (16, 32, 32), 9, 64


class Motion(nn.Module):
    """Convolutions over time and a dense layer."""

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """(rows, times, channels) -> (rows, 64)."""
        x = x[:, :, None].astype(jnp.float32)  # (rows, times, 1, channels)
        for width in CONVOLUTIONS:
            x = BatchNorm()(Conv(width, (TIMES, 1))(x), train, mask)
            x = jax.nn.relu(_halve(x))
        return jax.nn.relu(BatchNorm()(dense(WIDE)(x.reshape(x.shape[0], -1)), train, mask))


@registry.model(title="HAR CNN", paper="Anguita et al., ESANN 2013")
def har_cnn(shape: tuple[int, ...], num_outputs: int) -> Model:
    """Three convolutions over time, a dense layer and a head, with batch norm."""
    shortest = 2 ** len(CONVOLUTIONS)
    if len(shape) != 2 or shape[0] < shortest or shape[1] < 1:
        raise BadValue("shape", shape, f"a window (times, channels) of {shortest} times or more")
    return headed(Motion(), shape, num_outputs, CLASSIFICATION)


def _halve(x: Array) -> Array:
    """The larger of every two times; an odd last one is dropped."""
    times = x.shape[1] // 2 * 2
    return jnp.maximum(x[:, 0:times:2], x[:, 1:times:2])
