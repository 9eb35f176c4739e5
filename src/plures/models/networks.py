"""Models of flax.linen: layers, bodies and a head on them; a module of its own, so that flax is loaded when one is built.

The layers stay fast and right with a separate model per client. A convolution is a matrix product (a library
convolution becomes a slow grouped one under ``vmap``). Batch norm counts the rows that its mask counts, and keeps its
statistics where there are none.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from plures.models.build import Task, from_flax
from plures.models.conv import conv2d, max_pool2, patches_of
from plures.types import Model

FEW_CHANNELS = 8
GROUPS, COLOR_WIDTH = 8, 128
MOTION_TIMES, MOTION_WIDTH = 9, 64


class Conv(nn.Module):
    """A convolution with stride 1 that keeps height and width: zeros all around, ``size`` being odd."""

    features: int
    size: tuple[int, int]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """(rows, height, width, channels) -> (rows, height, width, features)."""
        kernel = self.param("kernel", nn.initializers.he_normal(), (*self.size, x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        rows, columns = (one // 2 for one in self.size)
        x = jnp.pad(x, ((0, 0), (rows, rows), (columns, columns), (0, 0)))
        if x.shape[-1] < FEW_CHANNELS:
            # Windows in two steps, columns before rows: faster on a CPU where channels are few.
            x, kernel = patches_of(x, (1, self.size[1])), kernel.reshape(self.size[0], 1, -1, self.features)
        return conv2d(x, kernel, bias)


def dense(features: int) -> nn.Dense:
    """A dense layer with the He-normal kernel that suits a ReLU after it."""
    return nn.Dense(features, kernel_init=nn.initializers.he_normal())


class BatchNorm(nn.BatchNorm):
    """Batch norm with PyTorch's defaults; rows with a false mask do not count.

    Running variances are those of the rows, divided by their number (PyTorch divides by one less). Where no row
    counts the statistics stay, and the outputs are those of all rows: finite, for nobody to use.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5

    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:  # type: ignore[override]
        """Normalize by the rows that count when training, else by the running statistics."""
        if not train or mask is None:
            return super().__call__(x, use_running_average=not train)
        some = mask.any()
        before: dict[str, Array] = {name: self.get_variable("batch_stats", name) for name in ("mean", "var")}
        counted = (mask | ~some).reshape(-1, *(1,) * (x.ndim - 1))
        outputs = super().__call__(x, use_running_average=False, mask=counted)
        for name, old in before.items():
            self.put_variable("batch_stats", name, jnp.where(some, self.get_variable("batch_stats", name), old))
        return outputs


class BodyWithHead(nn.Module):
    """A body, called as ``body(x, train, mask)``, and a dense head on what comes out of it, the features."""

    body: nn.Module
    num_outputs: int

    def setup(self) -> None:
        """The head."""
        self.head = nn.Dense(self.num_outputs)

    def features(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """The inputs of the head."""
        return self.body(x, train, mask)

    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """The outputs."""
        return self.head(self.features(x, train, mask))


def with_head(
    body: nn.Module, shape: tuple[int, ...], num_outputs: int, task: Task, dtype: Any = jnp.float32
) -> Model:
    """The model of a body with a head on it.

    The parts "body" and "head" share nothing and are all of it; the body's normalization layers, with their
    statistics, are also the part "norm".
    """
    parts = {"body": ("params/body/*", "stats/body/*"), "head": ("params/head/*",)}
    module = BodyWithHead(body, num_outputs)
    return from_flax(module, shape=shape, task=task, parts=parts, features="features", dtype=dtype)


def image(x: Array) -> Array:
    """Rows of (height, width) or (height, width, channels) as (rows, height, width, channels) floats."""
    return x.reshape(*x.shape[:3], -1).astype(jnp.float32)


class ColorBody(nn.Module):
    """Three convolutions and a dense layer; group norm after each convolution."""

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """Images -> (rows, 128)."""
        x = jax.nn.relu(_block(image(x), 32))
        # ReLU after the pool: the same numbers, a quarter of the work.
        x = jax.nn.relu(max_pool2(_block(x, 32)))
        x = jax.nn.relu(max_pool2(_block(x, 64)))
        return jax.nn.relu(dense(COLOR_WIDTH)(x.reshape(x.shape[0], -1)))


def _block(x: Array, width: int) -> Array:
    """A convolution and its group norm, to be called in a compact method."""
    return nn.GroupNorm(num_groups=GROUPS)(Conv(width, (3, 3))(x))


class DigitsBody(nn.Module):
    """Three convolutions and two dense layers of these ``widths``."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """Images -> features as many as the last width."""
        x = image(x)
        for i, width in enumerate(self.widths[:3]):
            x = BatchNorm()(Conv(width, (5, 5))(x), train, mask)
            # ReLU after the pool: the same numbers, a quarter of the work.
            x = jax.nn.relu(max_pool2(x) if i < 2 else x)
        x = x.reshape(x.shape[0], -1)
        for width in self.widths[3:]:
            x = jax.nn.relu(BatchNorm()(dense(width)(x), train, mask))
        return x


class MotionBody(nn.Module):
    """Convolutions of these widths over 9 times each, and a dense layer of 64."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """(rows, times, channels) -> (rows, 64)."""
        x = x[:, :, None].astype(jnp.float32)  # (rows, times, 1, channels)
        for width in self.widths:
            x = BatchNorm()(Conv(width, (MOTION_TIMES, 1))(x), train, mask)
            x = jax.nn.relu(halve_times(x))
        return jax.nn.relu(BatchNorm()(dense(MOTION_WIDTH)(x.reshape(x.shape[0], -1)), train, mask))


def halve_times(x: Array) -> Array:
    """The larger of every two times; an odd last one is dropped."""
    times = x.shape[1] // 2 * 2
    return jnp.maximum(x[:, 0:times:2], x[:, 1:times:2])


class PerceptronBody(nn.Module):
    """Dense layers, each with batch norm and ReLU."""

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """(rows, ...) -> (rows, last width)."""
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(BatchNorm()(dense(width)(x), train, mask))
        return x


class CharacterBody(nn.Module):
    """An embedding of ``dim`` numbers, and a GRU that reads the text from its start."""

    num_symbols: int
    dim: int
    hidden: int

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """(rows, length) whole numbers -> (rows, length, hidden)."""
        known = nn.Embed(self.num_symbols, self.dim)(x)
        states: Any = nn.RNN(nn.GRUCell(self.hidden))(known)
        return states
