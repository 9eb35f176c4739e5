"""Losses of one example as functions of a linear predictor: value, gradient and curvature.

``outputs`` are (..., C) with C numbers per example (1 but for ``multinomial``) and ``y`` is (...,). ``steepest`` bounds
the curvature in any output; it is infinite where nothing does. ``coercive``: with both ends of the line penalized, a
client cannot push its model to infinity whatever its labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special
from scipy.special import expit, logsumexp, softmax

from plures.errors import BadData, BadValue, UnknownChoice
from plures.types import Floats


@dataclass(frozen=True)
class LinearLoss:
    """One loss: ``value`` (...,), ``gradient`` (..., C) and ``curvature`` (..., C, C) of outputs and targets."""

    name: str
    value: Callable[[Floats, Floats], Floats]
    gradient: Callable[[Floats, Floats], Floats]
    curvature: Callable[[Floats, Floats], Floats]
    steepest: float
    coercive: bool = False
    num_outputs: int = 1
    check: Callable[[Floats], str | None] = lambda y: None


def _single(function: Callable[[Floats, Floats], Floats], extra: int) -> Callable[[Floats, Floats], Floats]:
    """A function of one number per example as one of outputs with a last axis of length 1."""
    shape = (1,) * extra

    def of_outputs(outputs: Floats, y: Floats) -> Floats:
        found = function(outputs[..., 0], y)
        return found.reshape(*found.shape, *shape)

    return of_outputs


def _scalar(name: str, value: Any, gradient: Any, curvature: Any, steepest: float, **facts: Any) -> LinearLoss:
    return LinearLoss(name, _single(value, 0), _single(gradient, 1), _single(curvature, 2), steepest, **facts)


def _two_classes(y: Floats) -> str | None:
    return None if np.isin(y, (0.0, 1.0)).all() else "0 or 1"


def _whole_counts(y: Floats) -> str | None:
    return None if (y >= 0).all() else "0 or more"


def squared_hinge() -> LinearLoss:
    """max(0, 1 - s o)^2 with s = -1 for class 0 and 1 for class 1."""

    def short(o: Floats, y: Floats) -> Floats:
        return np.maximum(0.0, 1.0 - (2.0 * y - 1.0) * o)

    return _scalar(
        "squared_hinge",
        lambda o, y: short(o, y) ** 2,
        lambda o, y: -2.0 * (2.0 * y - 1.0) * short(o, y),
        lambda o, y: 2.0 * (short(o, y) > 0),
        2.0,
        check=_two_classes,
    )


def logistic() -> LinearLoss:
    """log(1 + exp(-s o)) with s = -1 for class 0 and 1 for class 1."""

    def curvature(o: Floats, y: Floats) -> Floats:
        share = expit(o)
        return share * (1.0 - share)

    return _scalar(
        "logistic",
        lambda o, y: np.logaddexp(0.0, o) - y * o,
        lambda o, y: expit(o) - y,
        curvature,
        0.25,
        check=_two_classes,
    )


def least_squares() -> LinearLoss:
    """Half the squared error."""
    return _scalar(
        "least_squares",
        lambda o, y: 0.5 * (o - y) ** 2,
        lambda o, y: o - y,
        lambda o, y: np.ones_like(o),
        1.0,
        coercive=True,
    )


def huber(width: float = 1.0) -> LinearLoss:
    """Half the squared error up to ``width``, then a line: points far away have no larger gradient."""
    if not 0 < width < np.inf:
        raise BadValue("width", width, "a positive number")

    return _scalar(
        "huber",
        lambda o, y: special.huber(width, o - y),
        lambda o, y: np.clip(o - y, -width, width),
        lambda o, y: 1.0 * (np.abs(o - y) <= width),
        1.0,
    )


def poisson() -> LinearLoss:
    """exp(o) - y o: counts with a logarithmic mean."""

    def rate(o: Floats) -> Floats:
        # A line search may look far ahead: beyond exp(200) every step is refused anyway.
        return np.exp(np.minimum(o, 200.0))

    return _scalar(
        "poisson",
        lambda o, y: rate(o) - y * o,
        lambda o, y: rate(o) - y,
        lambda o, y: rate(o),
        np.inf,
        check=_whole_counts,
    )


def multinomial(num_classes: int) -> LinearLoss:
    """Cross-entropy of the softmax of C outputs."""
    if num_classes < 2:
        raise BadValue("num_classes", num_classes, "2 or more")

    def hot(y: Floats) -> Floats:
        return np.eye(num_classes)[y.astype(np.int64)]

    def curvature(o: Floats, y: Floats) -> Floats:
        share = softmax(o, axis=-1)
        return share[..., None] * (np.eye(num_classes) - share[..., None, :])

    def check(y: Floats) -> str | None:
        return None if np.isin(y, np.arange(num_classes)).all() else f"whole numbers from 0 to {num_classes - 1}"

    return LinearLoss(
        "multinomial",
        lambda o, y: logsumexp(o, axis=-1) - (hot(y) * o).sum(-1),
        lambda o, y: softmax(o, axis=-1) - hot(y),
        curvature,
        0.5,
        num_outputs=num_classes,
        check=check,
    )


LINEAR_LOSSES: dict[str, Callable[..., LinearLoss]] = {
    "huber": huber,
    "least_squares": least_squares,
    "logistic": logistic,
    "multinomial": multinomial,
    "poisson": poisson,
    "squared_hinge": squared_hinge,
}


def loss_named(name: str, y: Floats) -> LinearLoss:
    """The loss of that name for such targets.

    >>> loss_named("logistic", np.zeros(2)).steepest
    0.25
    """
    if name not in LINEAR_LOSSES:
        raise UnknownChoice("loss", name, LINEAR_LOSSES)
    if name != "multinomial":
        return LINEAR_LOSSES[name]()
    if y.min() < 0 or y.max() < 1 or (y % 1 != 0).any():
        raise BadData(
            f"the targets of multinomial must be whole numbers from 0 on, of two classes or more; got {y.min():g} to {y.max():g}"
        )
    return multinomial(int(y.max()) + 1)
