"""What is done with normalization layers: a policy that any method can be given, and that its record tells.

    share        scales, shifts and running statistics travel and are averaged like all else
    local        none of them travels: every client trains its own (FedBN, Li et al., arXiv 2102.07623)
    affine       scales and shifts are shared, running statistics stay with the client (SiloBN, Andreux et al., arXiv 2008.07424)
    recalibrate  all is shared, and statistics are computed from the client's own rows when it is served

A client that never trained has no statistics of its own; with "local" and "affine" it is served with those of its own rows
under the model it is offered, as with "recalibrate" (its scales and shifts are then untrained ones: with "local" nobody's ever
travel). Group norm has no statistics: for it, "affine" and "recalibrate" are refused.
"local" and "affine" are for methods whose uploads are updates of models; others are refused them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.keys import shuffled
from plures.parting import STATISTICS, in_models, parted, parts_of
from plures.types import Data, Key, Method, Model, Rows, Tree, Weights

POLICIES = ("share", "local", "affine", "recalibrate")
SAID = {
    "share": "shared",
    "local": "private",
    "affine": "scales and shifts shared, statistics private",
    "recalibrate": "shared, statistics from the client's own rows",
}
BLOCK, FEWEST = 256, 4


def normalized(base: Method, policy: str, *, who: str = "") -> Method:
    """The base with its model's normalization layers treated as the policy says; ``who`` asks for it, in messages."""
    check_policy(base.model, policy, who=who)
    if base.norm != "share":
        raise BadValue("norm", policy, f"share for a method that has a policy of its own ({base.norm})")
    if policy == "share":
        return base
    if policy == "local" and not has_statistics(base.model):
        return replace(parted(base, "norm"), norm=policy)

    def own(key: Key, weights: Weights, data: Data, new: Array) -> Weights:
        return recalibrated(base.model, key, weights, data.train, wanted=new)

    if policy != "recalibrate":
        return replace(parted(base, "norm" if policy == "local" else STATISTICS, welcome=own), norm=policy)

    def serve(key: Key, offer: Tree, private: Tree, data: Data) -> Tree:
        served = base.serve(key, offer, private, data)
        return in_models(
            base.model, served, lambda one: own(jax.random.fold_in(key, 1), one, data, jnp.asarray(True))
        )

    return replace(base, serve=serve, norm=policy)


def check_policy(model: Model, policy: str, *, who: str = "") -> None:
    """Refuse a policy that there is not, or that is about layers the model does not have."""
    if policy not in POLICIES:
        raise UnknownChoice("norm policy", policy, POLICIES)
    if policy == "share":
        return
    if not has_norm(model):
        said = ", ".join(parts_of(model)) or "no named parts"
        raise Unsupported(
            f"{who or f'norm={policy}'} needs a model with normalization layers; this one has: {said}"
        )
    if policy != "local" and not has_statistics(model):
        raise Unsupported(
            f"norm={policy} is about running statistics; this model's normalization keeps none: use local"
        )


def has_norm(model: Model) -> bool:
    """Whether the model has normalization layers."""
    return "norm" in parts_of(model)


def has_statistics(model: Model) -> bool:
    """Whether the model keeps running statistics."""
    return bool(jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)).stats))


def guarded(before: Weights, after: Weights) -> Weights:
    """``after`` with a tenth of what it was for every running variance that is not above 0.

    Updates that are added can lead there, averages of values cannot. A variance of 0 would be no better than a negative one:
    outputs are divided by its root.
    """
    if not jax.tree.leaves(after.stats):
        return after
    names, structure = tree.paths(after.stats), jax.tree.structure(after.stats)
    pairs = zip(names, jax.tree.leaves(before.stats), jax.tree.leaves(after.stats), strict=True)
    kept = [jnp.where(new > 0, new, 0.1 * old) if _leaf(name) == "var" else new for name, old, new in pairs]
    return after._replace(stats=jax.tree.unflatten(structure, kept))


def recalibrated(model: Model, key: Key, weights: Weights, rows: Rows, *, wanted: Array | bool = True) -> Weights:
    """The weights with the statistics of these rows in place of running ones, if that is wanted.

    They stay as they are for fewer than ``FEWEST`` rows, whose variances would tell nothing. A training pass moves statistics s to
    m s + (1 - m) b, b being those of its batch. So a pass from 0 gives (1 - m) b, a second one from there 1 + m times that: together they
    tell m and b, whatever the model. Rows come in random order, block by block; the variance between blocks counts.
    """
    size = max(min(BLOCK, rows.capacity), 1)
    zeros = tree.zeros_like(weights.stats)
    wanted = jnp.asarray(wanted) & (jnp.asarray(rows.count) >= FEWEST)

    def of_block(block: Array) -> tuple[Tree, Array]:
        place = block * size + jnp.arange(size)
        batch = rows.take(shuffled(key, jnp.minimum(place, jnp.maximum(rows.count - 1, 0)), rows.count))
        mask = place < rows.count

        def passed(stats: Tree) -> Tree:
            return model.forward(key, weights._replace(stats=stats), batch.x, mask)[1]

        low = passed(zeros)
        return jax.tree.map(_of_batch, low, passed(low)), mask.sum() / jnp.maximum(rows.count, 1)

    def add(block: Array, total: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        found, share = of_block(block)
        squares = jax.tree.map(jnp.square, found)
        return tree.step(total[0], share, found), tree.step(total[1], share, squares)

    blocks = jnp.where(wanted, (rows.count + size - 1) // size, 0)
    means, squares = jax.lax.fori_loop(0, blocks, add, (zeros, zeros))
    return tree.choose(wanted, weights._replace(stats=_with_spread(means, squares)), weights)


def _of_batch(low: Array, again: Array) -> Array:
    """The statistics of a batch from those after a pass from 0, and after a second pass from there."""
    size = jnp.abs(low).sum()
    kept = jnp.where(size > 0, jnp.abs(again).sum() / jnp.where(size > 0, size, 1.0) - 1, 0.0)  # m
    return low / (1 - kept)


def _with_spread(means: Tree, squares: Tree) -> Tree:
    """Statistics averaged over blocks, variances with that of the blocks' means."""
    names, structure = tree.paths(means), jax.tree.structure(means)
    mean_of, square_of = (dict(zip(names, jax.tree.leaves(one), strict=True)) for one in (means, squares))

    def one(name: str) -> Array:
        center = f"{name.rpartition('/')[0]}/mean"
        if _leaf(name) != "var" or center not in mean_of:
            return mean_of[name]
        return mean_of[name] + jnp.maximum(square_of[center] - jnp.square(mean_of[center]), 0.0)

    return jax.tree.unflatten(structure, [one(name) for name in names])


def _leaf(path: str) -> str:
    return path.rpartition("/")[2]


def norm_said(policy: str) -> str:
    """What is done with normalization layers by methods without a policy of their own, in a sentence."""
    return f"normalization layers: {SAID[policy]}"


def norms_said(norms: Mapping[str, str]) -> str:
    """What methods do with normalization layers, in a sentence.

    >>> norms_said({"fedavg": "share", "fedbn": "local", "local_only": "local"})
    'normalization layers: shared (fedavg); private (fedbn, local_only)'
    """
    groups: dict[str, list[str]] = {}
    for name, policy in norms.items():
        groups.setdefault(policy, []).append(name)
    return "normalization layers: " + "; ".join(
        f"{SAID[one]} ({', '.join(names)})" for one, names in groups.items()
    )
