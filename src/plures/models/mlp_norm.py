"""A multilayer perceptron with batch norm before every ReLU."""

from __future__ import annotations

from plures import registry
from plures.errors import BadValue
from plures.models.build import CLASSIFICATION
from plures.types import Model


@registry.model(title="Multilayer perceptron with batch norm")
def mlp_norm(shape: tuple[int, ...], num_outputs: int, *, hidden: tuple[int, ...] = (64,)) -> Model:
    """Dense layers with batch norm and ReLU; the last one is the head.

    Args:
        hidden: Widths of the hidden layers, from the inputs on, such as 64x32; at least one.
    """
    from plures.models import networks

    if not hidden or any(width < 1 for width in hidden):
        raise BadValue("hidden", hidden, "a tuple of positive widths")
    return networks.with_head(networks.PerceptronBody(hidden), shape, num_outputs, CLASSIFICATION)
