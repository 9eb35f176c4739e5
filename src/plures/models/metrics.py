"""Metrics: functions of one client's (outputs, y, mask) to a scalar, NaN where nothing counts."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from plures.types import Metric


def mean_of(values: Callable[[Array, Array], Array], then: Callable[[Array], Array] = jnp.asarray) -> Metric:
    """The mean over rows of a per-example value, or what ``then`` makes of it: a root, an exponential."""

    def metric(outputs: Array, y: Array, mask: Array) -> Array:
        total = jnp.where(mask, values(outputs, y), 0.0).sum()
        return then(jnp.where(mask.any(), total / jnp.maximum(mask.sum(), 1), jnp.nan))

    return metric


def hits(outputs: Array, y: Array) -> Array:
    """1.0 where the largest output is at the label, averaged over any further axes (sequences)."""
    right = (outputs.argmax(-1) == y).astype(jnp.float32)
    return right.reshape(right.shape[0], -1).mean(-1)


def sign_hits(outputs: Array, y: Array) -> Array:
    """1.0 where the sign of the output agrees with the label 0 or 1."""
    return ((outputs > 0) == (y > 0)).astype(jnp.float32)


def auc(outputs: Array, y: Array, mask: Array) -> Array:
    """The area under the ROC curve: how often a positive outranks a negative, ties counting half."""
    positive, negative = mask & (y > 0), mask & (y <= 0)
    ordered = jnp.sort(jnp.where(negative, outputs, jnp.inf))
    num_negative = negative.sum()
    below = jnp.searchsorted(ordered, outputs, side="left")
    upto = jnp.minimum(jnp.searchsorted(ordered, outputs, side="right"), num_negative)
    wins = jnp.where(positive, 0.5 * (jnp.minimum(below, num_negative) + upto), 0.0).sum()
    num_positive = positive.sum()
    # Divided one after the other: the number of pairs may not fit 32 bits.
    share = wins / jnp.maximum(num_negative, 1) / jnp.maximum(num_positive, 1)
    return jnp.where((num_positive > 0) & (num_negative > 0), share, jnp.nan)
