"""Every client estimates a mean of its own: all risks are known in closed form."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.worlds.world import World, assemble_clients, check_positive, data_key
from plures.errors import BadValue
from plures.models import linear
from plures.types import Key


def centered_offsets(key: Key, num_clients: int, dim: int, radius: float) -> NDArray[Any]:
    """Offsets of norm exactly ``radius`` that sum to zero: pairs of opposite random directions.

    An odd client out gets a triangle with the last pair.
    """
    half = num_clients // 2
    directions = np.asarray(jax.random.normal(key, (max(half, 1), dim)), float)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    offsets = np.concatenate([directions, -directions])[:num_clients] if half else np.zeros((1, dim))
    if num_clients % 2 and num_clients > 1:
        if dim < 2:
            raise BadValue("num_clients", num_clients, "even when dim is 1, so that offsets can balance")
        across = _orthogonal(directions[-1])
        corners = [(1.0, 0.0), (-0.5, np.sqrt(0.75)), (-0.5, -np.sqrt(0.75))]
        triangle = np.array([a * directions[-1] + b * across for a, b in corners])
        offsets = np.concatenate([directions[:-1], -directions[:-1], triangle])
    return radius * offsets


def _orthogonal(direction: NDArray[Any]) -> NDArray[Any]:
    """A unit vector orthogonal to a unit vector."""
    axis = np.eye(len(direction))[np.argmin(np.abs(direction))]
    across = axis - (axis @ direction) * direction
    return across / np.linalg.norm(across)


@registry.world(title="Mean estimation")
def mean_estimation(
    *, num_clients: int = 20, dim: int = 4, rows: int = 25, radius: float = 0.5, sigma: float = 1.0, seed: int = 0
) -> World:
    """Each client estimates its own mean, at distance exactly ``radius`` from the average of all means.

    Average risk of w_k = (local mean + lam * average of local means) / (1 + lam):
    s / N + (lam / (1 + lam))^2 radius^2 + s (1 - 1/N) / (1 + lam)^2, with s = dim sigma^2 / rows; it is least at
    lam = s (1 - 1/N) / radius^2.

    Args:
        num_clients: How many clients.
        dim: Coordinates of a mean.
        rows: Rows of each client; all of them are training rows.
        radius: Distance of every client's mean from the average of all; at 0 all means are equal and one model is
            best, far out each client is best alone.
        sigma: Standard deviation of a row in each coordinate.
        seed: Seed of all that is drawn.
    """
    check_positive(num_clients=num_clients, dim=dim, rows=rows)
    key_truth, key_noise = jax.random.split(data_key(seed))
    truth = centered_offsets(key_truth, num_clients, dim, radius)
    noise = np.asarray(jax.random.normal(key_noise, (num_clients, rows, dim)))
    x, y, sizes = np.zeros((num_clients, rows, 0)), truth[:, None] + sigma * noise, (rows, 0, 0)
    federation = assemble_clients(x, y, sizes=sizes, task="regression", title="mean estimation")
    noise_of_mean = dim * sigma**2 / rows
    facts = {"local_risk": noise_of_mean, "global_risk": noise_of_mean / num_clients + radius**2}
    return World(federation=federation, model=linear.mean((0,), dim), truth=truth, facts=facts)
