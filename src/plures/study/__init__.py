"""Studies: methods by name, grids of runs, statistics, reproductions."""

from plures.builders import build_attack, build_channel, build_method, build_model, default_model
from plures.study.comparison import Comparison
from plures.study.grid import StudyProgress, compare, default_methods, forecasts
from plures.study.tuning.hyperparameters import Tuned, tune
