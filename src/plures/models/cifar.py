"""A CNN for small color images such as CIFAR-10, with group norm.

Group norm normalizes each image by itself, so nothing of a client's label mix enters it and there are no running
statistics to merge: Hsieh et al., The non-IID data quagmire of decentralized machine learning, arXiv 1910.00189.
Two 3x3 convolutions of 32, a 2x2 max-pool, one of 64, a max-pool, a dense layer of 128, and the head.
"""

from __future__ import annotations

from plures import registry
from plures.models.build import CLASSIFICATION
from plures.models.conv import check_image
from plures.types import Model


@registry.model(title="CIFAR CNN with group norm", paper="arXiv:1910.00189")
def cifar_cnn(shape: tuple[int, ...], num_outputs: int) -> Model:
    """Three convolutions with group norm, a dense layer and a head."""
    from plures.models import networks

    check_image(shape, 4)
    return networks.with_head(networks.ColorBody(), shape, num_outputs, CLASSIFICATION)
