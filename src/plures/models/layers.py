"""Layers of flax.linen that stay fast and right with a separate model per client, and a head on a body.

A convolution is a matrix product (a library convolution becomes a slow grouped one under ``vmap``). Batch norm counts
the rows that its mask counts, and keeps its statistics where there are none.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from plures.errors import BadValue
from plures.models.build import Task, from_flax
from plures.models.conv import conv2d, patches_of
from plures.types import Model

FEW_CHANNELS = 8


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


class Headed(nn.Module):
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


def headed(
    body: nn.Module, shape: tuple[int, ...], num_outputs: int, task: Task, dtype: Any = jnp.float32
) -> Model:
    """The model of a body with a head on it.

    The parts "body" and "head" share nothing and are all of it; the body's normalization layers, with their
    statistics, are also the part "norm".
    """
    parts = {"body": ("params/body/*", "stats/body/*"), "head": ("params/head/*",)}
    module = Headed(body, num_outputs)
    return from_flax(module, shape=shape, task=task, parts=parts, features="features", dtype=dtype)


def image(x: Array) -> Array:
    """Rows of (height, width) or (height, width, channels) as (rows, height, width, channels) floats."""
    return x.reshape(*x.shape[:3], -1).astype(jnp.float32)


def check_image(shape: tuple[int, ...], smallest: int) -> None:
    """Refuse a shape that is no image, or one less than ``smallest`` high or wide."""
    if len(shape) not in (2, 3) or min(shape) < 1 or min(shape[:2]) < smallest:
        wanted = f"an image (height, width) or (height, width, channels), {smallest}x{smallest} or larger"
        raise BadValue("shape", shape, wanted)
