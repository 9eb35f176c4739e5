"""What a camera, a scanner or a pen may do to images: functions of (images, strength) on values in [0, 1].

Images are (rows, height, width, channels) here, whatever shape a federation stores them in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from plures.data.federation import Federation
from plures.errors import Unsupported
from plures.types import Key

Images = NDArray[Any]
BLOCK = 8192


class Chance(NamedTuple):
    """Where random images come from: a key, and per row the client's uid and the row's place among its rows."""

    key: Key
    uid: NDArray[np.int64]
    place: NDArray[np.int64]

    def normal(self, height: int, width: int) -> Images:
        """A standard normal image per row; a row's draw hangs on its client and place, not on its neighbors."""

        def one(uid: Any, place: Any) -> Any:
            own = jax.random.fold_in(jax.random.fold_in(self.key, uid), place)
            return jax.random.normal(own, (height, width))

        blocks = [slice(first, first + BLOCK) for first in range(0, len(self.uid), BLOCK)]
        drawn = [jax.vmap(one)(jnp.asarray(self.uid[own]), jnp.asarray(self.place[own])) for own in blocks]
        return np.concatenate([np.asarray(block) for block in drawn])[..., None]


Change = Callable[[Images, float, Chance], Images]


def as_images(federation: Federation, what: str) -> Images:
    """The inputs as (rows, height, width, channels), or a refusal."""
    shape = federation.shape
    fine = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
    low, high = (federation.x.min(), federation.x.max()) if federation.x.size else (0, 0)
    in_unit = len(federation.x) and low >= -1e-6 and high <= 1 + 1e-6
    if not fine or federation.x.dtype.kind != "f" or not in_unit:
        found = f"inputs of shape {shape} from {low:g} to {high:g}"
        raise Unsupported(f"{what} needs images with values from 0 to 1, got {found}")
    return federation.x.reshape(len(federation.x), shape[0], shape[1], -1)


def none(images: Images, strength: float, chance: Chance) -> Images:
    """The images as they are."""
    return images


def invert(images: Images, strength: float, chance: Chance) -> Images:
    """Dark for light: at strength 1 a value v becomes 1 - v, below that it goes part of the way."""
    return images + strength * (1.0 - 2.0 * images)


def blur(images: Images, strength: float, chance: Chance) -> Images:
    """A Gaussian blur; at strength 1 its deviation is a sixteenth of the image's height."""
    from scipy import ndimage

    width = strength * images.shape[1] / 16.0
    return ndimage.gaussian_filter(images, (0, width, width, 0), mode="nearest")


def contrast(images: Images, strength: float, chance: Chance) -> Images:
    """Less contrast around middle gray: distances from 0.5 shrink to 1 / (1 + 2 strength)."""
    return 0.5 + (images - 0.5) / (1.0 + 2.0 * strength)


def background(images: Images, strength: float, chance: Chance) -> Images:
    """The image against a smooth random pattern: |image - strength * pattern|, as MNIST-M is made with photographs."""
    height, width = images.shape[1:3]
    coarse = chance.normal(-(-height // 4) + 1, -(-width // 4) + 1)
    rows, columns = np.arange(height) / 4.0, np.arange(width) / 4.0
    pattern = _between(_between(coarse, rows, 1), columns, 2)
    return np.abs(images - strength / (1.0 + np.exp(-2.0 * pattern)))


def noise(images: Images, strength: float, chance: Chance) -> Images:
    """Gaussian noise on every pixel (deviation 0.3 at strength 1), cut off at 0 and 1."""
    return np.clip(images + 0.3 * strength * chance.normal(*images.shape[1:3]), 0.0, 1.0)


def resolution(images: Images, strength: float, chance: Chance) -> Images:
    """A coarser grid: pixels averaged over 1 + strength neighbors in each direction, then blown up again."""
    for axis in (1, 2):
        size = images.shape[axis]
        coarse = max(round(size / (1.0 + strength)), 1)
        images = np.moveaxis(np.moveaxis(images, axis, -1) @ _coarsening(size, coarse).T, -1, axis)
    return images


def rotation(images: Images, strength: float, chance: Chance) -> Images:
    """Turned by 30 degrees times the strength."""
    return rotate(images, 30.0 * strength)


_CHANGES: tuple[Change, ...] = (none, invert, blur, contrast, background, noise, resolution, rotation)
KINDS = {change.__name__: change for change in _CHANGES}


def rotate(images: Images, degrees: float) -> Images:
    """Turned counterclockwise: exactly for quarter turns of square images, else interpolated with black corners."""
    quarters = degrees / 90.0
    if quarters == round(quarters) and images.shape[1] == images.shape[2]:
        return np.rot90(images, int(quarters) % 4, axes=(1, 2))
    from scipy import ndimage

    turned = ndimage.rotate(images, degrees, axes=(2, 1), reshape=False, order=1, mode="constant")
    return np.clip(turned, 0.0, 1.0)


def rotate_each(images: Images, degrees: NDArray[Any]) -> Images:
    """Every image turned by its own angle."""
    turned = images.copy()
    for angle in np.unique(degrees):
        mine = degrees == angle
        turned[mine] = rotate(images[mine], float(angle))
    return turned


def _coarsening(size: int, coarse: int) -> NDArray[Any]:
    """(size, size): every pixel replaced by the mean of its cell of a grid of ``coarse`` cells."""
    cell = np.arange(size) * coarse // size
    same = (cell[:, None] == cell[None, :]).astype(np.float32)
    return same / same.sum(1, keepdims=True)


def _between(values: Images, places: NDArray[Any], axis: int) -> Images:
    """Values at fractional places along an axis, in a straight line between neighbors."""
    low = np.floor(places).astype(int)
    shape = [1] * values.ndim
    shape[axis] = len(places)
    part = (places - low).astype(values.dtype).reshape(shape)
    return np.take(values, low, axis) * (1.0 - part) + np.take(values, low + 1, axis) * part
