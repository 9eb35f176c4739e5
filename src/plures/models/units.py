"""A regression whose targets have a unit of their own: trained on standardized targets, read in the user's unit.

    outputs   shift + scale * f(x)                                     in the unit of y
    loss      l((outputs - shift) / scale, (y - shift) / scale)        standardized

So step sizes, penalties and strengths mean the same whether a price is in dollars or in cents. Metrics get outputs and targets in
the unit of y, and so does the rmse; the metric "loss" is the standardized loss that training lowers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from plures.errors import BadValue, Unsupported
from plures.recipe import with_recipe, written
from plures.types import Key, Metric, Model, Summary, TargetUnit, Tree, Weights

Loss = Callable[[Array, Array], Array]


@dataclass(frozen=True, eq=False)
class StandardizedLoss:
    """The loss ``base`` of outputs and targets that are given in a unit of their own."""

    base: Loss
    unit: TargetUnit

    def __call__(self, outputs: Array, y: Array) -> Array:
        """The loss per row."""
        return self.base(_standardized(self.unit, outputs), _standardized(self.unit, y))


def plain_loss(model: Model) -> Loss:
    """The model's loss on standardized outputs and targets: what it is whatever the unit."""
    return model.loss.base if isinstance(model.loss, StandardizedLoss) else model.loss


def in_units(model: Model, shift: ArrayLike, scale: ArrayLike) -> Model:
    """The regression model for targets y of which (y - shift) / scale are standardized; a number, or one per output.

    The parameters are those of the model it wraps: parts, features and penalty are as they were. The summary is of
    standardized targets.
    """
    if model.task != "regression":
        raise Unsupported(f"units are for targets of a regression; this model is for {model.task}")
    if model.unit is not None:
        raise Unsupported("this model has a unit already; wrap the plain one")
    unit = TargetUnit(_numbers("shift", shift), _numbers("scale", scale))
    if not (np.asarray(unit.scale) > 0).all():
        raise BadValue("scale", scale, "positive numbers")

    def forward(key: Key, weights: Weights, x: Array, mask: Array) -> tuple[Array, Tree]:
        outputs, stats = model.forward(key, weights, x, mask)
        return _in_unit(unit, outputs), stats

    loss = StandardizedLoss(model.loss, unit)
    made = replace(
        model,
        apply=lambda weights, x: _in_unit(unit, model.apply(weights, x)),
        forward=forward,
        featured=_featured(model, unit),
        loss=loss,
        metrics={
            name: _loss_of(metric, unit) if name == "loss" else metric for name, metric in model.metrics.items()
        },
        summary=_summary(model, unit),
        unit=unit,
    )
    return with_recipe(made, written(in_units, {"shift": unit.shift, "scale": unit.scale}, model))


def _numbers(name: str, given: ArrayLike) -> float | tuple[float, ...]:
    """Plain numbers, rounded to what programs compute with."""
    found = np.asarray(given, np.float32)
    if found.ndim > 1 or not np.isfinite(found).all():
        raise BadValue(name, given, "a finite number, or one per output")
    return float(found) if not found.ndim else tuple(found.tolist())


def _in_unit(unit: TargetUnit, standardized: Array) -> Array:
    return jnp.asarray(unit.shift) + jnp.asarray(unit.scale) * standardized


def _standardized(unit: TargetUnit, values: Array) -> Array:
    return (values - jnp.asarray(unit.shift)) / jnp.asarray(unit.scale)


def _loss_of(metric: Metric, unit: TargetUnit) -> Metric:
    """The metric of standardized outputs and targets."""
    return lambda outputs, y, mask: metric(_standardized(unit, outputs), _standardized(unit, y), mask)


def _summary(model: Model, unit: TargetUnit) -> Summary | None:
    """The model's summary of rows whose targets are standardized."""
    if model.summary is None:
        return None
    of = model.summary.of
    return model.summary._replace(of=lambda x, y, mask: of(x, _standardized(unit, y), mask))


def _featured(
    model: Model, unit: TargetUnit
) -> Callable[[Key, Weights, Array, Array], tuple[Array, Array, Tree]] | None:
    """The model's training pass with its features, its outputs in the unit."""
    base = model.featured
    if base is None:
        return None

    def featured(key: Key, weights: Weights, x: Array, mask: Array) -> tuple[Array, Array, Tree]:
        outputs, features, stats = base(key, weights, x, mask)
        return _in_unit(unit, outputs), features, stats

    return featured
