"""Linear models: softmax, least squares, logistic, squared hinge; and two models of no input at all."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from plures import registry, tree
from plures.models.build import BINARY, CLASSIFICATION, DENSITY, MARGIN, REGRESSION, Task, from_functions
from plures.models.summary import MOMENTS, SUMS, counts
from plures.types import Key, Model, Summary, Tree


def flat(x: Array) -> Array:
    """Rows as vectors."""
    return x.reshape(x.shape[0], -1)


def dense(layer: Tree, x: Array) -> Array:
    """kernel @ x + bias for every row of x, the kernel being (outputs, inputs) or (inputs,).

    Written as (kernel @ x.T).T: under vmap with per-client kernels both this product and the one for its
    gradient then contract over rows that lie next to each other, twice as fast on a CPU for few outputs.
    """
    return (layer["kernel"] @ x.T).T + layer["bias"]


def ridge_penalty(ridge: float) -> Callable[[Tree], Array] | None:
    """(ridge / 2) |params|^2, or nothing at 0."""
    if ridge == 0:
        return None
    return lambda params: 0.5 * ridge * tree.squared_norm(params)


def _linear(
    shape: tuple[int, ...], num_outputs: int | None, task: Task, ridge: float, summary: Summary | None = None
) -> Model:
    """One dense layer from zero; ``num_outputs=None`` gives one number per row."""
    width = math.prod(shape)
    tail = () if num_outputs is None else (num_outputs,)

    def init(key: Key) -> Tree:
        return {"head": {"kernel": jnp.zeros((*tail, width)), "bias": jnp.zeros(tail)}}

    return from_functions(
        init=init,
        apply=lambda params, x: dense(params["head"], flat(x)),
        task=task,
        parts={"head": ("head/*",)},
        features=lambda params, x: flat(x),
        penalty=ridge_penalty(ridge),
        summary=summary,
    )


@registry.model(title="Softmax regression")
def softmax(shape: tuple[int, ...], num_outputs: int, *, ridge: float = 0.0) -> Model:
    """A linear classifier with cross-entropy.

    Args:
        ridge: Strength of the penalty (ridge / 2) |params|^2 on the training loss; 0 has none, larger ones draw all
            parameters, intercepts too, towards 0.
    """
    return _linear(shape, num_outputs, CLASSIFICATION, ridge)


@registry.model(title="Least squares")
def least_squares(shape: tuple[int, ...], num_outputs: int = 1, *, ridge: float = 0.0) -> Model:
    """A linear regression with half the squared error; one number per row where ``num_outputs`` is 1.

    Args:
        ridge: Strength of the penalty (ridge / 2) |params|^2 on the training loss; 0 has none, larger ones draw all
            parameters, intercepts too, towards 0.
    """
    return _linear(shape, None if num_outputs == 1 else num_outputs, REGRESSION, ridge, MOMENTS)


@registry.model(title="Logistic regression")
def logistic(shape: tuple[int, ...], num_outputs: int = 2, *, ridge: float = 0.0) -> Model:
    """A linear classifier of two classes with one output.

    Args:
        ridge: Strength of the penalty (ridge / 2) |params|^2 on the training loss; 0 has none, larger ones draw all
            parameters, intercepts too, towards 0.
    """
    return _linear(shape, None, BINARY, ridge)


@registry.model(title="Squared hinge")
def squared_hinge(shape: tuple[int, ...], num_outputs: int = 2, *, ridge: float = 0.0) -> Model:
    """A linear classifier of two classes with the squared hinge loss.

    Args:
        ridge: Strength of the penalty (ridge / 2) |params|^2 on the training loss; 0 has none, larger ones draw all
            parameters, intercepts too, towards 0.
    """
    return _linear(shape, None, MARGIN, ridge)


@registry.model(title="Categorical density")
def density(shape: tuple[int, ...], num_outputs: int, *, ridge: float = 0.0) -> Model:
    """A distribution over symbols, as logits, with the log-loss; the input is ignored.

    Args:
        ridge: Strength of the penalty (ridge / 2) |logits|^2; 0 has none, a large one makes all symbols equally
            likely.
    """

    def apply(params: Tree, x: Array) -> Array:
        return jnp.broadcast_to(params["logits"], (x.shape[0], num_outputs))

    return from_functions(
        init=lambda key: {"logits": jnp.zeros(num_outputs)},
        apply=apply,
        task=DENSITY,
        penalty=ridge_penalty(ridge),
        summary=counts(num_outputs),
    )


@registry.model(title="Mean")
def mean(shape: tuple[int, ...], num_outputs: int, *, ridge: float = 0.0) -> Model:
    """A point near the targets, with half the squared distance; the input is ignored.

    Where ``num_outputs`` is 1 it puts out one number per row, as targets are then stored.

    Args:
        ridge: Strength of the penalty (ridge / 2) |point|^2; 0 has none, a large one draws the point to the origin.
    """
    shape_of_one = () if num_outputs == 1 else (num_outputs,)

    def apply(params: Tree, x: Array) -> Array:
        return jnp.broadcast_to(params["point"].reshape(shape_of_one), (x.shape[0], *shape_of_one))

    return from_functions(
        init=lambda key: {"point": jnp.zeros(num_outputs)},
        apply=apply,
        task=REGRESSION,
        penalty=ridge_penalty(ridge),
        summary=SUMS,
    )
