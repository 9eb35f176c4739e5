"""Whether theory tells a client to join, in words: a relative guide from label counts, never a promise."""

from __future__ import annotations

import math

import jax
import numpy as np
from numpy.typing import NDArray

from plures.data import Federation
from plures.study.bounds import discrepancy_categorical, worth_joining
from plures.types import Model


def joining_words(model: Model, everyone: Federation, num_seen: int) -> list[str | None]:
    """A word or two for every client; None for all where labels are no classes.

    Compared are sqrt(d / m_k) alone and sqrt(d / m) + disc together, with d parameters and the discrepancy between
    the client's training labels and those of the training clients. That one knows only labels: inputs may differ too,
    which makes joining look better than it is.
    """
    if not everyone.num_classes or everyone.y.ndim != 1:
        return [None] * everyone.num_clients
    counts = np.array([_label_counts(everyone, row) for row in range(everyone.num_clients)], float)
    pooled = counts[everyone.uid < num_seen].sum(axis=0)
    dim = sum(
        math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)).params)
    )
    seen = everyone.uid < num_seen
    return [_word(dim, own, pooled if known else pooled + own) for own, known in zip(counts, seen, strict=True)]


def _label_counts(everyone: Federation, row: int) -> NDArray[np.int64]:
    first, number = everyone.start[row, 0], everyone.count[row, 0]
    return np.bincount(everyone.y[first : first + number].astype(int), minlength=everyone.num_classes)


def _word(dim: int, own: NDArray[np.floating], pooled: NDArray[np.floating]) -> str:
    if not own.sum():
        return "not valid: no training rows"
    if pooled.sum() < dim:
        return "not valid: fewer rows than parameters"
    found = worth_joining(
        dim=dim,
        own_rows=float(own.sum()),
        all_rows=float(pooled.sum()),
        discrepancy=discrepancy_categorical(own / own.sum(), pooled / pooled.sum()),
    )
    if min(found.alone, found.together) >= 1:
        return "vacuous"
    return "join" if found.worth else "stay alone"
