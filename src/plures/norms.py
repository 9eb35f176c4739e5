"""What is done with normalization layers: a policy that any method can be given, and that its record tells.

    share        scales, shifts and running statistics travel and are averaged like all else
    local        none of them travels: every client trains its own (FedBN, Li et al., arXiv 2102.07623)
    affine       scales and shifts are shared, running statistics stay with the client (SiloBN, Andreux et al., arXiv 2008.07424)
    recalibrate  all is shared, and statistics are computed from the client's own rows when it is served

A client that never trained has no statistics of its own; with "local" and "affine" it is served with those of its own rows
under the model it is offered, as with "recalibrate". Group norm has no statistics: for it, "affine" and "recalibrate" are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.parting import STATISTICS, in_models, parted
from plures.types import Data, Drawable, Key, Method, Model, Tree, Weights

POLICIES = ("share", "local", "affine", "recalibrate")
SAID = {
    "share": "shared",
    "local": "private",
    "affine": "scales and shifts shared, statistics private",
    "recalibrate": "shared, statistics from the client's own rows",
}
BLOCK = 256


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
    shape = jax.eval_shape(model.init, jax.random.key(0))
    have = [name for name, patterns in model.parts.items() if any(tree.matches(shape, patterns))]
    if "norm" not in have:
        said = ", ".join(have) or "no named parts"
        raise Unsupported(
            f"{who or f'norm={policy}'} needs a model with normalization layers; this one has: {said}"
        )
    if policy != "local" and not jax.tree.leaves(shape.stats):
        raise Unsupported(
            f"norm={policy} is about running statistics; this model's normalization keeps none: use local"
        )


def has_norm(model: Model) -> bool:
    """Whether the model has normalization layers."""
    shape = jax.eval_shape(model.init, jax.random.key(0))
    return any(tree.matches(shape, model.parts.get("norm", ())))


def has_statistics(model: Model) -> bool:
    """Whether the model keeps running statistics."""
    return bool(jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)).stats))


def nonnegative(weights: Weights) -> Weights:
    """The weights with no running variance below 0: updates added to one can lead there, averages cannot."""
    if not jax.tree.leaves(weights.stats):
        return weights
    leaves, structure = jax.tree.flatten(weights.stats)
    names = tree.paths(weights.stats)
    kept = [jnp.maximum(leaf, 0) if "var" in name else leaf for name, leaf in zip(names, leaves, strict=True)]
    return weights._replace(stats=jax.tree.unflatten(structure, kept))


def recalibrated(
    model: Model, key: Key, weights: Weights, rows: Drawable, *, wanted: Array | bool = True
) -> Weights:
    """The weights with the statistics of these rows in place of running ones; unchanged without rows or if not wanted.

    A training pass moves statistics s to  m s + (1 - m) b, b being those of its batch: passes from s = 0 and s = 1 tell m and b,
    whatever the model. Several blocks of rows are averaged by their rows.
    """
    size = max(min(BLOCK, rows.capacity), 1)
    zeros = tree.zeros_like(weights.stats)
    wanted = jnp.asarray(wanted) & (jnp.asarray(rows.count) > 0)

    def add(block: Array, total: Tree) -> Tree:
        batch = rows.take(block * size + jnp.arange(size))
        part = batch.mask.sum() / jnp.maximum(rows.count, 1)

        def passed(stats: Tree) -> Tree:
            return model.forward(key, weights._replace(stats=stats), batch.x, batch.mask)[1]

        def one(so_far: Array, low: Array, high: Array) -> Array:
            return so_far + part * low / (1 - (high - low))  # high - low is m

        return jax.tree.map(one, total, passed(zeros), passed(jax.tree.map(jnp.ones_like, zeros)))

    blocks = jnp.where(wanted, (rows.count + size - 1) // size, 0)
    found = jax.lax.fori_loop(0, blocks, add, zeros)
    return tree.choose(wanted, weights._replace(stats=found), weights)


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
