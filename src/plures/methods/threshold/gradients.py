"""What clustering by gradients needs: a client's gradient and its noise, what lies around a center, newcomers, warnings.

A gradient is (x - x after the plan) / lr: the gradient itself where the plan is one step, a pseudo-gradient otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.aggregate import (
    Aggregator,
    Clustered,
    Radius,
    as_radius,
    build_aggregator,
    radius_notes,
    threshold_clustering,
)
from plures.aggregate.points import counted, squared_distances
from plures.local import draw, losses_of, num_steps, objective, sgd
from plures.registry import OptionGroup
from plures.types import Batch, Data, Info, Key, Model, Plan, Tree, Weights

CLEAR = 3.0  # clusters whose gap is below so many deviations can hardly be told apart


@dataclass(frozen=True)
class ThresholdOptions(OptionGroup):
    """The options of Threshold-Clustering.

    Args:
        radius: Whose gradients (or momenta) a center keeps: a rule such as "quantile:q=0.2" or "k_nearest:k=3" (options
            set off by semicolons), or a number, the radius of a ball. Keeping the own alone is training alone.
        max_iter: Rounds of Threshold-Clustering at most, for every center.
        tol: Threshold-Clustering ends where its weights move by so much or less in sum; 0 makes all ``max_iter`` rounds.
    """

    radius: Radius | float | str = "quantile:q=0.2;at_least=2"
    max_iter: int = 100
    tol: float = 1e-6

    def __post_init__(self) -> None:
        as_radius(self.radius)  # refuses an unknown rule

    @property
    def rule(self) -> Radius:
        """The radius as a rule."""
        return as_radius(self.radius)

    def cluster(
        self, points: Tree, centers: Tree | None = None, *, weights: Array, radius: Any = None
    ) -> Clustered:
        """Threshold-Clustering of the points, from the centers; ``radius`` takes the place of the own one."""
        rule = self.rule if radius is None else radius
        return threshold_clustering(
            points, centers, radius=rule, weights=weights, max_iter=self.max_iter, tol=self.tol, path="gram"
        )


class GradientUpload(NamedTuple):
    """A client's gradient (or momentum) and the variance of a gradient; stacked where it is asked for at many models.

    The variance travels as the bits of a float: it is no coordinate of the gradient, and must not pass for one.
    """

    gradient: Weights
    noise: Array

    @staticmethod
    def of(gradient: Weights, variance: Array) -> GradientUpload:
        """What is sent of a gradient and its variance."""
        return GradientUpload(gradient, jax.lax.bitcast_convert_type(variance.astype(jnp.float32), jnp.int32))

    @property
    def variance(self) -> Array:
        """The variance as a number again."""
        return jax.lax.bitcast_convert_type(self.noise, jnp.float32)


def gradient_at(model: Model, plan: Plan, key: Key, weights: Weights, data: Data) -> tuple[Weights, Info]:
    """(w - w after the plan) / lr: the gradient, if the plan is one step of gradient descent."""
    after, info = sgd(key, weights, data, plan, objective(model))
    return tree.scale(1.0 / plan.lr, tree.subtract(weights, after)), info


def noise_at(model: Model, plan: Plan, key: Key, weights: Weights, data: Data) -> Array:
    """The variance of the gradient, rows being fresh draws each time, from the two halves of a minibatch.

    Full batches are taken as exact, and a minibatch of one row has no halves: 0 for both. If g_1 and g_2 are the
    gradients of n_1 and n_2 rows, that of all of them has about the variance |g_1 - g_2|^2 n_1 n_2 / (n_1 + n_2)^2. A pseudo-gradient adds up as many of them as the plan has steps.
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


def center_aggregator(text: str) -> Aggregator | None:
    """The aggregator of the points a center keeps; none for "center", the center itself."""
    return None if text == "center" else build_aggregator(text)


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
    counts, clean = counted(points, weights)
    pairs = squared_distances(clean, counts)
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
    return Surroundings(gap, squares, _squared_lengths(mix, clean))


def _squared_lengths(mix: Array, points: Tree) -> Array:
    """(centers,) the squared length of every mix of the points, from their products."""
    rows = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(points)]
    exact = jax.lax.Precision.HIGHEST
    gram = sum(jnp.matmul(leaf, leaf.T, precision=exact) for leaf in rows)
    return jnp.maximum((jnp.matmul(mix, gram, precision=exact) * mix).sum(1), 0.0)


class KeptPoints(NamedTuple):
    """Points of clients, which of them every center keeps, and which centers are asked for."""

    points: Weights  # (points, ...)
    weights: Array  # (points,)
    kept: Array  # (centers, points)
    asked: Array  # (centers,)


def robust_centers(average: Aggregator | None, group: KeptPoints, plain: Weights, uids: Array, key: Key) -> Weights:
    """The aggregates of kept points in the place of ``plain`` centers, where that is asked for.

    Statistics are the medians of the kept ones in any case: distances are those of params alone.
    """
    centers = _replace_kept(average, group, plain, uids, key)
    if not jax.tree.leaves(group.points.stats):
        return centers
    stats, nobody = Weights((), group.points.stats), jnp.arange(len(group.weights))
    only = group._replace(points=stats)
    found = _replace_kept(build_aggregator("median"), only, Weights((), centers.stats), nobody, jax.random.key(0))
    return centers._replace(stats=found.stats)


def _replace_kept(average: Aggregator | None, group: KeptPoints, plain: Weights, uids: Array, key: Key) -> Weights:
    """For every center that is asked for and keeps any, the aggregate of the points it keeps."""
    if average is None:
        return plain
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), group.points)
    wanted = group.asked & group.kept.any(1)

    # Centers go one by one: mostly very few are asked for.
    def aggregate(job: tuple[Array, Array]) -> Weights:
        own, wanted = job
        mine = jnp.where(own, group.weights, 0.0)
        return jax.lax.cond(wanted, lambda: average(group.points, mine, uids, key), lambda: blank)

    found = jax.lax.map(aggregate, (group.kept, wanted))
    return tree.choose_rows(wanted, found, plain)


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


def largest_clusters(label: Array, number: int) -> Array:
    """One client of each of the ``number`` largest clusters."""
    sizes = (label[:, None] == jnp.arange(len(label))[None]).sum(0)
    return jnp.argsort(-sizes, stable=True)[: min(number, len(label))]


class OfferedModels(NamedTuple):
    """A client's own model; for newcomers, one of each of the largest clusters."""

    own: Weights
    known: Array
    label: Array
    others: Weights  # (candidates, ...)
    labels: Array  # (candidates,)

    def serve(self, model: Model, data: Data) -> Weights:
        """The own model, or for a newcomer the best on its training rows."""
        return tree.choose(self.known, self.own, tree.at(self.others, self._best(model, data)))

    def cluster(self, model: Model, data: Data) -> Array:
        """The cluster of the model that the client is served."""
        return jnp.where(self.known, self.label, self.labels[self._best(model, data)])

    def _best(self, model: Model, data: Data) -> Array:
        """Which of the offered models has the least loss on the client's training rows."""
        return losses_of(model, self.others, data).argmin()


def gap_warnings(noise: Array, gap: Array, spread: Array) -> list[str]:
    """A warning where the gap between clusters is small against the noise of gradients; all are squares."""
    known = gap > 0
    if not bool(known.any()):
        return []
    # Medians over all, those without noise included: a few attackers do not decide.
    sigma, delta, similar = (float(jnp.sqrt(jnp.nanmedian(one[known]))) for one in (noise, gap, spread))
    ratio = delta / sigma if sigma > 0 else CLEAR
    if ratio >= CLEAR:
        return []
    return [
        f"clusters can hardly be told apart: Delta/sigma is about {ratio:.2g}, below {CLEAR:g} (gap Delta {delta:.3g}, "
        f"noise of a gradient sigma {sigma:.3g}, within a cluster A {similar:.3g}); larger batches lower sigma, and "
        "training alone or fedavg may serve as well"
    ]


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
