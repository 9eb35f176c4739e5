"""Regressions in planted groups: the clients of a group share their coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.splits import SHARES
from plures.data.worlds.world import World, assemble_clients, check_positive, data_key
from plures.models import linear
from plures.registry import OptionGroup
from plures.types import Key, Model


@dataclass(frozen=True, kw_only=True)
class Planting(OptionGroup):
    """Clients in groups that share their coefficients.

    Args:
        num_clients: How many clients.
        num_groups: How many groups; client k belongs to group k mod ``num_groups``, and 1 makes all clients alike.
        dim: Inputs of a row, and coefficients of a group.
        rows: Rows of each client, before they are split into train, valid and test.
        gap: Root mean squared distance between the coefficients of two groups; at 0 one model serves all.
        seed: Seed of all that is drawn.
    """

    num_clients: int = 20
    num_groups: int = 4
    dim: int = 5
    rows: int = 50
    gap: float = 2.0
    seed: int = 0

    @property
    def group(self) -> NDArray[Any]:
        """The group of every client."""
        return np.arange(self.num_clients) % self.num_groups


class Planted(NamedTuple):
    """Each client's coefficients, inputs and x times coefficients, and a key for the rest."""

    truth: NDArray[Any]  # (clients, dim)
    x: NDArray[Any]  # (clients, rows, dim)
    signal: NDArray[Any]  # (clients, rows)
    key: Key


def _plant(options: Planting) -> Planted:
    """Clients' data but for labels; the groups' coefficients lie ``gap`` apart on average."""
    num_clients, num_groups, dim, rows = options.num_clients, options.num_groups, options.dim, options.rows
    check_positive(num_clients=num_clients, num_groups=num_groups, dim=dim, rows=rows)
    keys = jax.random.split(data_key(options.seed), 3)
    centers = options.gap / np.sqrt(2 * dim) * np.asarray(jax.random.normal(keys[0], (num_groups, dim)), float)
    truth = centers[options.group]
    x = np.asarray(jax.random.normal(keys[1], (num_clients, rows, dim)))
    return Planted(truth, x, np.einsum("crd,cd->cr", x, truth), keys[2])


def _world(planting: Planting, planted: Planted, y: Any, model: Model, *, facts: Any = None, **kind: Any) -> World:
    """The world of these labels."""
    federation = assemble_clients(planted.x, y, group=planting.group, shares=SHARES, seed=planting.seed, **kind)
    return World(federation=federation, model=model, truth=planted.truth, facts=facts or {})


@registry.world(title="Linear regression in clusters")
def linear_clusters(*, planting: Planting = Planting(), sigma: float = 0.5) -> World:
    """Clients k of group k mod q share the coefficients of their group; groups lie ``gap`` apart on average.

    Args:
        sigma: Standard deviation of the noise of targets: the least root mean squared error there can be.
    """
    planted = _plant(planting)
    noise = np.asarray(jax.random.normal(planted.key, planted.signal.shape))
    model, facts = linear.least_squares((planting.dim,)), {"noise_rmse": sigma}
    y = planted.signal + sigma * noise
    return _world(planting, planted, y, model, facts=facts, task="regression", title="linear clusters")


@registry.world(title="Logistic regression in clusters")
def logistic_clusters(*, planting: Planting = Planting(rows=60, gap=4.0)) -> World:
    """As ``linear_clusters`` with labels drawn from the logistic model; not separable, so optima exist.

    Args:
        gap: Root mean squared distance between the coefficients of two groups; at 0 all labels are coin flips.
    """
    planted = _plant(planting)
    y = jax.random.bernoulli(planted.key, jax.nn.sigmoid(jnp.asarray(planted.signal)))
    model = linear.logistic((planting.dim,))
    return _world(planting, planted, y, model, num_classes=2, title="logistic clusters")
