"""Convolutional networks of flax.linen: for small color images, for digits, and for windows of motion sensors.

flax is loaded when one is built.
"""

from __future__ import annotations

from plures import registry
from plures.errors import BadValue
from plures.models.build import CLASSIFICATION
from plures.models.conv import check_image
from plures.types import Model

DIGITS_WIDTHS = (64, 64, 128, 2048, 512)
MOTION_WIDTHS = (16, 32, 32)


@registry.model(title="CIFAR CNN with group norm", paper="arXiv:1910.00189")
def cifar_cnn(shape: tuple[int, ...], num_outputs: int) -> Model:
    """Three convolutions with group norm, a dense layer and a head.

    Group norm normalizes each image by itself, so nothing of a client's label mix enters it and there are no running
    statistics to merge: Hsieh et al., The non-IID data quagmire of decentralized machine learning, arXiv 1910.00189.
    Two 3x3 convolutions of 32, a 2x2 max-pool, one of 64, a max-pool, a dense layer of 128, and the head.
    """
    from plures.models import networks

    check_image(shape, 4)
    return networks.with_head(networks.ColorBody(), shape, num_outputs, CLASSIFICATION)


@registry.model(title="Digits CNN", paper="arXiv:2102.07623")
def digits_cnn(shape: tuple[int, ...], num_outputs: int) -> Model:
    """Three convolutions, two dense layers and a head, with batch norm.

    The digits CNN of FedBN (Li et al., arXiv 2102.07623, "DigitModel"): three 5x5 convolutions, batch norm and ReLU
    after all but the head, a 2x2 max-pool after the first two convolutions; 14,219,210 parameters and 5,632 running
    statistics for 28x28x3 images and 10 classes.
    """
    return _digits(shape, num_outputs, DIGITS_WIDTHS)


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


@registry.model(title="HAR CNN", paper="Anguita et al., ESANN 2013")
def har_cnn(shape: tuple[int, ...], num_outputs: int) -> Model:
    """Three convolutions over time, a dense layer and a head, with batch norm.

    For windows of motion sensors, such as the raw signals of UCI HAR (128 times, 9 channels): convolutions over 9 times
    each with batch norm, ReLU and a max-pool by 2 in time, a dense layer of 64, and the head. The data: Anguita et al.,
    A public domain dataset for human activity recognition using smartphones, ESANN 2013.
    """
    from plures.models import networks

    shortest = 2 ** len(MOTION_WIDTHS)
    if len(shape) != 2 or shape[0] < shortest or shape[1] < 1:
        raise BadValue("shape", shape, f"a window (times, channels) of {shortest} times or more")
    return networks.with_head(networks.MotionBody(MOTION_WIDTHS), shape, num_outputs, CLASSIFICATION)
