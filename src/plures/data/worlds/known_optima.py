"""Worlds of groups with one optimum each: what every client's model should be is known exactly.

Werner, He, Jordan, Jaggi, Karimireddy: Provably Personalized and Robust Federated Learning, arXiv 2306.08393; the
regression follows its published code. The ellipses are ours, after the experiment of Armacki, Bajovic, Jakovetic, Kar:
Personalized Federated Learning via Convex Clustering, arXiv 2202.00718, whose own points are not published.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Federation
from plures.data.worlds.world import World, assemble_clients, data_key, groups_of
from plures.errors import BadValue
from plures.models import linear
from plures.models.build import REGRESSION, from_functions
from plures.types import Key, Model


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

    Two groups may draw the same corner: ``facts["num_truths"]`` says how many differ. The model has no intercept. Valid and
    test rows are the unit vectors, so that their root mean square error is the distance from the truth divided by
    sqrt(dim).

    Args:
        num_clients: How many clients.
        num_groups: How many groups; client k belongs to group k mod ``num_groups``, and 1 makes all clients alike.
        dim: Inputs of a row, and coefficients of a group.
        rows: Training rows of each client; with fewer than ``dim`` no client can find its coefficients alone, and a
            group together can.
        radius: What each coefficient is where it is not 0: how far groups lie apart.
        sigma: Standard deviation of the noise of targets.
        seed: Seed of all that is drawn.
    """
    group = groups_of(num_clients, num_groups, dim=dim, rows=rows)
    keys = jax.random.split(data_key(seed), 3)
    corners = radius * np.asarray(jax.random.bernoulli(keys[0], shape=(num_groups, dim)), float)
    x = np.asarray(jax.random.normal(keys[1], (num_clients, rows, dim))) + group[:, None, None].astype(np.float32)
    noise = np.asarray(jax.random.normal(keys[2], (num_clients, rows)))
    truth = corners[group]
    y = np.einsum("crd,cd->cr", x, truth) + sigma * noise
    units = np.broadcast_to(np.eye(dim), (num_clients, dim, dim))
    title = "regression with corners of a cube"
    federation = _with_splits([x, units, units], [y, truth, truth], group=group, task="regression", title=title)
    facts = {"noise_rmse": sigma, "num_truths": len(np.unique(corners, axis=0))}
    return World(federation=federation, model=through_origin(dim), truth=truth, facts=facts)


def through_origin(dim: int) -> Model:
    """Least squares without an intercept: params are {"kernel": (dim,)}, the loss is half the squared error."""
    return from_functions(
        init=lambda key: {"kernel": jnp.zeros(dim)},
        apply=lambda params, x: linear.flat(x) @ params["kernel"],
        task=REGRESSION,
        parts={"head": ("kernel",)},
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

    Args:
        num_clients: How many clients.
        num_groups: How many groups; client k belongs to group k mod ``num_groups``, and 1 makes all clients alike.
        dim: Coordinates of a point.
        rows: Training rows of each client.
        gap: Distance between the optima of neighboring groups; at 0 all clients want the same.
        sigma: Root mean squared distance of a client's rows from its optimum: the noise of a gradient on one row.
        seed: Seed of all that is drawn.
    """
    group = groups_of(num_clients, num_groups, dim=dim, rows=rows)
    if sigma and rows < 2:
        raise BadValue("rows", rows, "2 or more where there is noise")
    truth = np.zeros((num_clients, dim))
    truth[:, 0] = gap * group
    y = truth[:, None] + sigma * _spread(num_clients, rows, dim, seed)
    inputs = [np.zeros((num_clients, size, 0)) for size in (rows, 1, 1)]
    targets = [y, truth[:, None], truth[:, None]]
    federation = _with_splits(inputs, targets, group=group, task="regression", title="quadratics in groups")
    return World(federation=federation, model=linear.mean((0,), dim), truth=truth, facts={"gap": gap})


def _spread(num_clients: int, rows: int, dim: int, seed: int) -> NDArray[Any]:
    """(clients, rows, dim) noise; a client's has mean 0 and mean squared length 1."""
    if rows == 1:
        return np.zeros((num_clients, 1, dim))
    drawn = np.asarray(jax.random.normal(data_key(seed), (num_clients, rows, dim)), float)
    drawn -= drawn.mean(1, keepdims=True)
    return drawn / np.sqrt(np.square(drawn).sum(2).mean(1))[:, None, None]


CENTER, ALONG, ACROSS = 2.52, 4.0, 1.0
"""How far the ellipses of the two classes lie from the origin, and their semi-axes along and across that line."""


@registry.world(title="Two ellipses per group", paper="arXiv:2202.00718")
def ellipses(
    *,
    num_clients: int = 60,
    num_groups: int = 3,
    rows: int = 10,
    balanced: bool = True,
    test_rows: int = 200,
    seed: int = 0,
) -> World:
    """Two classes of points in the plane, on two ellipses along a line; group g = k mod q has a line of its own.

    The lines stand 360 / q degrees apart. Class 1 is uniform on the ellipse at 2.52 n_g, class 0 on that at -2.52 n_g,
    with semi-axes 4 along n_g and 1 across. A group's training points, as many of either class, are dealt to its
    clients without replacement. Valid and test rows are fresh; the test rows of a group's clients together are its test
    set. The truth is n_g: no classifier does better on average than the sign of n_g . x (``facts["best_accuracy"]``).

    Args:
        num_clients: How many clients.
        num_groups: How many groups, each with a line of its own; client k belongs to group k mod ``num_groups``.
        rows: Training rows of each client, even; valid rows are as many.
        balanced: Whether everyone gets as many rows of one class as of the other; otherwise they come as they are
            drawn.
        test_rows: Test rows of each client, even.
        seed: Seed of all that is drawn.
    """
    group = groups_of(num_clients, num_groups, rows=rows, test_rows=test_rows)
    for name, size in (("rows", rows), ("test_rows", test_rows)):
        if size % 2:
            raise BadValue(name, size, "even, for two classes")
    angle = 2 * np.pi * np.arange(num_groups) / num_groups
    truth = np.stack([np.cos(angle), np.sin(angle)], axis=1)[group]
    keys = jax.random.split(data_key(seed), 4)
    y = [np.tile(np.arange(size) < size // 2, (num_clients, 1)) for size in (rows, rows, test_rows)]
    x = [on_ellipses(key, truth, own) for key, own in zip(keys, y, strict=False)]
    if not balanced:
        dealt = _deal(keys[3], group, rows)
        x[0], y[0] = (part.reshape(-1, *part.shape[2:])[dealt] for part in (x[0], y[0]))
    federation = _with_splits(x, y, group=group, title="two ellipses per group", num_classes=2)
    cut = CENTER / ALONG
    beyond = (np.arccos(cut) - cut * np.sqrt(1 - cut**2)) / np.pi  # of an ellipse lies on the other side
    model = linear.squared_hinge((2,), ridge=1e-3)
    return World(federation=federation, model=model, truth=truth, facts={"best_accuracy": float(1 - beyond)})


def on_ellipses(key: Key, truth: NDArray[Any], y: NDArray[np.bool_]) -> NDArray[Any]:
    """(clients, rows, 2) points, uniform on the ellipse of their class."""
    radius, turn = np.asarray(jax.random.uniform(key, (2, *y.shape)), float)
    radius, turn = np.sqrt(radius), 2 * np.pi * turn
    along = np.where(y, CENTER, -CENTER) + ALONG * radius * np.cos(turn)
    across = ACROSS * radius * np.sin(turn)
    sideways = np.stack([-truth[:, 1], truth[:, 0]], axis=1)
    return along[..., None] * truth[:, None] + across[..., None] * sideways[:, None]


def _deal(key: Key, group: NDArray[Any], rows: int) -> NDArray[Any]:
    """(clients, rows) places of points: those of every group are shuffled among its clients."""
    place = np.arange(len(group) * rows).reshape(len(group), rows)
    for own in np.unique(group):
        mine = group == own
        mixed = jax.random.permutation(jax.random.fold_in(key, int(own)), int(mine.sum()) * rows)
        place[mine] = place[mine].reshape(-1)[np.asarray(mixed)].reshape(-1, rows)
    return place


def _with_splits(x: list[Any], y: list[Any], **facts: Any) -> Federation:
    """A federation from (clients, rows, ...) arrays for each of train, valid and test."""
    sizes = [part.shape[1] for part in y]
    return assemble_clients(np.concatenate(x, axis=1), np.concatenate(y, axis=1), sizes=sizes, **facts)
