"""How large a ball is: rules that say, from the distances to a center, which points are kept.

    fixed              D_j <= tau
    sqrt_sigma_delta   D_j <= sqrt(sigma Delta), between the noise inside a cluster and the gap between clusters
    k_nearest          the k nearest
    quantile           the floor(q N) nearest of all N points, those that are not finite counted too
    gap                all before the largest relative gap D_(r+1) / D_(r)

Counting rules are stable: among equally far points the earlier ones are kept.

Werner, He, Jordan, Jaggi, Karimireddy: Provably Personalized and Robust Federated Learning, arXiv 2306.08393. The
gap rule and the stable count are ours; ``compat`` holds the three rules of the published code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array

from plures.errors import UnknownChoice, require
from plures.registry import Named, Registry
from plures.types import untraced

RADII = Registry("radius")
COMPAT = ("", "below", "shrunk", "up_to")

Kept: TypeAlias = tuple[Array, Array]
"""(points,) whether each is kept, and the radius of the ball."""


@RADII.register(title="A given radius", name="fixed")
@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Points at most ``tau`` away.

    Args:
        tau: Radius of the ball, in the unit of the points; infinity keeps all, 0 only those that are equal.
    """

    tau: float = float("inf")

    def __post_init__(self) -> None:
        _at_least("tau", self.tau, 0)

    def keep(self, distances: Array, counts: Array, number: Array) -> Kept:
        """Which points of finite ``distances`` lie in the ball."""
        return counts & (distances <= self.tau), jnp.asarray(self.tau, distances.dtype)


@RADII.register(title="Between noise and gap", name="sqrt_sigma_delta", paper="arXiv:2306.08393")
@dataclass(frozen=True, kw_only=True)
class SqrtSigmaDelta:
    """Points at most sqrt(sigma delta) away: the geometric mean of the noise and of the gap.

    Args:
        sigma: Deviation of points inside a cluster, in their unit.
        delta: Distance between clusters, in the same unit.
    """

    sigma: float = 1.0
    delta: float = 1.0

    def __post_init__(self) -> None:
        _at_least("sigma", self.sigma, 0)
        _at_least("delta", self.delta, 0)

    def keep(self, distances: Array, counts: Array, number: Array) -> Kept:
        """Which points of finite ``distances`` lie in the ball."""
        return Fixed(tau=(self.sigma * self.delta) ** 0.5).keep(distances, counts, number)


@RADII.register(title="The k nearest", name="k_nearest")
@dataclass(frozen=True, kw_only=True)
class KNearest:
    """The ``k`` nearest points, or all if there are fewer.

    Args:
        k: How many points are kept, the client's own among them; 1 is training alone.
    """

    k: int = 2

    def __post_init__(self) -> None:
        _at_least("k", self.k, 0)

    def keep(self, distances: Array, counts: Array, number: Array) -> Kept:
        """Which points are among the nearest."""
        return _nearest(distances, counts, jnp.asarray(self.k))


@RADII.register(title="A share of all points", name="quantile", paper="arXiv:2306.08393")
@dataclass(frozen=True, kw_only=True)
class Quantile:
    """The floor(q N) nearest of all N points, but ``at_least`` so many; none at all if q N is below 1.

    Args:
        q: Share of all points that is kept, in [0, 1]; 1 keeps all.
        at_least: How many points are kept at least.
        compat: One of the published rules instead, with the radius D_(r) for r = floor(q N) counted from 0: "below" keeps
            D < D_(r), "shrunk" keeps D <= 0.99 D_(r), "up_to" keeps D <= D_(r); empty is the rule above.
    """

    q: float = 0.2
    at_least: int = 0
    compat: str = ""

    def __post_init__(self) -> None:
        require(0 <= self.q <= 1, "q", self.q, "a number in [0, 1]")
        _at_least("at_least", self.at_least, 0)
        if self.compat not in COMPAT:
            raise UnknownChoice("compat", self.compat, COMPAT[1:])

    def count(self, number: int) -> int:
        """How many of ``number`` points are kept, if no two are equally far."""
        found = max(int(share_of(self.q, number)[number]), self.at_least)
        return min(found + (self.compat == "up_to"), number)

    def keep(self, distances: Array, counts: Array, number: Array) -> Kept:
        """Which points are among the nearest share."""
        number_kept = jnp.maximum(jnp.asarray(share_of(self.q, len(distances)))[number], self.at_least)
        if not self.compat:
            return _nearest(distances, counts, number_kept)
        found = _ordered(distances, counts)[jnp.minimum(number_kept, len(distances) - 1)]
        radius = 0.99 * found if self.compat == "shrunk" else found
        inside = distances < radius if self.compat == "below" else distances <= radius
        return counts & inside, radius


@RADII.register(title="Up to the largest gap", name="gap")
@dataclass(frozen=True, kw_only=True)
class Gap:
    """All points before the largest gap D_(r+1) / D_(r) above ``factor``, with ``at_least`` r points before it.

    The nearer half of all points comes first: only if it has no such gap the farther half is searched, so that a few
    outliers, whose gap is the largest of all, hide no cluster. Points without a gap are one cluster, and all of them
    are kept. The radius is sqrt(D_(r) D_(r+1)), so D_(r) stands for sigma and D_(r+1) for Delta.

    On 4 clusters of 16 points in 2, 10 and 50 dimensions this finds those 10, 5 and 3 sigma apart; the first gap is
    often one inside a cluster, and the largest of all is that of an outlier.

    Args:
        factor: How many times as far the next point must be for a gap, above 1; a large one finds no gap and keeps all.
        at_least: How many points are kept at least, the client's own among them.
    """

    factor: float = 1.3
    at_least: int = 3

    def __post_init__(self) -> None:
        require(self.factor > 1, "factor", self.factor, "a number above 1")
        _at_least("at_least", self.at_least, 1)

    def keep(self, distances: Array, counts: Array, number: Array) -> Kept:
        """Which points lie before the gap."""
        if len(distances) == 1:
            return counts, jnp.asarray(jnp.inf, distances.dtype)
        ordered = _ordered(distances, counts)
        near, far = ordered[:-1], ordered[1:]
        before = np.arange(1, len(distances))  # points before the gap between near and far
        wide = jnp.isfinite(far) & (far > self.factor * near) & (before >= self.at_least)
        nearer = wide & (2 * before <= number)
        open_to = jnp.where(nearer.any(), nearer, wide)
        # Points on the center have no relative distance: a gap beside them is as wide as can be.
        width = jnp.where(open_to, far / jnp.maximum(near, np.finfo(np.float32).tiny), 0.0)
        at, found = width.argmax(), open_to.any()
        # By rank, not by radius: points that all lie on the center have a radius of 0.
        kept = counts & (~found | (ranks(distances, counts) <= at))
        return kept, jnp.where(found, jnp.sqrt(near[at]) * jnp.sqrt(far[at]), jnp.inf)


Radius: TypeAlias = Fixed | SqrtSigmaDelta | KNearest | Quantile | Gap


def as_radius(given: Radius | float | str) -> Radius:
    """A rule as it is, a number as a fixed radius, a text such as "quantile:q=0.2" by name.

    >>> as_radius("k_nearest:k=3"), as_radius(2.0)
    (KNearest(k=3), Fixed(tau=2.0))
    """
    if isinstance(given, str):
        named = Named.parse(given.replace(";", ","), RADII)
        build: Callable[..., Any] = named.entry.factory
        found: Radius = build(**named.options)
        return found
    if isinstance(given, int | float) or not untraced(given):
        return Fixed(tau=given)  # type: ignore[arg-type]
    return given


def radius_notes(radius: Radius, num_points: int, smallest_group: int | None = None) -> list[str]:
    """What is wrong with a counting rule for so many points, in plain words."""
    if isinstance(radius, Quantile):
        kept, said = radius.count(num_points), f"quantile q={radius.q:g} of {num_points} points"
    elif isinstance(radius, KNearest):
        kept, said = min(radius.k, num_points), f"k={radius.k} of {num_points} points"
    else:
        return []
    if kept <= 1:
        return [f"{said} keeps {kept}: nobody but the client itself, so this is local training"]
    if smallest_group is not None and kept > smallest_group:
        return [f"{said} keeps {kept}, but the smallest group has {smallest_group}: strangers are always let in"]
    return []


def share_of(share: float, number: int) -> np.ndarray:
    """floor(share n) for n = 0..number, safe from rounding: 0.29 of 100 is 29."""
    return np.floor(share * np.arange(number + 1) + 1e-9).astype(np.int32)


def ranks(distances: Array, counts: Array) -> Array:
    """The rank of each point by distance, from 0 on; ties in the order of points, those that do not count last."""
    order = jnp.argsort(jnp.where(counts, distances, jnp.inf), stable=True)
    return jnp.zeros(len(distances), jnp.int32).at[order].set(jnp.arange(len(distances), dtype=jnp.int32))


def _ordered(distances: Array, counts: Array) -> Array:
    return jnp.sort(jnp.where(counts, distances, jnp.inf))


def _nearest(distances: Array, counts: Array, number: Array) -> Kept:
    kept = counts & (ranks(distances, counts) < number)
    return kept, jnp.where(kept, distances, 0.0).max()


def _at_least(name: str, given: float, least: int) -> None:
    require(not untraced(given) or given >= least, name, given, f"a number of at least {least}")
