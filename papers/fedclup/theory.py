"""What is drawn for FedCLUP, and the exact expected error of its solutions, to be laid over measured ones.

For linear models the solution of

    min  sum_i p_i ( L_i(w_i) + (lam / 2) |w_g - w_i|^2 )

is linear in the targets, so that given the inputs its expected squared distance from the truth is known: with A_i the
Hessians, H_i = A_i + lam, G = sum p_i H_i^-1 A_i, and b_i = A_i w*_i + e_i where e_i has covariance (v / n) A_i,

    w_g = G^-1 sum p_i H_i^-1 b_i          w_i = H_i^-1 (b_i + lam w_g)

The bias comes from e = 0; the variance is a sum of traces. v is the noise of a target; for logistic regression v = 1 with
the Hessian at the truth, which holds for many rows only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from plures.data.worlds.offsets import offset_truth, spectrum
from plures.types import Key

Floats = NDArray[np.float64]


class Draw(NamedTuple):
    """Inputs (repeats, clients, rows, dim), targets or labels (repeats, clients, rows), truth (repeats, clients, dim)."""

    x: Floats
    y: Floats
    truth: Floats

    @property
    def hessians(self) -> Floats:
        """(repeats, clients, dim, dim) mean of x x'."""
        return np.einsum("...ri,...rj->...ij", self.x, self.x) / self.x.shape[-2]

    @property
    def products(self) -> Floats:
        """(repeats, clients, dim) mean of y x."""
        return np.einsum("...ri,...r->...i", self.x, self.y) / self.x.shape[-2]

    def error(self, models: Floats) -> Floats:
        """The mean over clients of the squared distance of (..., clients, dim) models from the truth."""
        return np.square(models - self.truth).sum(-1).mean(-1)


class World(NamedTuple):
    """How a draw is made: clients, training rows, numbers of a model, and the eigenvalues of inputs."""

    clients: int = 20
    rows: int = 50
    dim: int = 5
    least: float = 1.0
    most: float = 1.0


def linear_draw(key: Key, world: World, radius: float, repeats: int, sigma: float = 1.0) -> Draw:
    """Linear regressions with offsets of norm ``radius``, as in the world ``linear_offsets``."""
    x, truth, key_noise = _inputs(key, world, radius, repeats)
    noise = np.asarray(jax.random.normal(key_noise, x.shape[:-1]), float)
    return Draw(x, np.einsum("...ri,...i->...r", x, truth) + sigma * noise, truth)


def logistic_draw(key: Key, world: World, radius: float, repeats: int) -> Draw:
    """Logistic regressions with offsets of norm ``radius``: labels 0 and 1 are drawn, as in ``logistic_offsets``."""
    x, truth, key_labels = _inputs(key, world, radius, repeats)
    luck = np.asarray(jax.random.uniform(key_labels, x.shape[:-1]), float)
    return Draw(x, (luck < _chance(x, truth)).astype(float), truth)


def _inputs(key: Key, world: World, radius: float, repeats: int) -> tuple[Floats, Floats, Key]:
    """Inputs and truths; the same for every radius but for the lengths of the offsets."""
    key_truth, key_inputs, key_rest = jax.random.split(key, 3)
    truth = np.stack(
        [
            offset_truth(one, world.clients, world.dim, radius=radius, center=1.0)
            for one in jax.random.split(key_truth, repeats)
        ]
    )
    shape = (repeats, world.clients, world.rows, world.dim)
    scale = np.sqrt(spectrum(world.dim, world.least, world.most))
    return np.asarray(jax.random.normal(key_inputs, shape), float) * scale, truth, key_rest


def _chance(x: Floats, truth: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.einsum("...ri,...i->...r", x, truth)))


def logistic_hessians(draw: Draw) -> Floats:
    """(repeats, clients, dim, dim) Hessians of the logistic losses at the truth."""
    chance = _chance(draw.x, draw.truth)
    return np.einsum("...ri,...r,...rj->...ij", draw.x, chance * (1 - chance), draw.x) / draw.x.shape[-2]


def expected_error(hessians: Floats, truth: Floats, variance: float, lam: float) -> Floats:
    """The expected mean squared distance from the truth given the inputs, uniform weights; ``variance`` is v / n.

    ``hessians`` are (..., clients, dim, dim) and ``truth`` (..., clients, dim).
    """
    number, dim = truth.shape[-2:]
    inverse = np.linalg.inv(hessians + lam * np.eye(dim))  # H^-1
    share = inverse @ hessians
    joint = np.linalg.inv(share.mean(-3))[..., None, :, :]  # G^-1
    own = np.einsum("...ij,...j->...i", share, truth)
    common = np.einsum("...ij,...j->...i", joint[..., 0, :, :], own.mean(-2))
    bias = own + lam * np.einsum("...ij,...j->...i", inverse, common[..., None, :]) - truth
    alone = share @ inverse  # H^-1 A H^-1
    pull = inverse @ joint
    together = pull @ (alone.mean(-3) / number)[..., None, :, :] @ np.swapaxes(pull, -1, -2)
    both = alone @ joint @ inverse
    spread = _trace(alone) + lam**2 * _trace(together) + 2 * lam / number * _trace(both)
    return (np.square(bias).sum(-1) + variance * spread).mean(-1)


def _trace(matrices: Floats) -> Any:
    return np.trace(matrices, axis1=-2, axis2=-1)
