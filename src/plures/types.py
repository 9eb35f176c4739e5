"""What methods are made of: weights, rows of data, models and plans of local optimization. Everything is frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from plures.errors import BadValue
from plures.recipe import Recipe

Tree: TypeAlias = Any
Key: TypeAlias = Array
Info: TypeAlias = Mapping[str, Array]
Floats: TypeAlias = NDArray[np.float64]
Metric: TypeAlias = Callable[[Array, Array, Array], Array]
"""(outputs, y, mask) of one client -> a scalar; rows with a false mask do not count."""


class Weights(NamedTuple):
    """What a model is made of: ``params`` move by gradients, ``stats`` by forward passes (batch norm)."""

    params: Tree
    stats: Tree = ()


class Batch(NamedTuple):
    """Some rows of one client; rows with a false ``mask`` are repeats that must not count.

    ``weight`` is how much each row counts in the training loss; None is 1 for all.
    """

    x: Array
    y: Array
    mask: Array
    weight: Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """``count`` rows of one client, from ``start`` on in arrays that may hold other clients' rows too.

    ``capacity`` is the largest count any client has, a static bound for whole-data passes. ``count`` is a
    Python int where all clients have equally many rows: loops and masks are then static. ``weight`` is how much
    each of the client's own rows counts in training.
    """

    x: Array
    y: Array
    start: Array | int
    count: Array | int
    capacity: int = field(metadata={"static": True})
    weight: Array | None = None

    def take(self, index: Array) -> Batch:
        """The rows at ``index``; an index past the end repeats an own row under a false mask."""
        place = jnp.minimum(index, jnp.maximum(self.count - 1, 0))

        def at(values: Array, where: Array) -> Array:
            return jnp.take(values, where, axis=0, mode="clip")

        x, y = (at(values, place + self.start) for values in (self.x, self.y))
        return Batch(x, y, index < self.count, None if self.weight is None else at(self.weight, place))

    def all(self) -> Batch:
        """Every row, padded to ``capacity``."""
        return self.take(jnp.arange(max(self.capacity, 1)))


class Drawable(Protocol):
    """Anything that batches can be drawn from: ``Rows``, or several of them put together."""

    @property
    def count(self) -> Array | int:
        """How many rows there are."""

    @property
    def capacity(self) -> int:
        """A static bound on the count of any client."""

    def take(self, index: Array) -> Batch:
        """The rows at ``index``."""

    def all(self) -> Batch:
        """Every row, padded to ``capacity``."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Data:
    """One client's examples as a method sees them: never a test row.

    ``domain`` is the client's domain and ``group`` its planted cluster (-1 where there is none); only a
    method tagged ``oracle`` may read ``group``.
    """

    train: Rows
    valid: Rows
    domain: Array | int = -1
    group: Array | int = -1


class Summary(NamedTuple):
    """Sums over rows that determine a model's mean loss on them: a client may send these instead of its rows.

    ``of(x, y, mask)`` is a tree of sums, to be added up over rows and clients. ``loss(weights, sums)`` is the mean
    loss, without penalty, of the rows that were summed. ``zeros(weights)`` are the sums of no rows, from shapes.
    """

    of: Callable[[Array, Array, Array], Tree]
    loss: Callable[[Weights, Tree], Array]
    zeros: Callable[[Weights], Tree]


class TargetUnit(NamedTuple):
    """Targets of a regression in the user's unit are shift + scale * standardized ones; a number, or one per output."""

    shift: float | tuple[float, ...]
    scale: float | tuple[float, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """Pure functions of a predictor, with named parts.

    ``apply`` predicts (evaluation mode). ``forward`` is the training pass: dropout drawn from its key, new
    ``stats`` returned, rows with a false mask ignored by batch statistics. ``loss`` is per example. ``task`` is
    "classification", "binary", "regression", "density" or "sequence". ``parts``
    maps a part's name ("body", "head", "norm") to patterns of the paths of its leaves ("params/head/*"). ``summary``
    says what of its rows determines the loss, where that is less than the rows. ``features`` are the inputs of the last
    layer (evaluation mode); ``featured`` is the training pass with the features it had: outputs, features, stats. ``unit`` is
    that of a regression whose loss is of standardized outputs and targets (see ``plures.models.units``); None is the plain loss.
    """

    init: Callable[[Key], Weights]
    apply: Callable[[Weights, Array], Array]
    forward: Callable[[Key, Weights, Array, Array], tuple[Array, Tree]]
    loss: Callable[[Array, Array], Array]
    metrics: Mapping[str, Metric]
    score: str
    higher_is_better: bool
    task: str
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    features: Callable[[Weights, Array], Array] | None = None
    featured: Callable[[Key, Weights, Array, Array], tuple[Array, Array, Tree]] | None = None
    penalty: Callable[[Tree], Array] | None = None
    summary: Summary | None = None
    unit: TargetUnit | None = None
    recipe: Recipe | None = None


def untraced(value: object) -> bool:
    """Whether the value of a number is known: one that is an argument of a program was checked before it became one."""
    return not isinstance(value, jax.core.Tracer)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Local optimization: what a client does with its own rows in one round.

    Args:
        epochs: Passes over the client's training rows; 0 trains nothing.
        steps: A number of gradient steps for everyone instead of passes; None goes by ``epochs``.
        batch: Rows in one gradient step. None is full batch: one step per epoch, without shuffling, so that limits
            become exactly testable.
        lr: The step size given to the optimizer, above 0.
        optimizer: Makes an optax transformation from the step size, such as ``optax.sgd`` or ``optax.adam``; it
            starts anew in every round.

    >>> Plan(lr=0.0)
    Traceback (most recent call last):
    plures.errors.BadValue: lr must be a positive number, got 0.0
    """

    epochs: int = 1
    steps: int | None = None
    batch: int | None = 20
    lr: float = 0.1
    optimizer: Callable[[float], optax.GradientTransformation] = optax.sgd

    def __post_init__(self) -> None:
        if untraced(self.lr) and (not isinstance(self.lr, int | float) or not 0 < self.lr < float("inf")):
            raise BadValue("lr", self.lr, "a positive number")
        if self.epochs < 0:
            raise BadValue("epochs", self.epochs, "0 or more")
        if self.steps is not None and self.steps < 0:
            raise BadValue("steps", self.steps, "0 or more")
        if not callable(self.optimizer):
            raise BadValue("optimizer", self.optimizer, "a function of the step size, such as optax.adam")
        if self.batch is not None and self.batch < 1:
            raise BadValue("batch", self.batch, "1 or more (or None for full batch)")
