"""What theory says before anything is trained: whether a client should join at all.

It is a relative guide, never a promise of accuracy. It needs a loss in [0, 1]: the log-loss does not qualify unless it
is clipped. The bounds of the paper are in papers/three_approaches/bounds.py of the repository.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization, arXiv 2002.10619.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from plures.data import Federation
from plures.errors import BadValue
from plures.types import Model


@dataclass(frozen=True)
class Discrepancy:
    """max over h of |L_D1(h) - L_D2(h)|; where it is not ``exact`` it is an estimate from below."""

    value: float
    exact: bool

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.3f}" if self.exact else f"at least {self.value:.3f}"


@dataclass(frozen=True)
class Joining:
    """What a client risks alone and together with all others: comparable with each other, and with nothing else."""

    alone: float
    together: float

    @property
    def worth(self) -> bool:
        """Whether the smaller risk is the common one."""
        return self.together < self.alone

    def __str__(self) -> str:
        word, sign = ("join", "<") if self.worth else ("stay alone", ">=")
        return f"{word}: together {self.together:.3f} {sign} alone {self.alone:.3f} (a relative guide)"


def worth_joining(*, dim: int, own_rows: float, all_rows: float, discrepancy: Discrepancy | float) -> Joining:
    """Whether a client gains from all clients' rows: sqrt(d / m_k) alone, sqrt(d / m) + disc(D_k, U) together.

    The orders of the bounds of arXiv 2002.10619 without their constants. A discrepancy estimated from below favors
    joining.
    """
    check_counts(dim=dim, own_rows=own_rows)
    if not own_rows <= all_rows < math.inf:
        raise BadValue("all_rows", all_rows, f"at least own_rows ({own_rows})")
    if not float(discrepancy) >= 0:
        raise BadValue("discrepancy", discrepancy, "0 or more")
    return Joining(math.sqrt(dim / own_rows), math.sqrt(dim / all_rows) + float(discrepancy))


def discrepancy_categorical(one: Any, other: Any) -> Discrepancy:
    """max_y |D1(y) - D2(y)|: all distributions h over the symbols, with the loss 1 - h(y). Exact."""
    first, second = as_law("one", one), as_law("other", other)
    if first.shape != second.shape:
        raise BadValue("other", f"{second.size} symbols", f"over the {first.size} symbols of one")
    return Discrepancy(float(np.abs(first - second).max()), exact=True)


def check_counts(**numbers: float) -> None:
    """Refuse sizes below 1."""
    for name, number in numbers.items():
        if not 1 <= number < math.inf:
            raise BadValue(name, number, "1 or more")


def as_law(name: str, values: Any) -> NDArray[Any]:
    """Numbers of 0 or more that sum to 1."""
    law = np.asarray(values, float)
    if law.ndim != 1 or not (law >= 0).all() or abs(law.sum() - 1) > 1e-6:
        raise BadValue(name, f"shape {law.shape} and sum {law.sum():g}", "a row of numbers >= 0 that sum to 1")
    return law


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
