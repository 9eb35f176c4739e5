"""What clustering by slopes needs: a client's slope at a model and its noise, neighborhoods, clusters, warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import Aggregator, Radius, build_aggregator, radius_notes
from plures.aggregate.points import cleaned, squared_distances, usable
from plures.errors import UnknownChoice
from plures.local import draw, num_steps, objective, sgd
from plures.types import Batch, Data, Info, Key, Model, Plan, Tree, Weights

LOOKS = ("euclidean", "cosine", "layers")
CLEAR = 3.0  # clusters whose gap is below so many deviations can hardly be told apart
UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


class Slopes(NamedTuple):
    """A client's slopes at some models, and the variance of one such slope; (messages, ...).

    The variance travels as the bits of a float: it is no coordinate of the slope, and must not pass for one.
    """

    slope: Weights
    noise: Array


def slope_at(model: Model, plan: Plan, key: Key, weights: Weights, data: Data) -> tuple[Weights, Info]:
    """(w - w after the plan) / lr: the gradient, if the plan is one step of gradient descent."""
    after, info = sgd(key, weights, data, plan, objective(model))
    return tree.scale(1.0 / plan.lr, tree.subtract(weights, after)), info


def noise_at(model: Model, plan: Plan, key: Key, weights: Weights, data: Data) -> Array:
    """The variance of the slope, rows being fresh draws each time, from the two halves of a minibatch.

    Full batches are taken as exact, and a minibatch of one row has no halves: 0 for both. If g_1 and g_2 are the gradients of n_1 and n_2 rows, that of all of them has about the variance
    |g_1 - g_2|^2 n_1 n_2 / (n_1 + n_2)^2. A slope adds up as many of them as the plan has steps.
    """
    if plan.batch is None:
        return jnp.zeros(())
    batch = draw(key, data.train, plan, jnp.zeros((), jnp.int32))
    even = jnp.arange(len(batch.mask)) % 2 == 0
    loss = objective(model)

    def gradient(half: Batch) -> Tree:
        return jax.grad(lambda params: loss(key, weights._replace(params=params), half)[0])(weights.params)

    halves = [batch._replace(mask=batch.mask & part) for part in (even, ~even)]
    sizes = [half.mask.sum() for half in halves]
    apart = tree.squared_norm(tree.subtract(*(gradient(half) for half in halves)))
    share = sizes[0] * sizes[1] / jnp.maximum(sum(sizes), 1) ** 2
    return apart * share * num_steps(data.train, plan)


def as_bits(noise: Array) -> Array:
    """A float as a whole number, to be sent."""
    return jax.lax.bitcast_convert_type(noise.astype(jnp.float32), jnp.int32)


def as_float(bits: Array) -> Array:
    """What ``as_bits`` was made of."""
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def seen_as(look: str, points: Tree) -> Tree:
    """The points as they are compared: as they are, all of length 1, or with all leaves of the same mean length."""
    if look == "euclidean":
        return points
    lengths = jax.tree.map(lambda leaf: jnp.square(leaf).sum(tuple(range(1, leaf.ndim))), points)
    if look == "cosine":
        total = jnp.sqrt(sum(jax.tree.leaves(lengths)))
        return jax.tree.map(lambda leaf: leaf / jnp.maximum(tree.along(total, leaf), 1e-30), points)
    return jax.tree.map(lambda leaf, long: leaf / jnp.maximum(jnp.sqrt(_middle(long)), 1e-30), points, lengths)


def no_longer(points: Tree, weights: Array) -> Tree:
    """The points, cut to the median length of those that count."""
    length = jnp.sqrt(jax.vmap(tree.squared_norm)(points))
    limit = _middle(jnp.where(weights > 0, length, jnp.nan))
    factor = jnp.minimum(1.0, limit / jnp.maximum(length, 1e-30))
    return jax.tree.map(lambda leaf: tree.along(factor, leaf) * leaf, points)


def _middle(values: Array) -> Array:
    """The median of the finite values: a liar's length must not set the scale."""
    found = jnp.nanmedian(jnp.where(jnp.isfinite(values), values, jnp.nan))
    return jnp.where(jnp.isnan(found), 0.0, found)


def with_stats(points: Weights, weights: Array, kept: Array, asked: Array, found: Weights) -> Weights:
    """The centers with the medians of the kept statistics: distances are those of params alone."""
    if not jax.tree.leaves(points.stats):
        return found
    rule, nobody = build_aggregator("median"), jnp.arange(len(weights))
    stats, fine = aggregated(rule, Weights((), points.stats), weights, kept, asked, nobody, jax.random.key(0))
    chosen = jax.tree.map(lambda new, old: jnp.where(tree.along(fine, old), new, old), stats.stats, found.stats)
    return found._replace(stats=chosen)


def inside_clusters(text: str) -> Aggregator | None:
    """The aggregator of the points a center keeps; none for "center", the center itself."""
    return None if text == "center" else build_aggregator(text)


def check_look(look: str) -> None:
    """Refuse a way of comparing that there is not."""
    if look not in LOOKS:
        raise UnknownChoice("look", look, LOOKS)


class Surroundings(NamedTuple):
    """Of every center: squared distances of the first point beyond its cluster, and of all; its squared length."""

    gap: Array  # (centers,)
    squares: Array  # (centers, points)
    length: Array  # (centers,)

    def spread(self, owner: Array) -> Array:
        """(centers,) A^2: the squared distance of the point that each belongs to over its own squared length."""
        own = jnp.take_along_axis(self.squares, owner[:, None], axis=1)[:, 0]
        return own / jnp.maximum(self.length, 1e-30)


def surroundings(points: Tree, weights: Array, mix: Array, kept: Array) -> Surroundings:
    """Where the clusters of centers end: at the largest relative gap of the distances, beyond the kept points.

    ``mix`` are the (centers, points) collaboration weights. The gap is 0 where all points are kept.
    """
    counts = usable(points, weights)
    pairs = squared_distances(cleaned(points, counts), counts)
    mixed = jnp.matmul(mix, pairs, precision=jax.lax.Precision.HIGHEST)
    squares = jnp.maximum(mixed - 0.5 * (mixed * mix).sum(1, keepdims=True), 0.0)

    def end(own: Array, inside: Array) -> Array:
        # Who is a hundred times as far away as most is nobody's neighbor, and says nothing of the gap.
        middle = jnp.nanmedian(jnp.where(counts, own, jnp.nan))
        ordered = jnp.sort(jnp.where(counts & (own <= 1e4 * middle), own, jnp.inf))
        near, far = ordered[:-1], ordered[1:]
        before = jnp.arange(1, len(own))
        ratio = jnp.where(jnp.isfinite(far) & (before >= inside.sum()), far / jnp.maximum(near, 1e-30), 0.0)
        return jnp.where(ratio.max() > 0, far[ratio.argmax()], 0.0)

    gap = jax.vmap(end)(squares, kept) if len(counts) > 1 else jnp.zeros(len(mix))
    return Surroundings(gap, squares, _lengths(mix, points, counts))


def _lengths(mix: Array, points: Tree, counts: Array) -> Array:
    """(centers,) the squared length of every mix of the points, from their products."""
    rows = [leaf.reshape(len(counts), -1) for leaf in jax.tree.leaves(cleaned(points, counts))]
    exact = jax.lax.Precision.HIGHEST
    gram = sum(jnp.matmul(leaf, leaf.T, precision=exact) for leaf in rows)
    return jnp.maximum((jnp.matmul(mix, gram, precision=exact) * mix).sum(1), 0.0)


def aggregated(
    average: Aggregator | None, points: Weights, weights: Array, kept: Array, asked: Array, uids: Array, key: Key
) -> tuple[Weights, Array]:
    """For every center that is asked for, the aggregate of the points it keeps, and whether there is any.

    Without an aggregator, nothing. Centers go one by one: mostly very few are asked for.
    """
    blank = jax.tree.map(lambda leaf: jnp.zeros((len(kept), *leaf.shape[1:]), leaf.dtype), points)
    fine = asked & kept.any(1) & (average is not None)
    if average is None:
        return blank, fine

    def one(job: tuple[Array, Array]) -> Weights:
        own, wanted = job
        mine = jnp.where(own, weights, 0.0)
        return jax.lax.cond(wanted, lambda: average(points, mine, uids, key), lambda: tree.at(blank, 0))

    return jax.lax.map(one, (kept, fine)), fine


def clusters_of(kept: Array) -> Array:
    """(clients,) the least uid of each client's cluster: those who keep mostly the same are together.

    Two clients are linked if the sets they keep share more than half of the larger one; a cluster is what is linked
    in steps.
    """
    sets = kept.astype(jnp.float32)
    shared, sizes = sets @ sets.T, sets.sum(1)
    linked = (2 * shared > jnp.maximum(sizes[:, None], sizes[None])) | jnp.eye(len(kept), dtype=bool)

    def spread(state: tuple[Array, Array]) -> tuple[Array, Array]:
        labels, _ = state
        new = jnp.where(linked, labels[None], len(kept)).min(1)
        return new, (new != labels).any()

    own = jnp.arange(len(kept))
    return jax.lax.while_loop(lambda state: state[1], spread, (own, jnp.asarray(True)))[0]


def first_alike(models: Weights, group: Array) -> Array:
    """(clients,) the first client of the same group whose model is the same to the last bit.

    Candidates are found by a sum of bits, and then compared.
    """
    leaves = [leaf.reshape(len(group), -1) for leaf in jax.tree.leaves(models)]
    total = jnp.zeros(len(group), jnp.uint32)
    for number, leaf in enumerate(leaves):
        bits = jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)
        odd = (jnp.arange(leaf.shape[1], dtype=jnp.uint32) * jnp.uint32(2654435761) + jnp.uint32(2 * number)) | 1
        total = total * 31 + ((bits ^ (bits >> 15)) * odd).sum(1, dtype=jnp.uint32)
    same = (total[:, None] == total[None]) & (group[:, None] == group[None])
    first = same.argmax(1)
    equal = jnp.ones(len(group), bool)
    for leaf in leaves:
        equal &= (leaf == leaf[first]).all(1)
    return jnp.where(equal, first, jnp.arange(len(group)))


def in_order(values: Tree, uids: Array, number: int) -> Tree:
    """A cohort's values in the rows of their uids, of ``number`` rows; zeros for who does not take part."""
    return jax.tree.map(lambda leaf: jnp.zeros((number, *leaf.shape[1:]), leaf.dtype).at[uids].set(leaf), values)


def largest(label: Array, number: int) -> Array:
    """One client of each of the ``number`` largest clusters."""
    sizes = (label[:, None] == jnp.arange(len(label))[None]).sum(0)
    return jnp.argsort(-sizes, stable=True)[: min(number, len(label))]


def doubts(noise: Array, gap: Array, spread: Array) -> list[str]:
    """A warning where the gap between clusters is small against the noise of slopes; all are squares."""
    known = gap > 0
    if not bool(known.any()):
        return []
    # Medians over all, those without noise included: a few liars do not decide.
    sigma, delta, similar = (float(jnp.sqrt(jnp.nanmedian(one[known]))) for one in (noise, gap, spread))
    ratio = delta / sigma if sigma > 0 else CLEAR
    if ratio >= CLEAR:
        return []
    return [
        f"clusters can hardly be told apart: Delta/sigma is about {ratio:.2g}, below {CLEAR:g} (gap Delta {delta:.3g}, "
        f"noise of a slope sigma {sigma:.3g}, within a cluster A {similar:.3g}); larger batches lower sigma, and "
        "training alone or fedavg may serve as well"
    ]


def sizes_told(number: float) -> str:
    """A number of bytes in words."""
    unit, size = next((one for one in UNITS if number >= one[1] / 10), UNITS[-1])
    return f"{number / size:.3g} {unit}"


def radius_warnings(rule: Radius, num_points: int, group_sizes: Sequence[int], groups: int = 1) -> tuple[str, ...]:
    """What is wrong with a counting rule for groups of clients of these planted sizes."""
    found = radius_notes(rule, num_points, min(group_sizes) if group_sizes and groups == 1 else None)
    if groups > 1 and group_sizes and not found:
        expected = min(group_sizes) / groups
        kept = rule.count(num_points) if hasattr(rule, "count") else getattr(rule, "k", 0)
        if kept > expected:
            found = [
                f"groups are too small: of {num_points} clients {kept} are kept, but only {expected:.3g} of the "
                "smallest planted group are expected among them"
            ]
    return tuple(found)
