"""The digits CNN of FedBN (Li et al., arXiv 2102.07623, "DigitModel"), with batch norm, and its sibling for CPUs.

Three 5x5 convolutions, two dense layers and a head, batch norm and ReLU after all but the head, a 2x2 max-pool after
the first two convolutions: 14,219,210 parameters and 5,632 running statistics for 28x28x3 images and 10 classes.
"""

from __future__ import annotations

import jax
from flax import linen as nn
from jax import Array

from plures import registry
from plures.errors import BadValue
from plures.models.build import CLASSIFICATION
from plures.models.conv import max_pool2
from plures.models.layers import BatchNorm, Conv, check_image, dense, headed, image
from plures.types import Model

WIDTHS = (64, 64, 128, 2048, 512)


class Digits(nn.Module):
    """Three convolutions and two dense layers of these ``widths``."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """Images -> features as many as the last width."""
        x = image(x)
        for i, width in enumerate(self.widths[:3]):
            x = BatchNorm()(Conv(width, (5, 5))(x), train, mask)
            # ReLU after the pool: the same numbers, a quarter of the work.
            x = jax.nn.relu(max_pool2(x) if i < 2 else x)
        x = x.reshape(x.shape[0], -1)
        for width in self.widths[3:]:
            x = jax.nn.relu(BatchNorm()(dense(width)(x), train, mask))
        return x


@registry.model(title="Digits CNN", paper="arXiv:2102.07623")
def digits_cnn(shape: tuple[int, ...], num_outputs: int) -> Model:
    """Three convolutions, two dense layers and a head, with batch norm."""
    return _digits(shape, num_outputs, WIDTHS)


@registry.model(title="Digits CNN, small", paper="arXiv:2102.07623")
def digits_cnn_small(
    shape: tuple[int, ...], num_outputs: int, *, widths: tuple[int, ...] = (4, 8, 16, 64, 32)
) -> Model:
    """The digits CNN with fewer channels, for a CPU; ``widths`` of three convolutions and two dense layers."""
    if len(widths) != 5 or min(widths) < 1:
        raise BadValue("widths", widths, "five positive numbers")
    return _digits(shape, num_outputs, widths)


def _digits(shape: tuple[int, ...], num_outputs: int, widths: tuple[int, ...]) -> Model:
    check_image(shape, 4)
    return headed(Digits(tuple(widths)), shape, num_outputs, CLASSIFICATION)
