"""What theory says before anything is trained: how good clusters can be, and whether a client should join at all.

They are relative guides, never promises of accuracy. All need a loss in [0, 1]: the log-loss does not qualify unless it
is clipped. The other bounds of the paper are in papers/three_approaches/bounds.py of the repository.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization, arXiv 2002.10619.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plures.errors import BadValue, Unsupported


@dataclass(frozen=True)
class Bound:
    """A sum of named terms; ``sharp`` holds sharper values of terms of the same name, where a proof has them.

    ``up_to_constant`` marks an order of magnitude, whose constant the paper leaves open.
    """

    name: str
    terms: Mapping[str, float]
    sharp: Mapping[str, float] = field(default_factory=dict)
    up_to_constant: bool = False

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())

    @property
    def verdict(self) -> str:
        """The total as text, or "vacuous" from 1 on: a loss in [0, 1] is never further off than that."""
        return "vacuous" if self.total >= 1 else f"{self.total:.3f}"

    def __str__(self) -> str:
        sum_of_terms = " + ".join(f"{name} {value:.3f}" for name, value in self.terms.items())
        constant = ", up to a constant" if self.up_to_constant else ""
        return f"{self.name}: {self.verdict} ({sum_of_terms}{constant})"


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


def hypcluster_bound(
    *, num_clients: int, num_rows: float, dim: int, num_clusters: int, delta: float = 0.05
) -> Bound:
    """How far HypCluster's training loss may be from its true loss, with probability 1 - delta.

    sqrt(4 p log(2 q / delta) / m) + sqrt((d q / m) log(e m / d)), arXiv 2002.10619, Corollary 2; p clients with
    m rows in total, q clusters, d the pseudo-dimension of a model. ``sharp`` is the first term as a union over all
    q^p assignments and McDiarmid's inequality give it: sqrt((p log q + log(2 / delta)) / (2 m)).

    >>> print(hypcluster_bound(num_clients=100, num_rows=10_000, dim=49, num_clusters=100))
    HypCluster, Corollary 2: vacuous (assignment 0.576 + models 1.760)
    """
    check_counts(num_clients=num_clients, num_rows=num_rows, dim=dim, num_clusters=num_clusters)
    check_risk(delta)
    if num_rows / num_clusters < dim:
        given = f"num_rows {num_rows}, num_clusters {num_clusters}, dim {dim}"
        raise Unsupported(f"Corollary 2 says nothing with fewer rows per cluster than dim: {given}")
    assignment = math.sqrt(4 * num_clients * math.log(2 * num_clusters / delta) / num_rows)
    union = num_clients * math.log(num_clusters) + math.log(2 / delta)
    return Bound(
        "HypCluster, Corollary 2",
        {"assignment": assignment, "models": complexity(dim, num_rows, num_clusters)},
        sharp={"assignment": math.sqrt(union / (2 * num_rows))},
    )


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


def complexity(dim: float, num_rows: float, num_classes: float) -> float:
    """sqrt((d q / m) log(e m / d)): q classes of pseudo-dimension d that share m rows."""
    return math.sqrt(dim * num_classes / num_rows * math.log(math.e * num_rows / dim))


def check_counts(**numbers: float) -> None:
    """Refuse sizes below 1."""
    for name, number in numbers.items():
        if not 1 <= number < math.inf:
            raise BadValue(name, number, "1 or more")


def check_risk(delta: float) -> None:
    """Refuse a risk outside (0, 1)."""
    if not 0 < delta < 1:
        raise BadValue("delta", delta, "a number in (0, 1)")


def as_law(name: str, values: Any) -> NDArray[Any]:
    """Numbers of 0 or more that sum to 1."""
    law = np.asarray(values, float)
    if law.ndim != 1 or not (law >= 0).all() or abs(law.sum() - 1) > 1e-6:
        raise BadValue(name, f"shape {law.shape} and sum {law.sum():g}", "a row of numbers >= 0 that sum to 1")
    return law
