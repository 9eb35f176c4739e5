"""Running variances of normalization layers stay above 0, whatever is added to them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from plures import tree
from plures.types import Weights


def keep_variances_positive(before: Weights, after: Weights) -> Weights:
    """``after`` with a tenth of what it was for every running variance that is not above 0.

    Updates that are added can lead there, averages of values cannot. A variance of 0 would be no better than a negative
    one: outputs are divided by its root.
    """
    if not jax.tree.leaves(after.stats):
        return after
    names, structure = tree.paths(after.stats), jax.tree.structure(after.stats)
    pairs = zip(names, jax.tree.leaves(before.stats), jax.tree.leaves(after.stats), strict=True)
    kept = [
        jnp.where(new > 0, new, 0.1 * old) if name.rsplit("/", 1)[-1] == "var" else new for name, old, new in pairs
    ]
    return after._replace(stats=jax.tree.unflatten(structure, kept))
