"""Models: pure functions with named parts."""

from __future__ import annotations

from plures.models import cnn, linear, mlp, sequence
from plures.models.build import from_flax, from_functions

__all__ = ["cnn", "from_flax", "from_functions", "linear", "mlp", "sequence"]
