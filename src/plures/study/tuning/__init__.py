"""Hyper-parameter search: the same number of trials for every method, judged on valid rows."""

from plures.study.tuning.hyperparameters import Tuned, tune
