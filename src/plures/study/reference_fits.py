"""What references are fit by: a constant, a linear predictor, boosted trees, each from training rows alone.

A fit gives *values* for new inputs: predicted targets in a regression, else a probability for every class. ``Target``
turns them into what a model puts out, so that the model's own metrics can score them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plures.models.build import squared_hinge_loss
from plures.types import Floats, Model

Predictor: TypeAlias = Callable[[NDArray[Any]], Floats]
"""(rows, columns) -> (rows, ...) predicted targets, or (rows, classes) probabilities."""

PENALTIES = np.logspace(-4, 1, 6)
"""Strengths of the penalty (strength / 2) |w|^2 beside the mean loss over rows, of standardized inputs."""

FOLDS = 3
LEAST = 1e-7
"""The least probability: one that is certain and wrong has a finite loss."""

FEWEST_FOR_LINES, FEWEST_FOR_TREES = 5, 10
"""With fewer rows a fit is the constant. Smaller leaves than those of five rows did worse on clients of 30 to 100 rows."""

STOPPED, FIXED = (100, 1000), (50, 250)
"""Boosting makes at most so many iterations, and so many trees in all, an iteration growing one for every class: where
rows of its own stop it early, and where it makes all of them."""

LEAST_ITERATIONS = 20

ENOUGH_TO_STOP = 500
"""From so many rows on boosting sets a part of them aside to stop early by."""


@dataclass(frozen=True, eq=False)
class Target:
    """What is predicted. ``prior`` is the mean target of all rows there are, or the share of each class among them."""

    model: Model
    num_classes: int
    prior: Floats

    @property
    def is_number(self) -> bool:
        """Whether targets are numbers, not classes."""
        return self.model.task == "regression"

    def constant(self, y: NDArray[Any]) -> Floats:
        """The best constant for some targets: their mean, or the shares of classes, to which the prior adds one row.

        So a class that a client has not seen keeps a probability, and what is most frequent stays so.
        """
        if self.is_number:
            return y.astype(np.float64).mean(0) if len(y) else self.prior
        return (np.bincount(y.ravel(), minlength=self.num_classes) + self.prior) / (y.size + 1)

    def outputs(self, values: Floats, y: NDArray[Any]) -> NDArray[np.float32]:
        """Values as a model would put them out for rows with these targets."""
        if self.is_number:
            return values.reshape(y.shape).astype(np.float32)
        safe = np.clip(values, LEAST, None)
        if self.model.task == "binary":
            shares = safe / safe.sum(-1, keepdims=True)
            margin = 2 * shares[:, 1] - 1 if self.model.loss is squared_hinge_loss else np.log(safe) @ [-1.0, 1.0]
            return np.asarray(margin, np.float32)
        outputs = np.log(safe).astype(np.float32)
        between = (1,) * (y.ndim - 1)
        return np.broadcast_to(outputs.reshape(len(y), *between, self.num_classes), (*y.shape, self.num_classes))


def target_of(model: Model, num_classes: int, y: NDArray[Any]) -> Target:
    """What is predicted, given all training targets of clients in training."""
    if model.task == "regression":
        return Target(model, 0, y.astype(np.float64).mean(0))
    counts = np.bincount(y.ravel(), minlength=num_classes)
    return Target(model, num_classes, (counts + 1 / num_classes) / (y.size + 1))


def fit_constant(y: NDArray[Any], target: Target) -> Predictor:
    """The mean, or the shares of classes."""
    found = target.constant(y)
    return lambda new: np.broadcast_to(found, (len(new), *found.shape))


def fit_linear(x: NDArray[Any], y: NDArray[Any], target: Target) -> Predictor:
    """Ridge or logistic regression on standardized inputs; the penalty is chosen by folds of the same rows."""
    if len(y) < FEWEST_FOR_LINES or _one_class(y, target):
        return fit_constant(y, target)
    scale = standardizer(x)
    if target.is_number:
        from sklearn.linear_model import RidgeCV

        # Without folds it leaves every row out once, in closed form.
        ridge = RidgeCV(alphas=len(y) * PENALTIES).fit(scale(x), y.astype(np.float64))
        return lambda new: ridge.predict(scale(new))
    inputs = scale(x)
    fitted = _logistic(inputs, y, _choose_penalty(inputs, y, target))
    return lambda new: _shares(fitted, scale(new), target, len(y))


def fit_trees(x: NDArray[Any], y: NDArray[Any], target: Target, *, iterations: int | None = None) -> Predictor:
    """Histogram gradient boosting; leaves hold more rows, and training rows of its own stop it, where there are more."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if len(y) < FEWEST_FOR_TREES or _one_class(y, target):
        return fit_constant(y, target)
    rarest = len(y) if target.is_number else np.unique(y, return_counts=True)[1].min()
    stops = iterations is None and len(y) >= ENOUGH_TO_STOP and rarest >= 10
    most = iterations or iterations_of(y, target, stops=stops)
    settings = {
        "max_iter": most,
        "learning_rate": 0.1 if most >= FIXED[0] else 0.2,
        "min_samples_leaf": int(np.clip(len(y) // 20, 5, 20)),
        "max_leaf_nodes": 15,
        "max_bins": 63 if len(y) < 1000 else 255,
        "early_stopping": stops,
        "validation_fraction": 0.15,
        "random_state": 0,
    }
    make = HistGradientBoostingRegressor if target.is_number else HistGradientBoostingClassifier
    fitted = make(**settings).fit(x, y)
    if target.is_number:
        return lambda new: fitted.predict(new)
    return lambda new: _shares(fitted, new, target, len(y))


def iterations_of(y: NDArray[Any], target: Target, *, stops: bool) -> int:
    """How many iterations boosting makes at most."""
    classes = 1 if target.is_number else len(np.unique(y))
    most, trees = STOPPED if stops else FIXED
    return max(min(most, trees // (classes if classes > 2 else 1)), LEAST_ITERATIONS)


def standardizer(x: NDArray[Any]) -> Callable[[NDArray[Any]], Floats]:
    """Columns with mean 0 and deviation 1 on these rows; a constant column and what is missing are 0."""
    known = np.isfinite(x)
    number = np.maximum(known.sum(0), 1)
    mean = np.where(known, x, 0.0).sum(0, dtype=np.float64) / number
    deviation = np.sqrt(((np.where(known, x, mean) - mean) ** 2).sum(0) / number)
    flat = deviation <= 1e-7 * np.maximum(np.abs(mean), 1e-30)
    scale = np.where(flat, 0.0, 1 / np.where(flat, 1.0, deviation))
    return lambda new: (np.where(np.isfinite(new), new, mean) - mean) * scale


def _one_class(y: NDArray[Any], target: Target) -> bool:
    return not target.is_number and len(np.unique(y)) < 2


def _choose_penalty(x: Floats, y: NDArray[Any], target: Target) -> float:
    """The penalty with the least log-loss on folds in which every class is spread evenly."""
    fold = np.empty(len(y), np.int64)
    fold[np.argsort(y, kind="stable")] = np.arange(len(y)) % FOLDS
    losses = []
    for penalty in PENALTIES:
        loss = 0.0
        for number in range(FOLDS):
            apart, rest = fold == number, fold != number
            if _one_class(y[rest], target):
                shares = fit_constant(y[rest], target)(x[apart])
            else:
                shares = _shares(_logistic(x[rest], y[rest], penalty), x[apart], target, int(rest.sum()))
            loss -= np.log(np.clip(shares[np.arange(len(shares)), y[apart]], LEAST, None)).sum()
        losses.append(loss)
    return float(PENALTIES[np.argmin(losses)])


def _logistic(x: Floats, y: NDArray[Any], penalty: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # A weak penalty on rows that a line separates has its optimum far out; the folds judge what was reached.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=1 / (penalty * len(y)), max_iter=200).fit(x, y)


def _shares(fitted: Any, x: NDArray[Any], target: Target, number: int) -> Floats:
    """Probabilities of all classes; where the fit has not seen some, the prior has one row beside the fit's ``number``."""
    if not len(x):
        return np.zeros((0, target.num_classes))
    found = np.zeros((len(x), target.num_classes))
    found[:, fitted.classes_] = fitted.predict_proba(x)
    if len(fitted.classes_) < target.num_classes:
        found = (number * found + target.prior) / (number + 1)
    return found
