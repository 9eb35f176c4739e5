"""Studies: methods by name, grids of runs, statistics, reproductions."""

from plures.study.compare import DEFAULT_METHODS, Comparison, StudyProgress, compare
from plures.study.spec import build_channel, build_method, build_model, default_model

__all__ = [
    "DEFAULT_METHODS",
    "Comparison",
    "StudyProgress",
    "build_channel",
    "build_method",
    "build_model",
    "compare",
    "default_model",
]
