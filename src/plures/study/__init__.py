"""Studies: methods by name, grids of runs, statistics, reproductions."""

from plures.study.compare import StudyProgress, compare, default_methods, forecasts
from plures.study.comparison import Comparison
from plures.study.guidance import Guidance, decide, default_options, guide
from plures.study.spec import build_attack, build_channel, build_method, build_model, default_model
from plures.study.tuning import Tuned, tune

__all__ = [
    "Comparison",
    "Guidance",
    "StudyProgress",
    "Tuned",
    "build_attack",
    "build_channel",
    "build_method",
    "build_model",
    "compare",
    "decide",
    "default_methods",
    "default_model",
    "default_options",
    "forecasts",
    "guide",
    "tune",
]
