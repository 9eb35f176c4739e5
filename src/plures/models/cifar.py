"""A CNN for small color images such as CIFAR-10, with group norm.

Group norm normalizes each image by itself, so nothing of a client's label mix enters it and there are no running
statistics to merge: Hsieh et al., The non-IID data quagmire of decentralized machine learning, arXiv 1910.00189.
Two 3x3 convolutions of 32, a 2x2 max-pool, one of 64, a max-pool, a dense layer of 128, and the head.
"""

from __future__ import annotations

import jax
from flax import linen as nn
from jax import Array

from plures import registry
from plures.models.build import CLASSIFICATION
from plures.models.conv import max_pool2
from plures.models.layers import Conv, check_image, dense, headed, image
from plures.types import Model

GROUPS, WIDE = 8, 128


class Colors(nn.Module):
    """Three convolutions and a dense layer; group norm after each convolution."""

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """Images -> (rows, 128)."""
        x = jax.nn.relu(_block(image(x), 32))
        # ReLU after the pool: the same numbers, a quarter of the work.
        x = jax.nn.relu(max_pool2(_block(x, 32)))
        x = jax.nn.relu(max_pool2(_block(x, 64)))
        return jax.nn.relu(dense(WIDE)(x.reshape(x.shape[0], -1)))


def _block(x: Array, width: int) -> Array:
    """A convolution and its group norm, to be called in a compact method."""
    return nn.GroupNorm(num_groups=GROUPS)(Conv(width, (3, 3))(x))


@registry.model(title="CIFAR CNN with group norm", paper="arXiv:1910.00189")
def cifar_cnn(shape: tuple[int, ...], num_outputs: int) -> Model:
    """Three convolutions with group norm, a dense layer and a head."""
    check_image(shape, 4)
    return headed(Colors(), shape, num_outputs, CLASSIFICATION)
