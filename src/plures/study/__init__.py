"""Studies: methods by name, grids of runs, statistics, reproductions."""

from plures.study.compare import Comparison, StudyProgress, compare, default_methods
from plures.study.spec import build_channel, build_method, build_model, default_model

__all__ = [
    "Comparison",
    "StudyProgress",
    "build_channel",
    "build_method",
    "build_model",
    "compare",
    "default_methods",
    "default_model",
]
