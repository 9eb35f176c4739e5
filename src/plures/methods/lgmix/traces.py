"""How fast a model can learn on a client's rows: traces of its tangent kernel, from features or from gradients.

    features    tr Cov(h): the variances of the last layer's inputs, summed; streamed over the batches of a training pass
    head        mean of |h|^2 + 1: the kernel of the last layer with its bias, per output
    ntk         mean of sum_q |grad_w f_q(x)|^2: the whole kernel
    hutchinson  E |grad_w sum_i v_i f(x_i)|^2, v_i = +-1: the same in the mean, one backward pass for all rows

Every trace is a mean over rows. Those of gradients exist for each layer as well, a layer being what shares a path
(head/kernel, head/bias).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from plures import tree
from plures.local import BLOCK
from plures.types import Data, Drawable, Key, Model, Tree, Weights

FROM_FEATURES, FROM_GRADIENTS = ("features", "head"), ("ntk", "hutchinson")
FEW, SQUARINGS = 8, 20


class FeatureMoments(NamedTuple):
    """Of the features of some rows: how many, their mean, and the sums of squares about it.

    ``cross`` are the sums of products about the mean, where all eigenvalues are asked for.
    """

    number: Array
    mean: Array
    squares: Array
    cross: Tree = ()

    @staticmethod
    def none(width: int, *, cross: bool = False) -> FeatureMoments:
        """The moments of no rows."""
        zeros = jnp.zeros(width)
        return FeatureMoments(jnp.zeros(()), zeros, zeros, jnp.zeros((width, width)) if cross else ())

    def with_rows(self, features: Array, mask: Array) -> FeatureMoments:
        """The moments with a batch more (Chan, Golub and LeVeque's update: nothing cancels)."""
        rows = features.reshape(-1, features.shape[-1])
        counts = jnp.repeat(mask, rows.shape[0] // mask.shape[0])
        number = counts.sum().astype(jnp.float32)
        mean = jnp.where(counts[:, None], rows, 0.0).sum(0) / jnp.maximum(number, 1)
        around = jnp.where(counts[:, None], rows - mean, 0.0)
        total = self.number + number
        apart, share = mean - self.mean, number / jnp.maximum(total, 1)
        cross: Tree = ()
        if not isinstance(self.cross, tuple):
            cross = self.cross + around.T @ around + self.number * share * jnp.outer(apart, apart)
        squares = self.squares + jnp.square(around).sum(0) + self.number * share * jnp.square(apart)
        return FeatureMoments(total, self.mean + share * apart, squares, cross)


def trace_of(moments: FeatureMoments, *, centered: bool, normalized: bool, drop_smallest: bool = False) -> Array:
    """The trace that some features have: of their covariance, or with ``centered`` false of their second moments.

    ``normalized`` divides it by the mean of |h|^2, which makes it free of the features' scale. ``drop_smallest`` leaves the least
    eigenvalue out, as the published code does.

    >>> moments = FeatureMoments.none(1).with_rows(jnp.array([[1.0], [3.0]]), jnp.array([True, True]))
    >>> [float(trace_of(moments, centered=one, normalized=False)) for one in (True, False)]
    [1.0, 5.0]
    """
    count = jnp.maximum(moments.number, 1)
    around, middle = moments.squares.sum() / count, jnp.square(moments.mean).sum()
    found = around if centered else around + middle
    if drop_smallest:
        matrix = moments.cross / count
        matrix = matrix if centered else matrix + jnp.outer(moments.mean, moments.mean)
        found = found - least_eigenvalue(matrix)
    return found / jnp.maximum(around + middle, 1e-30) if normalized else found


def least_eigenvalue(matrix: Array) -> Array:
    """The least eigenvalue of a matrix without negative ones, to about a millionth of its trace.

    By squaring I - matrix / trace again and again: products alone, for LAPACK's threads and XLA's can block each other on a CPU.

    >>> round(float(least_eigenvalue(jnp.diag(jnp.array([3.0, 0.5, 2.0])))), 4)
    0.5
    """
    exact = jax.lax.Precision.HIGHEST
    total = jnp.maximum(jnp.trace(matrix), 1e-30)

    def square(_: Array, power: Array) -> Array:
        found = jnp.matmul(power, power, precision=exact)
        return found / jnp.maximum(jnp.abs(found).max(), 1e-30)

    power = jax.lax.fori_loop(0, SQUARINGS, square, jnp.eye(len(matrix)) - matrix / total)
    along = power[:, jnp.square(power).sum(0).argmax()]
    quotient = jnp.matmul(jnp.matmul(matrix, along, precision=exact), along, precision=exact)
    return jnp.maximum(quotient / jnp.maximum(jnp.square(along).sum(), 1e-30), 0.0)


def feature_width(model: Model, rows: Drawable, weights: Weights) -> int:
    """How many features the model has."""
    assert model.features is not None
    return int(jax.eval_shape(model.features, weights, rows.take(jnp.arange(1)).x).shape[-1])


def layers_of(params: Tree) -> list[str]:
    """The names of the layers, in the order of their leaves: "head" of head/kernel and head/bias."""
    return list(dict.fromkeys(layer_of(path) for path in tree.paths(params)))


def layer_of(path: str) -> str:
    """The layer of a leaf: its path without the leaf's own name."""
    return path.rpartition("/")[0]


def gradient_traces(
    model: Model, rule: str, key: Key, weights: Weights, data: Data, *, probes: int
) -> dict[str, Array]:
    """For every layer, the trace of its part of the tangent kernel on the client's train rows, per row; in evaluation mode."""
    rows = data.train
    size = max(min(BLOCK, rows.capacity), 1)
    names = layers_of(weights.params)
    blank = dict.fromkeys(names, jnp.zeros(()))

    def outputs(params: Tree, x: Array) -> Array:
        return model.apply(weights._replace(params=params), x)

    def add(block: Array, total: dict[str, Array]) -> dict[str, Array]:
        batch = rows.take(block * size + jnp.arange(size))
        if rule == "ntk":
            found = _per_row(outputs, weights.params, batch.x, batch.mask)
        else:
            found = _by_probes(outputs, jax.random.fold_in(key, block), weights.params, batch.x, batch.mask, probes)
        by_layer = dict(blank)
        for path, value in zip(tree.paths(weights.params), jax.tree.leaves(found), strict=True):
            by_layer[layer_of(path)] += value
        return {name: total[name] + by_layer[name] / jnp.maximum(rows.count, 1) for name in names}

    return jax.lax.fori_loop(0, (rows.count + size - 1) // size, add, blank)


def _per_row(outputs: Any, params: Tree, x: Array, mask: Array) -> Tree:
    """For every leaf of the params, the squared gradients of all outputs, summed over the rows."""

    def one(row: Array, counts: Array) -> Tree:
        gradients = jax.jacrev(lambda now: outputs(now, row[None])[0])(params)
        return jax.tree.map(lambda leaf: jnp.where(counts, jnp.square(leaf).sum(), 0.0), gradients)

    # A few rows at a time: gradients of every output by every weight are large.
    found = jax.lax.map(lambda row: one(*row), (x, mask), batch_size=FEW)
    return jax.tree.map(lambda leaf: leaf.sum(0), found)


def _by_probes(outputs: Any, key: Key, params: Tree, x: Array, mask: Array, probes: int) -> Tree:
    """For every leaf of the params, the mean square of gradients of outputs with random signs."""

    def one(key: Key) -> Tree:
        found, back = jax.vjp(lambda now: outputs(now, x), params)
        signs = jax.random.rademacher(key, found.shape, found.dtype)
        (gradients,) = back(jnp.where(mask.reshape(-1, *(1,) * (found.ndim - 1)), signs, 0.0))
        return jax.tree.map(lambda leaf: jnp.square(leaf).sum(), gradients)

    found = jax.vmap(one)(jax.random.split(key, probes))
    return jax.tree.map(lambda leaf: leaf.mean(0), found)
