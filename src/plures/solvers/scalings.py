"""One lambda, many scalings: the units in which the literature writes the strength of the penalty.

Here it is alpha, of ``sum_i f_i + alpha sum_{i<j} w_ij |x_i - x_j|``. Armacki, Bajovic, Jakovetic, Kar (arXiv 2202.00718)
use four others. ``t`` is alpha over alpha_hat, the least alpha at which all clients are fused: it has no unit.
"""

from __future__ import annotations

from collections.abc import Callable

from plures.errors import UnknownChoice

FACTORS: dict[str, Callable[[int], float]] = {
    "alpha": lambda num: 1.0,
    "literal (3)": lambda num: 2.0 * num,  # (1/N) sum f + lam sum over ordered pairs
    "(3), unordered": lambda num: 1.0 * num,  # (1/N) sum f + lam sum over pairs
    "(14)": lambda num: 2.0,  # sum f + lam sum over ordered pairs
    "(6), (9), (13)": lambda num: 1.0,  # sum f + lam sum over pairs, and Algorithm 1 as printed
}
"""alpha / lambda for N clients, by where in the paper lambda stands."""


def to_alpha(lam: float, scaling: str, num: int) -> float:
    """alpha for a lambda of the paper.

    >>> to_alpha(0.09, "(14)", 60)
    0.18
    """
    return lam * _factor(scaling, num)


def from_alpha(alpha: float, scaling: str, num: int) -> float:
    """The paper's lambda for an alpha.

    >>> from_alpha(12.0, "literal (3)", 60)
    0.1
    """
    return alpha / _factor(scaling, num)


def _factor(scaling: str, num: int) -> float:
    if scaling not in FACTORS:
        raise UnknownChoice("scaling", scaling, FACTORS)
    return FACTORS[scaling](num)
