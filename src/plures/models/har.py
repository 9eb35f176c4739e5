"""A small CNN over time for windows of motion sensors, such as the raw signals of UCI HAR (128 times, 9 channels).

Three convolutions over 9 times each with batch norm, ReLU and a max-pool by 2 in time, a dense layer of 64, and the
head. The data: Anguita et al., A public domain dataset for human activity recognition using smartphones, ESANN 2013.
"""

from __future__ import annotations

from plures import registry
from plures.errors import BadValue
from plures.models.build import CLASSIFICATION
from plures.types import Model

CONVOLUTIONS = (16, 32, 32)


@registry.model(title="HAR CNN", paper="Anguita et al., ESANN 2013")
def har_cnn(shape: tuple[int, ...], num_outputs: int) -> Model:
    """Three convolutions over time, a dense layer and a head, with batch norm."""
    from plures.models import networks

    shortest = 2 ** len(CONVOLUTIONS)
    if len(shape) != 2 or shape[0] < shortest or shape[1] < 1:
        raise BadValue("shape", shape, f"a window (times, channels) of {shortest} times or more")
    return networks.with_head(networks.MotionBody(CONVOLUTIONS), shape, num_outputs, CLASSIFICATION)
