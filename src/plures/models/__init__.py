"""Models: pure functions with named parts."""

from __future__ import annotations

from plures.models import cnn, convolutional, linear, mlp, mlp_norm, sequence
from plures.models.build import from_flax, from_functions

__all__ = ["cnn", "convolutional", "from_flax", "from_functions", "linear", "mlp", "mlp_norm", "sequence"]
