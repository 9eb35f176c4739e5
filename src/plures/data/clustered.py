"""Worlds of groups with one optimum each: what every client's model should be is known exactly.

Werner, He, Jordan, Jaggi, Karimireddy: Provably Personalized and Robust Federated Learning, arXiv 2306.08393; the
regression follows its published code.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import SPLITS, Federation, from_arrays
from plures.data.worlds import World
from plures.errors import BadValue
from plures.keys import Purpose, derive, root
from plures.models import linear
from plures.models.build import REGRESSION, from_functions
from plures.types import Model


@registry.world(title="Regression with corners of a cube", paper="arXiv:2306.08393")
def cube_regression(
    *,
    num_clients: int = 16,
    num_groups: int = 4,
    dim: int = 10,
    rows: int = 9,
    radius: float = 100.0,
    sigma: float = 0.0,
    seed: int = 0,
) -> World:
    """Clients k of group g = k mod q share coefficients, each of them 0 or ``radius``; their inputs are N(g, I).

    With fewer ``rows`` than ``dim`` no client can find its coefficients alone, and a group together can. Two groups may
    draw the same corner: ``facts["num_truths"]`` says how many differ. ``sigma`` is the noise of targets. The model has
    no intercept. Valid and test rows are the unit vectors, so that their root mean square error is the distance from
    the truth divided by sqrt(dim).
    """
    _check_sizes(num_clients, num_groups, dim=dim, rows=rows)
    keys = jax.random.split(derive(root(seed), Purpose.DATA), 3)
    group = np.arange(num_clients) % num_groups
    corners = radius * np.asarray(jax.random.bernoulli(keys[0], shape=(num_groups, dim)), float)
    x = np.asarray(jax.random.normal(keys[1], (num_clients, rows, dim))) + group[:, None, None].astype(np.float32)
    noise = np.asarray(jax.random.normal(keys[2], (num_clients, rows)))
    truth = corners[group]
    y = np.einsum("crd,cd->cr", x, truth) + sigma * noise
    units = np.broadcast_to(np.eye(dim), (num_clients, dim, dim))
    federation = _with_splits(
        [x, units, units], [y, truth, truth], group=group, title="regression with corners of a cube"
    )
    facts = {"noise_rmse": sigma, "num_truths": len(np.unique(corners, axis=0))}
    return World(federation=federation, model=through_origin(dim), truth=truth, facts=facts)


def through_origin(dim: int) -> Model:
    """Least squares without an intercept: params are {"kernel": (dim,)}, the loss is half the squared error."""
    return from_functions(
        init=lambda key: {"kernel": jnp.zeros(dim)},
        apply=lambda params, x: linear.flat(x) @ params["kernel"],
        task=REGRESSION,
    )


@registry.world(title="Quadratics in groups", paper="arXiv:2306.08393")
def quadratics(
    *,
    num_clients: int = 32,
    num_groups: int = 2,
    dim: int = 10,
    rows: int = 100,
    gap: float = 20.0,
    sigma: float = 1.0,
    seed: int = 0,
) -> World:
    """Clients k of group g = k mod q minimize |x - c|^2 / 2 with c at ``gap`` times g on the first axis.

    A client's rows have exactly the mean c and mean squared distance ``sigma``^2 from it, so the gradient on one row
    drawn at random is unbiased with noise of variance sigma^2. n clients that average such gradients in steps of size
    lr stay at a mean squared distance of lr sigma^2 / (n (2 - lr)) from c.
    """
    _check_sizes(num_clients, num_groups, dim=dim, rows=rows)
    if sigma and rows < 2:
        raise BadValue("rows", rows, "2 or more where there is noise")
    group = np.arange(num_clients) % num_groups
    truth = np.zeros((num_clients, dim))
    truth[:, 0] = gap * group
    y = truth[:, None] + sigma * _spread(num_clients, rows, dim, seed)
    inputs = [np.zeros((num_clients, size, 0)) for size in (rows, 1, 1)]
    federation = _with_splits(
        inputs, [y, truth[:, None], truth[:, None]], group=group, title="quadratics in groups"
    )
    return World(federation=federation, model=linear.mean((0,), dim), truth=truth, facts={"gap": gap})


def _spread(num_clients: int, rows: int, dim: int, seed: int) -> NDArray[Any]:
    """(clients, rows, dim) noise; a client's has mean 0 and mean squared length 1."""
    if rows == 1:
        return np.zeros((num_clients, 1, dim))
    key = derive(root(seed), Purpose.DATA)
    drawn = np.asarray(jax.random.normal(key, (num_clients, rows, dim)), float)
    drawn -= drawn.mean(1, keepdims=True)
    return drawn / np.sqrt(np.square(drawn).sum(2).mean(1))[:, None, None]


def _check_sizes(num_clients: int, num_groups: int, **sizes: int) -> None:
    """Refuse sizes below 1, and more groups than clients."""
    for name, size in sizes.items():
        if size < 1:
            raise BadValue(name, size, "1 or more")
    if not 1 <= num_groups <= num_clients:
        raise BadValue("num_groups", num_groups, f"between 1 and num_clients ({num_clients})")


def _with_splits(x: list[Any], y: list[Any], *, group: NDArray[Any], title: str) -> Federation:
    """A regression from (clients, rows, ...) arrays for each of train, valid and test."""
    num_clients = len(group)
    width = len(str(num_clients - 1))
    names = np.array([f"client-{k:0{width}d}" for k in range(num_clients)])
    sizes = [part.shape[1] for part in y]
    split = np.tile(np.repeat(SPLITS, sizes), num_clients)
    x_all, y_all = (np.concatenate(part, axis=1).astype(np.float32) for part in (x, y))
    return from_arrays(
        x_all.reshape(len(split), *x_all.shape[2:]),
        y_all.reshape(len(split), *y_all.shape[2:]),
        np.repeat(names, sum(sizes)),
        split=split,
        group=dict(zip(names, group.tolist(), strict=True)),
        task="regression",
        title=title,
    )
