"""The weighted mean of what clients upload."""

from __future__ import annotations

from jax import Array

from plures import tree
from plures.errors import require_choice
from plures.types import Tree

WEIGHTINGS = ("examples", "uniform")


def check_weighting(weighting: str) -> None:
    """Refuse a weighting that does not exist."""
    require_choice("weighting", weighting, WEIGHTINGS)


def client_weights(weights: Array, weighting: str) -> Array:
    """Weights by training rows ("examples"), or equal for all clients that have any ("uniform")."""
    check_weighting(weighting)
    return weights if weighting == "examples" else (weights > 0).astype(weights.dtype)


def mean(uploads: Tree, weights: Array, *, weighting: str = "examples") -> Tree:
    """The mean over clients; zeros if nobody counts.

    Args:
        weighting: What a client counts for: "examples", its training rows, or "uniform", the same for every client that
            has any.

    >>> import jax.numpy as jnp
    >>> mean(jnp.array([1.0, 4.0]), jnp.array([2.0, 1.0]))
    Array(2., dtype=float32)
    """
    return tree.weighted_mean(uploads, client_weights(weights, weighting))
