"""Models: pure functions with named parts."""

from __future__ import annotations

from plures.models import cifar, cnn, digits, har, linear, mlp, mlp_norm, sequence
from plures.models.build import from_flax, from_functions

__all__ = ["cifar", "cnn", "digits", "from_flax", "from_functions", "har", "linear", "mlp", "mlp_norm", "sequence"]
