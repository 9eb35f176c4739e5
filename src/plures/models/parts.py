"""Named parts of a model, and which of its leaves are private: what leaves a client, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.errors import UnknownChoice, Unsupported
from plures.types import Model, Tree, Weights

STATISTICS = "statistics"
"""The running statistics of normalization layers: a part of every model that has them."""


@dataclass(frozen=True)
class Parting:
    """Which leaves of a model are private; ``shape`` is one model's."""

    shape: Weights
    private: tuple[bool, ...]

    def own(self, weights: Weights) -> list[Array]:
        """The private leaves of a model."""
        return [leaf for leaf, kept in zip(_leaves(weights), self.private, strict=True) if kept]

    def sent(self, message: Tree) -> Tree:
        """The message with the private leaves of its models left out."""
        return self._changed(message, lambda lead: [None] * sum(self.private))

    def filled(self, message: Tree, own: list[Array]) -> Tree:
        """The message with ``own`` as the private leaves of all its models."""
        return self._changed(message, lambda lead: [jnp.broadcast_to(leaf, (*lead, *leaf.shape)) for leaf in own])

    def unmoved(self, message: Tree) -> Tree:
        """The message with zeros as the private leaves of its models: updates that change nothing."""
        own: list[Any] = self.own(self.shape)
        return self._changed(message, lambda lead: [jnp.zeros((*lead, *one.shape), one.dtype) for one in own])

    def _changed(self, message: Tree, new_leaves: Callable[[tuple[int, ...]], list[Any]]) -> Tree:
        """The message with new private leaves, made for the axes before those of one model."""
        structure: Any = jax.tree.structure(self.shape)
        shapes = [leaf.ndim for leaf in jax.tree.leaves(self.shape)]

        def one(node: Any) -> Any:
            if not isinstance(node, Weights) or _structure(node) != structure:
                return node
            leaves = _leaves(node)
            there = next(i for i, leaf in enumerate(leaves) if leaf is not None)
            lead = leaves[there].shape[: leaves[there].ndim - shapes[there]]
            new = iter(new_leaves(lead))
            whole = [next(new) if kept else leaf for leaf, kept in zip(leaves, self.private, strict=True)]
            if all(leaf is None for leaf in whole):
                raise Unsupported("all of this model is private, so nothing is shared; use local_only")
            return jax.tree.unflatten(structure, whole)

        return jax.tree.map(one, message, is_leaf=lambda node: isinstance(node, Weights) or node is None)


def _leaves(weights: Weights) -> list[Any]:
    return jax.tree.leaves(weights, is_leaf=lambda leaf: leaf is None)


def _structure(weights: Weights) -> Any:
    return jax.tree.structure(weights, is_leaf=lambda leaf: leaf is None)


def parting(model: Model, keep: str) -> Parting:
    """The parting that keeps a named part ("head", "norm", "statistics") private; refuses a part the model lacks."""
    shape = jax.eval_shape(model.init, jax.random.key(0))
    found = leaves_of_part(model, shape, keep)
    if all(found):
        raise Unsupported(f"all of this model is its {keep}: with that private, nothing is shared; use local_only")
    return Parting(shape, tuple(found))


def leaves_of_part(model: Model, shape: Weights, part: str) -> list[bool]:
    """For every leaf of the weights, whether it belongs to the part; refuses a part the model lacks."""
    if part not in parts_of(model):
        raise UnknownChoice("part of this model", part, parts_of(model))
    return tree.matches(shape, _patterns(model)[part])


def parts_of(model: Model) -> list[str]:
    """The names of the parts that the model has: those with leaves."""
    shape = jax.eval_shape(model.init, jax.random.key(0))
    return [name for name, wanted in _patterns(model).items() if any(tree.matches(shape, wanted))]


def _patterns(model: Model) -> dict[str, tuple[str, ...]]:
    return {**model.parts, STATISTICS: ("stats/*",)}
