"""What of a client's rows determines a model's loss: second moments, sums, counts."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array

from plures.types import Summary, Tree, Weights


def _kept(values: Array, mask: Array) -> Array:
    """Rows as vectors, zero where they do not count."""
    rows = values.reshape(values.shape[0], -1)
    return jnp.where(mask[:, None], rows, 0.0)


def _moments(x: Array, y: Array, mask: Array) -> Tree:
    """Sums of z z', z y' and |y|^2, where z is x with a 1 at its end."""
    inputs = jnp.concatenate([_kept(x, mask), mask[:, None].astype(jnp.float32)], axis=1)
    targets = _kept(y, mask)
    return {"zz": inputs.T @ inputs, "zy": inputs.T @ targets, "yy": (targets**2).sum(), "rows": _number(mask)}


def _quadratic(weights: Weights, sums: Tree) -> Array:
    """Half the mean squared error of a linear layer, from second moments."""
    layer = weights.params["head"]
    kernel = layer["kernel"].reshape(-1, layer["kernel"].shape[-1])  # (outputs, inputs)
    whole = jnp.concatenate([kernel, layer["bias"].reshape(-1, 1)], axis=1)
    square = ((whole @ sums["zz"]) * whole).sum() - 2 * (whole.T * sums["zy"]).sum() + sums["yy"]
    return 0.5 * square / jnp.maximum(sums["rows"], 1)


def _no_moments(weights: Weights) -> Tree:
    kernel = weights.params["head"]["kernel"]
    size, outputs = kernel.shape[-1] + 1, math.prod(kernel.shape[:-1])
    zeros = {"zz": jnp.zeros((size, size)), "zy": jnp.zeros((size, outputs))}
    return {**zeros, "yy": jnp.zeros(()), "rows": jnp.zeros(())}


def _sums(x: Array, y: Array, mask: Array) -> Tree:
    targets = _kept(y, mask)
    return {"y": targets.sum(0), "yy": (targets**2).sum(), "rows": _number(mask)}


def _distance(weights: Weights, sums: Tree) -> Array:
    """Half the mean squared distance of a point to the rows, from their sum."""
    point = weights.params["point"]
    square = sums["rows"] * (point**2).sum() - 2 * point @ sums["y"] + sums["yy"]
    return 0.5 * square / jnp.maximum(sums["rows"], 1)


def _no_sums(weights: Weights) -> Tree:
    return {"y": jnp.zeros(weights.params["point"].shape), "yy": jnp.zeros(()), "rows": jnp.zeros(())}


def counts(num_symbols: int) -> Summary:
    """How often each symbol occurs, and the log-loss of a categorical density under it."""

    def of(x: Array, y: Array, mask: Array) -> Tree:
        return jnp.where(mask[:, None], jax.nn.one_hot(y, num_symbols), 0.0).sum(0)

    def loss(weights: Weights, found: Tree) -> Array:
        return -(found @ jax.nn.log_softmax(weights.params["logits"])) / jnp.maximum(found.sum(), 1)

    return Summary(of, loss, lambda weights: jnp.zeros(num_symbols))


def _number(mask: Array) -> Array:
    return mask.sum().astype(jnp.float32)


MOMENTS = Summary(_moments, _quadratic, _no_moments)
SUMS = Summary(_sums, _distance, _no_sums)
