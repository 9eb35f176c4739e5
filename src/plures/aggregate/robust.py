"""Robust aggregators: one upload from many, of which some may be anything.

All take stacked uploads and weights, as ``mean`` does. Clients of weight 0 and clients that sent a number that is
not finite are left out; all others count alike, because a weight is what a client says of itself. Zeros if nobody
counts.

With n clients of which f are attackers (Byzantine, in the papers):

    median            per coordinate                                                        f < n/2
    trimmed_mean      per coordinate, without the floor(share n) smallest and largest       f <= share n
    krum, multi_krum  the clients with the nearest n - f - 2 others                         2 f + 2 < n
    geometric_median  argmin_v sum_i |z_i - v|                                              f < n/2
    centered_clip     v <- v + mean_i (z_i - v) min(1, radius / |z_i - v|)                  f < n/2
    bucketing         one of these on the means of random buckets                           f times size
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate.aggregators import aggregator, build_aggregator
from plures.aggregate.points import as_given, combine, counted, distances_to, squared_distances
from plures.aggregate.radius import share_of
from plures.errors import BadValue, require, require_least
from plures.types import Key, Tree

TIE = 1e-5  # scores that differ by less (relative) are rounding apart


@aggregator(title="Coordinate median", paper="arXiv:1803.01498")
def median(uploads: Tree, weights: Array) -> Tree:
    """The median of every coordinate; the mean of the two middle values of an even number.

    >>> median(jnp.array([1.0, 2.0, 99.0]), jnp.ones(3))
    Array(2., dtype=float32)
    """
    counts, clean = counted(uploads, weights)
    number = counts.sum()

    def one(leaf: Array) -> Array:
        ordered = _ordered(leaf, counts)
        low, high = ordered[jnp.maximum(number - 1, 0) // 2], ordered[number // 2]
        return jnp.where(number > 0, (low + high) / 2, 0.0)

    return as_given(jax.tree.map(one, clean), uploads)


@aggregator(title="Trimmed mean", paper="arXiv:1803.01498")
def trimmed_mean(uploads: Tree, weights: Array, *, share: float = 0.2) -> Tree:
    """The mean of every coordinate without its floor(share n) smallest and largest values.

    Args:
        share: Share of the values that are left out at either end, in [0, 0.5); 0 is the mean, towards 0.5 the median.

    >>> trimmed_mean(jnp.array([0.0, 1.0, 2.0, 99.0]), jnp.ones(4), share=0.25)
    Array(1.5, dtype=float32)
    """
    require(0 <= share < 0.5, "share", share, "a number in [0, 0.5)")
    counts, clean = counted(uploads, weights)
    number = counts.sum()
    cut = jnp.asarray(share_of(share, len(weights)))[number]
    rank = jnp.arange(len(weights))
    kept = (rank >= cut) & (rank < number - cut)

    def one(leaf: Array) -> Array:
        inner = jnp.where(tree.along(kept, leaf), _ordered(leaf, counts), 0.0)
        return inner.sum(0) / jnp.maximum(kept.sum(), 1)

    return as_given(jax.tree.map(one, clean), uploads)


def _ordered(leaf: Array, counts: Array) -> Array:
    """Every coordinate in ascending order, clients that do not count at the end."""
    return jnp.sort(jnp.where(tree.along(counts, leaf), leaf, jnp.inf), axis=0)


@aggregator(title="Krum", paper="NeurIPS 2017")
def krum(uploads: Tree, weights: Array, *, num_byzantine: int = 1) -> Tree:
    """The upload whose nearest n - f - 2 others are nearest, f = ``num_byzantine``.

    The score is the sum of squared distances to them. Clients of equal score are averaged, so that the order of
    clients makes no difference.

    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries, NeurIPS 2017.

    Args:
        num_byzantine: How many attackers it is made for, f; at most (n - 3) / 2 of n clients.
    """
    return multi_krum(uploads, weights, num_byzantine=num_byzantine, num_kept=1)


@aggregator(title="Multi-Krum", paper="NeurIPS 2017")
def multi_krum(uploads: Tree, weights: Array, *, num_byzantine: int = 1, num_kept: int | None = None) -> Tree:
    """The mean of the ``num_kept`` uploads of the best Krum scores.

    Args:
        num_byzantine: How many attackers it is made for, f; at most (n - 3) / 2 of n clients.
        num_kept: How many uploads are averaged; 1 is Krum, None is n - f of them.
    """
    _check_krum(num_byzantine, num_kept, len(weights))
    counts, clean = counted(uploads, weights)
    number = counts.sum()
    scores = krum_scores(squared_distances(clean, counts), counts, num_byzantine)
    wanted = jnp.clip(number - num_byzantine if num_kept is None else num_kept, 1, jnp.maximum(number, 1))
    limit = jnp.sort(scores)[wanted - 1]
    kept = counts & (scores <= limit * (1 + TIE))
    return as_given(combine(kept / jnp.maximum(kept.sum(), 1), clean), uploads)


def krum_scores(pairs: Array, counts: Array, num_byzantine: int) -> Array:
    """(clients,) the sum of the n - f - 2 (at least 1) least squared distances; infinite for who does not count."""
    apart = jnp.where(counts[:, None] & counts[None] & ~jnp.eye(len(counts), dtype=bool), pairs, jnp.inf)
    ordered = jnp.sort(apart, axis=1)
    near = jnp.arange(len(counts)) < jnp.maximum(counts.sum() - num_byzantine - 2, 1)
    # A client alone has no others: its score is 0.
    scores = jnp.where(near & jnp.isfinite(ordered), ordered, 0.0).sum(1)
    return jnp.where(counts, scores, jnp.inf)


def _check_krum(num_byzantine: int, num_kept: int | None, num_clients: int) -> None:
    most = (num_clients - 3) // 2
    if not 0 <= num_byzantine <= most:
        raise BadValue("num_byzantine", num_byzantine, f"from 0 to {most} for Krum with {num_clients} clients")
    if num_kept is not None and not 1 <= num_kept <= num_clients:
        raise BadValue("num_kept", num_kept, f"between 1 and the {num_clients} clients there are")


@aggregator(title="Geometric median", paper="arXiv:1912.13445")
def geometric_median(
    uploads: Tree, weights: Array, *, nu: float = 1e-6, max_iter: int = 100, tol: float = 1e-6
) -> Tree:
    """The point with the least sum of distances to all uploads, by the smoothed Weiszfeld algorithm:

        v  <-  sum_i b_i z_i / sum_i b_i,      b_i = 1 / max(nu, |z_i - v|)

    until the mean of all directions, vectors of length 1 towards the uploads, is no longer than ``tol``. (A small step
    would not do: beside an upload all steps are small.) It starts at the coordinate median instead of the mean,
    from which a huge upload would take many steps to forget.

    Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning, arXiv 1912.13445. There clients have
    weights.

    Args:
        nu: Distance below which an upload counts as if it were so far away, in the unit of uploads; smaller is more exact
            and slower.
        max_iter: Steps at most.
        tol: Length of the mean direction at which it ends; smaller is more exact.
    """
    for name, given in {"nu": nu, "tol": tol, "max_iter": max_iter}.items():
        require(given > 0, name, given, "a number above 0")
    counts, clean = counted(uploads, weights)
    start = median(clean, counts.astype(jnp.float32))
    apart = jax.tree.map(jnp.subtract, clean, start)  # short numbers, so that small steps are not lost

    def go_on(state: tuple[Array, Tree, Array]) -> Array:
        return (state[0] < max_iter) & (state[2] > tol)

    def step(state: tuple[Array, Tree, Array]) -> tuple[Array, Tree, Array]:
        number, center, _ = state
        inverse = jnp.where(counts, 1.0 / jnp.maximum(distances_to(center, apart), nu), 0.0)
        new = combine(inverse / jnp.maximum(inverse.sum(), 1e-37), apart)
        moved = jnp.sqrt(tree.squared_norm(tree.subtract(new, center)))
        return number + 1, new, moved * inverse.sum() / jnp.maximum(counts.sum(), 1)

    first = (jnp.asarray(0), tree.zeros_like(start), jnp.asarray(jnp.inf, jnp.float32))
    return as_given(tree.add(start, jax.lax.while_loop(go_on, step, first)[1]), uploads)


@aggregator(title="Centered clipping", paper="arXiv:2012.10333")
def centered_clip(uploads: Tree, weights: Array, *, radius: float | None = None, num_steps: int = 5) -> Tree:
    """The mean of uploads, each brought to at most ``radius`` from the center, ``num_steps`` times:

        v  <-  v + mean_i (z_i - v) min(1, radius / |z_i - v|)

    The paper starts at the last round's result; here
    the start is the coordinate median, so that nothing has to be kept between rounds.

    Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021, arXiv 2012.10333.

    Args:
        radius: Distance from the center at which uploads are cut, in the unit of uploads; None is the median distance, a
            huge one is the mean.
        num_steps: How often the center is moved.
    """
    require(radius is None or radius > 0, "radius", radius, "a positive number")
    require_least(1, num_steps=num_steps)
    counts, clean = counted(uploads, weights)
    share = counts / jnp.maximum(counts.sum(), 1)

    def step(_: int | Array, center: Tree) -> Tree:
        far = distances_to(center, clean)
        limit = median(far, counts.astype(jnp.float32)) if radius is None else radius
        reach = share * jnp.minimum(1.0, limit / jnp.maximum(far, 1e-30))
        return tree.add(tree.scale(1.0 - reach.sum(), center), combine(reach, clean))

    start = median(clean, counts.astype(jnp.float32))
    return as_given(jax.lax.fori_loop(0, num_steps, step, start), uploads)


@aggregator(title="Bucketing", paper="arXiv:2006.09365", tags=("random",))
def bucketing(
    uploads: Tree, weights: Array, uids: Array, key: Key, *, size: int = 2, inner: str = "median"
) -> Tree:
    """Another aggregator on the means of buckets of ``size`` clients, drawn by uid.

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022,
    arXiv 2006.09365.

    Args:
        size: Clients of a bucket; 1 is the inner aggregator itself. Larger ones are more alike, and tolerate fewer
            attackers.
        inner: The aggregator of the means, by name; its options follow, as in "bucketing:inner=krum:num_byzantine=1".
    """
    require_least(1, size=size)
    rule = build_aggregator(inner)
    require(not rule.random, "inner", inner, "an aggregator that draws nothing itself")
    counts, clean = counted(uploads, weights)
    means, filled = buckets(key, clean, counts, uids, size)
    return as_given(rule(means, filled), uploads)


def buckets(key: Key, points: Tree, counts: Array, uids: Array, size: int) -> tuple[Tree, Array]:
    """The means of random buckets of ``size`` points that count, and how many points are in each."""
    luck = jax.vmap(lambda uid: jax.random.uniform(jax.random.fold_in(key, uid)))(uids)
    order = jnp.lexsort((uids, jnp.where(counts, luck, 2.0)))  # equal luck is settled by uid
    rank = jnp.zeros(len(uids), jnp.int32).at[order].set(jnp.arange(len(uids)))
    number = -(-len(uids) // size)
    member = (rank // size == jnp.arange(number)[:, None]) & counts  # (buckets, clients)
    filled = member.sum(1)
    means = combine(member / jnp.maximum(filled, 1)[:, None], points)
    return means, filled.astype(jnp.float32)
