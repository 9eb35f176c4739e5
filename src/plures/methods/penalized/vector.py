"""A part of a model as one vector, and what a client does with it: gradients, curvature, proximal steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from plures import tree
from plures.errors import require, require_choice
from plures.local import objective, sgd
from plures.types import Batch, Data, Key, Model, Plan, Tree, Weights

NORMS = ("whole", "layers")
NEWTON_MOST = 200  # params up to which "auto" is Newton: it needs the Hessian of every client
POWER_STEPS, POWER_ROWS = 10, 256
STEPS = 0.5 ** np.arange(12)

Risk: TypeAlias = Callable[[Array], Array]
"""The objective of one client as a function of the vector."""


class Rest(NamedTuple):
    """The weights around a part."""

    leaves: tuple[Array, ...]
    stats: Tree


@dataclass(frozen=True, eq=False)
class PartVector:
    """The params of a model that are personal, as a vector; the rest of the weights is fixed.

    A client's objective is f(x) = mean training loss + the model's own penalty + (ridge / 2) |x|^2.
    """

    model: Model
    name: str | None
    ridge: float

    @cached_property
    def shape(self) -> Weights:
        """The shapes of the model's weights."""
        shape: Weights = jax.eval_shape(self.model.init, jax.random.key(0))
        return shape

    @cached_property
    def chosen(self) -> list[bool]:
        """For every leaf of the params, whether it is in the part."""
        params = {"params": self.shape.params}
        if self.name is None:
            return [True] * len(jax.tree.leaves(params))
        found = {name: tree.matches(params, patterns) for name, patterns in self.model.parts.items()}
        require_choice("part of this model", self.name, [name for name, leaves in found.items() if any(leaves)])
        return found[self.name]

    @property
    def leaves(self) -> list[Any]:
        """The shapes of the leaves in the part."""
        return _kept(jax.tree.leaves(self.shape.params), self.chosen)

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(leaf.size for leaf in self.leaves)

    @property
    def whole(self) -> bool:
        """Whether all params are in the part."""
        return all(self.chosen)

    @property
    def convex(self) -> bool:
        """Whether the loss is known to be convex: it is in the params of a last layer behind fixed ones, or of a mean."""
        head = tree.matches({"params": self.shape.params}, self.model.parts.get("head", ()))
        linear = not self.model.parts and self.model.summary is not None
        return linear or all(inside for inside, mine in zip(head, self.chosen, strict=True) if mine)

    @property
    def layers(self) -> list[slice]:
        """Which numbers of the vector make up each layer: leaves of one parent."""
        names = _kept(tree.paths(self.shape.params), self.chosen)
        found: list[slice] = []
        stop, last = 0, None
        for name, leaf in zip(names, self.leaves, strict=True):
            layer, start = name.rpartition("/")[0], stop
            stop += leaf.size
            if found and layer == last:
                start = found.pop().start
            found.append(slice(start, stop))
            last = layer
        return found

    def blocks(self, norm: str) -> list[tuple[slice, float]]:
        """Slices and factors of the norms that are added up: |x|, or |x^l| / sqrt(dim_l) over layers."""
        if norm == "whole":
            return [(slice(0, self.size), 1.0)]
        return [(one, (one.stop - one.start) ** -0.5) for one in self.layers]

    def vector(self, weights: Weights) -> Array:
        """The part as a vector."""
        found = _kept(jax.tree.leaves(weights.params), self.chosen)
        return jnp.concatenate([leaf.astype(jnp.float32).reshape(-1) for leaf in found])

    def rest(self, weights: Weights) -> Rest:
        """The weights without the part."""
        leaves = jax.tree.leaves(weights.params)
        return Rest(tuple(leaf for leaf, mine in zip(leaves, self.chosen, strict=True) if not mine), weights.stats)

    def put(self, vector: Array, rest: Rest) -> Weights:
        """The weights with the vector as the part."""
        leaves, others, at = [], iter(rest.leaves), 0
        shapes, structure = jax.tree.flatten(self.shape.params)
        for shape, mine in zip(shapes, self.chosen, strict=True):
            if mine:
                leaves.append(vector[at : at + shape.size].reshape(shape.shape).astype(shape.dtype))
                at += shape.size
            else:
                leaves.append(next(others))
        return Weights(jax.tree.unflatten(structure, leaves), rest.stats)

    def risk(self, key: Key, rest: Rest, batch: Batch) -> Risk:
        """f on a batch as a function of the vector."""
        loss = objective(self.model)

        def at(vector: Array) -> Array:
            return loss(key, self.put(vector, rest), batch)[0] + 0.5 * self.ridge * vector @ vector

        return at

    def gradient(self, key: Key, weights: Weights, data: Data) -> Array:
        """The gradient of f at the weights, over all training rows; block by block where there are many."""
        one = Plan(steps=1, batch=None, lr=1.0)
        after, _ = sgd(key, weights, data, one, objective(self.model))
        here = self.vector(weights)
        found = here - self.vector(after) + self.ridge * here
        return jnp.where(jnp.asarray(data.train.count) > 0, found, 0.0)

    def largest_curvature(
        self, key: Key, weights: Weights, data: Data, *, iterations: Array | int = POWER_STEPS
    ) -> Array:
        """L: about the largest curvature of f at the weights, by power iterations on some of the rows."""
        rows = data.train.take(jnp.arange(min(max(data.train.capacity, 1), POWER_ROWS)))
        gradient, here = jax.grad(self.risk(key, self.rest(weights), rows)), self.vector(weights)

        def iterate(_: Array, direction: Array) -> Array:
            unit = direction / jnp.maximum(jnp.linalg.norm(direction), 1e-30)
            # Backwards twice: convolutions know no derivatives forwards.
            return jax.grad(lambda x: gradient(x) @ unit)(here)

        first = jax.random.normal(key, here.shape)
        return jnp.linalg.norm(jax.lax.fori_loop(0, iterations, iterate, first))

    def least_curvature(self) -> float:
        """mu: how strongly convex f is at least, by its penalties alone; the model's is taken as separable."""
        if self.model.penalty is None or self.size > NEWTON_MOST:
            return self.ridge
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.shape)
        penalty = self.model.penalty
        rest = self.rest(zeros)
        found = jax.hessian(lambda vector: penalty(self.put(vector, rest).params))(jnp.zeros(self.size))
        return self.ridge + max(float(jnp.diagonal(found).min()), 0.0)


def make_part(model: Model, name: str | None, ridge: float) -> PartVector:
    """The named part of a model, refused if the model lacks it; None is all of its params."""
    require(0 <= ridge < float("inf"), "ridge", ridge, "0 or more")
    part = PartVector(model, name, ridge)
    assert len(part.chosen) > 0
    return part


def newton(risk: Risk, start: Array, *, max_steps: int = 20) -> tuple[Array, Array]:
    """A minimum by Newton's method with steps halved until they go down enough (Armijo), and how many steps that took."""
    gradient_at, curvature_at = jax.grad(risk), jax.hessian(risk)
    sizes = jnp.asarray(STEPS, jnp.float32)

    def more(state: tuple[Array, Array, Array]) -> Array:
        return state[1] & (state[2] < max_steps)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, _, count = state
        gradient, value = gradient_at(x), risk(x)
        direction = downhill(curvature_at(x), gradient)
        drop = gradient @ direction
        tried = jax.vmap(lambda size: risk(x + size * direction))(sizes)
        # The last steps change the risk by less than float32 can tell.
        fine = tried <= value + 1e-4 * sizes * drop + 1e-6 * jnp.abs(value)
        size = jnp.where(fine.any(), sizes[fine.argmax()], 0.0)
        return x + size * direction, (size > 0) & (-drop > 1e-9 * jnp.abs(value)), count + 1

    found, _, made = jax.lax.while_loop(more, step, (start, jnp.asarray(True), jnp.zeros((), jnp.int32)))
    return found, made.astype(jnp.float32)


def downhill(curvature: Array, gradient: Array) -> Array:
    """Newton's direction; that of steepest descent where the curvature is not positive."""
    factor = jax.scipy.linalg.cho_factor(curvature)
    found = -jax.scipy.linalg.cho_solve(factor, gradient)
    return jnp.where(jnp.isfinite(found).all() & (found @ gradient < 0), found, -gradient)


def _kept(leaves: list[Any], chosen: list[bool]) -> list[Any]:
    return [leaf for leaf, mine in zip(leaves, chosen, strict=True) if mine]
