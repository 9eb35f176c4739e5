"""Worlds in which clients differ by a known amount: how much collaboration is right is known too.

Every client's coefficients lie at distance exactly ``radius`` from the average of all, which is the common part. At
radius 0 one model serves all; with a large one each client is best alone; between them a penalty on the distance from a
shared model helps (Yu, He, Sun, Xue, Li, arXiv 2410.08934). Labels and targets carry noise. The
generator that was published with that paper, whose labels carry none, is in papers/fedclup of the repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.splits import SHARES
from plures.data.worlds.known_optima import through_origin
from plures.data.worlds.means import centered_offsets
from plures.data.worlds.world import World, assemble_clients, check_sizes, data_key
from plures.errors import BadValue
from plures.models import linear
from plures.models.build import BINARY, from_functions
from plures.registry import OptionGroup
from plures.types import Key, Model


@dataclass(frozen=True, kw_only=True)
class Offsets(OptionGroup):
    """Clients whose coefficients lie at one distance from their average.

    Args:
        num_clients: How many clients.
        dim: Inputs of a row, and coefficients of a client.
        rows: Training rows of each client; valid and test rows are fresh, a third as many each.
        radius: Distance of every client's coefficients from their average: at 0 one model serves all, far out each
            client is best alone.
        center: Length of the average of all coefficients: what clients have in common.
        least: Smallest eigenvalue of the covariance of inputs.
        most: Largest eigenvalue of the covariance of inputs; ``most / least`` is how ill-conditioned training is.
        seed: Seed of all that is drawn.
    """

    num_clients: int = 20
    dim: int = 5
    rows: int = 50
    radius: float = 0.5
    center: float = 1.0
    least: float = 1.0
    most: float = 1.0
    seed: int = 0

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(train, valid, test) rows: ``rows`` and, by their shares, at least one of each other part."""
        valid, test = (max(round(self.rows * share / SHARES[0]), 1) for share in SHARES[1:])
        return self.rows, valid, test


@registry.world(title="Linear regression with offsets")
def linear_offsets(*, offsets: Offsets = Offsets(), sigma: float = 1.0) -> World:
    """y = x . w_k + ``sigma`` noise, with |w_k - w| = ``radius`` for all clients k, w their average, |w| = ``center``.

    Inputs are Gaussian, the eigenvalues of their covariance in equal ratios. The model has no intercept.
    facts["local_risk"] is the expected squared distance from w_k of a client that trains alone: sigma^2 tr(C^-1) /
    (rows - dim - 1) for covariance C.

    Args:
        sigma: Standard deviation of the noise of targets.
    """
    truth, x, signal, key_noise = _draw(offsets, sigma=sigma)
    y = signal + sigma * np.asarray(jax.random.normal(key_noise, signal.shape), float)
    title = "linear regression with offsets"
    federation = assemble_clients(x, y, sizes=offsets.sizes, task="regression", title=title)
    inverse = float((1 / spectrum(offsets.dim, offsets.least, offsets.most)).sum())
    spare = offsets.rows - offsets.dim - 1
    facts = {"noise_rmse": sigma, "local_risk": sigma**2 * inverse / spare if spare > 0 else float("inf")}
    return World(federation=federation, model=through_origin(offsets.dim), truth=truth, facts=facts)


@registry.world(title="Logistic regression with offsets")
def logistic_offsets(*, offsets: Offsets = Offsets(rows=100)) -> World:
    """As ``linear_offsets``, with labels drawn: 1 with probability 1 / (1 + exp(-x . w_k)).

    Drawn labels are not separable once there are a few rows for each number of a model, so that every client's best
    model exists. The model has one output, no intercept, and starts at zero.
    """
    truth, x, signal, key_labels = _draw(offsets)
    y = jax.random.bernoulli(key_labels, jax.nn.sigmoid(jnp.asarray(signal)))
    title = "logistic regression with offsets"
    federation = assemble_clients(x, y, sizes=offsets.sizes, num_classes=2, title=title)
    return World(federation=federation, model=logistic_through_origin(offsets.dim), truth=truth)


def logistic_through_origin(dim: int) -> Model:
    """Logistic regression without an intercept: params are {"kernel": (dim,)}."""
    return from_functions(
        init=lambda key: {"kernel": jnp.zeros(dim)},
        apply=lambda params, x: linear.flat(x) @ params["kernel"],
        task=BINARY,
    )


def offset_truth(key: Key, num_clients: int, dim: int, *, radius: float, center: float) -> NDArray[Any]:
    """(clients, dim) coefficients: a common vector of norm ``center`` plus offsets of norm ``radius`` that sum to 0."""
    key_common, key_offsets = jax.random.split(key)
    common = np.asarray(jax.random.normal(key_common, (dim,)), float)
    return center * common / np.linalg.norm(common) + centered_offsets(key_offsets, num_clients, dim, radius)


def spectrum(dim: int, least: float, most: float) -> NDArray[Any]:
    """(dim,) eigenvalues from ``least`` to ``most`` in equal ratios.

    >>> spectrum(3, 0.5, 2.0)
    array([0.5, 1. , 2. ])
    """
    if not 0 < least <= most < float("inf"):
        raise BadValue("least", least, f"a positive number, at most that of most ({most})")
    return np.geomspace(least, most, dim)


def _draw(offsets: Offsets, **scales: float) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], Key]:
    """Coefficients, (clients, all rows, dim) inputs, (clients, all rows) products of both, and a key for the rest."""
    num_clients, dim, radius, center = offsets.num_clients, offsets.dim, offsets.radius, offsets.center
    check_sizes(num_clients=num_clients, dim=dim, rows=offsets.rows)
    for name, scale in {"radius": radius, **scales, "center": center}.items():
        if not 0 <= scale < float("inf"):
            raise BadValue(name, scale, "0 or more")
    if num_clients == 1 and radius > 0:
        raise BadValue("num_clients", num_clients, "2 or more, so that clients can differ")
    eigenvalues = spectrum(dim, offsets.least, offsets.most)
    key_truth, key_rows = jax.random.split(data_key(offsets.seed))
    truth = offset_truth(key_truth, num_clients, dim, radius=radius, center=center)
    key_inputs, key_rest = jax.random.split(key_rows)
    shape = (num_clients, sum(offsets.sizes), dim)
    x = np.asarray(jax.random.normal(key_inputs, shape), float) * np.sqrt(eigenvalues)
    x = x.astype(np.float32)  # as they are stored: targets are then exactly those of the truth
    return truth, x, np.einsum("crd,cd->cr", x.astype(float), truth), key_rest
