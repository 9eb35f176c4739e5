"""The digits CNN of FedBN (Li et al., arXiv 2102.07623, "DigitModel"), with batch norm, and its sibling for CPUs.

Three 5x5 convolutions, two dense layers and a head, batch norm and ReLU after all but the head, a 2x2 max-pool after
the first two convolutions: 14,219,210 parameters and 5,632 running statistics for 28x28x3 images and 10 classes.
"""

from __future__ import annotations

from plures import registry
from plures.errors import BadValue
from plures.models.build import CLASSIFICATION
from plures.models.conv import check_image
from plures.types import Model

WIDTHS = (64, 64, 128, 2048, 512)


@registry.model(title="Digits CNN", paper="arXiv:2102.07623")
def digits_cnn(shape: tuple[int, ...], num_outputs: int) -> Model:
    """Three convolutions, two dense layers and a head, with batch norm."""
    return _digits(shape, num_outputs, WIDTHS)


@registry.model(title="Digits CNN, small", paper="arXiv:2102.07623")
def digits_cnn_small(
    shape: tuple[int, ...], num_outputs: int, *, widths: tuple[int, ...] = (4, 8, 16, 64, 32)
) -> Model:
    """The digits CNN with fewer channels, for a CPU; ``widths`` of three convolutions and two dense layers.

    Args:
        widths: Channels of the three convolutions, then widths of the two dense layers; the published model has
            64x64x128x2048x512.
    """
    if len(widths) != 5 or min(widths) < 1:
        raise BadValue("widths", widths, "five positive numbers")
    return _digits(shape, num_outputs, widths)


def _digits(shape: tuple[int, ...], num_outputs: int, widths: tuple[int, ...]) -> Model:
    from plures.models import networks

    check_image(shape, 4)
    return networks.with_head(networks.DigitsBody(tuple(widths)), shape, num_outputs, CLASSIFICATION)
