"""Models: pure functions with named parts."""

from plures.models import cnn, convolutional, linear, mlp, mlp_norm, sequence
from plures.models.build import from_flax, from_functions
