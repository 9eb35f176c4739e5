"""Convolution, pooling and dropout that stay fast with a separate model per client.

A library convolution with per-client kernels becomes a grouped one under ``vmap``, and its gradient is slow inside
loops on a CPU. Everything here is slices, element-wise work and matrix products.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from plures.errors import BadValue
from plures.types import Key

FEW_TAPS = 32


def conv2d(x: Array, kernel: Array, bias: Array | None = None) -> Array:
    """The valid convolution with stride 1 of (batch, height, width, channels) images, plus a bias.

    ``kernel`` is (rows, columns, channels, features). Leave the bias out to add it after a max-pool, where it
    costs a quarter.
    """
    if bias is None:
        return _conv(x, kernel)
    if math.prod(kernel.shape[:3]) < FEW_TAPS:
        # With few taps the bias is cheapest as one tap more: its gradient then comes with the kernel's.
        patches = patches_of(x, kernel.shape[:2])
        ones = jnp.ones((*patches.shape[:-1], 1), x.dtype)
        taps = jnp.concatenate([_flat(kernel), bias[None]])
        return _conv(jnp.concatenate([patches, ones], axis=-1), taps[None, None])
    return _conv(x, kernel) + bias


def patches_of(x: Array, size: tuple[int, ...]) -> Array:
    """The window at each place, flattened: (batch, height, width, rows * columns * channels)."""
    height, width = x.shape[1] - size[0] + 1, x.shape[2] - size[1] + 1
    windows = [x[:, i : i + height, j : j + width] for i in range(size[0]) for j in range(size[1])]
    return jnp.concatenate(windows, axis=-1) if len(windows) > 1 else windows[0]


def max_pool2(x: Array) -> Array:
    """The maxima of 2x2 blocks; an odd last row or column is dropped.

    The gradient goes to the first maximum of a block.
    """
    rows, columns = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    return _pool(x[:, :rows, :columns])


def dropout(key: Key, x: Array, keep: float) -> Array:
    """x / keep where a random mask keeps it, zero elsewhere; ``keep`` is rounded to 1/256.

    One random byte per number, four of them from each 32-bit draw.
    """
    threshold = round(keep * 256)
    if not 0 < threshold <= 256:
        raise BadValue("keep", keep, "a number in [1/256, 1]")
    if threshold == 256:
        return x
    words = jax.random.bits(key, (-(-x.size // 4),), jnp.uint32)
    luck = lax.bitcast_convert_type(words, jnp.uint8).reshape(-1)[: x.size].reshape(x.shape)
    return jnp.where(luck < threshold, x * (256 / threshold), 0)


@jax.custom_vjp
def _conv(x: Array, kernel: Array) -> Array:
    return patches_of(x, kernel.shape[:2]) @ _flat(kernel)


def _conv_forward(x: Array, kernel: Array) -> tuple[Array, Any]:
    patches = patches_of(x, kernel.shape[:2])
    return patches @ _flat(kernel), (x, kernel, patches)


def _conv_backward(saved: Any, grad: Array) -> tuple[Array, Array]:
    x, kernel, patches = saved
    to_patches = partial(patches_of, size=kernel.shape[:2])
    (grad_x,) = jax.linear_transpose(to_patches, x)(grad @ _flat(kernel).T)
    # Features first: about a fifth faster on a CPU than patches first.
    by_feature = grad.reshape(-1, grad.shape[-1]).T @ patches.reshape(-1, patches.shape[-1])
    return grad_x, by_feature.T.reshape(kernel.shape)


_conv.defvjp(_conv_forward, _conv_backward)


def _flat(kernel: Array) -> Array:
    return kernel.reshape(-1, kernel.shape[-1])


def _corners(x: Array) -> list[Array]:
    """Four strided views, each with one number of every 2x2 block."""
    return [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]


@jax.custom_vjp
def _pool(x: Array) -> Array:
    a, b, c, d = _corners(x)
    return jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))


def _pool_forward(x: Array) -> tuple[Array, tuple[Array, Array]]:
    top = _pool(x)
    return top, (x, top)


def _pool_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array]:
    x, top = saved
    free, routed = jnp.ones(top.shape, bool), []
    for corner in _corners(x):
        hit = free & (corner == top)
        free = free & ~hit
        routed.append(jnp.where(hit, grad, 0))
    batch, height, width, channels = grad.shape
    rows = [jnp.stack(routed[:2], axis=3), jnp.stack(routed[2:], axis=3)]
    return (jnp.stack(rows, axis=2).reshape(batch, 2 * height, 2 * width, channels),)


_pool.defvjp(_pool_forward, _pool_backward)


def check_image(shape: tuple[int, ...], smallest: int) -> None:
    """Refuse a shape that is no image, or one less than ``smallest`` high or wide."""
    if len(shape) not in (2, 3) or min(shape) < 1 or min(shape[:2]) < smallest:
        wanted = f"an image (height, width) or (height, width, channels), {smallest}x{smallest} or larger"
        raise BadValue("shape", shape, wanted)
