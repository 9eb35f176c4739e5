"""A multilayer perceptron with batch norm before every ReLU."""

from __future__ import annotations

from flax import linen as nn
from jax import Array

from plures import registry
from plures.errors import BadValue
from plures.models.build import CLASSIFICATION
from plures.models.layers import BatchNorm, dense, headed
from plures.types import Model


class Body(nn.Module):
    """Dense layers, each with batch norm and ReLU."""

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """(rows, ...) -> (rows, last width)."""
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(BatchNorm()(dense(width)(x), train, mask))
        return x


@registry.model(title="Multilayer perceptron with batch norm")
def mlp_norm(shape: tuple[int, ...], num_outputs: int, *, hidden: tuple[int, ...] = (64,)) -> Model:
    """Dense layers with batch norm and ReLU; the last one is the head."""
    if not hidden or any(width < 1 for width in hidden):
        raise BadValue("hidden", hidden, "a tuple of positive widths")
    return headed(Body(hidden), shape, num_outputs, CLASSIFICATION)
