"""What is wrong with the synthetic data published with FedCLUP, in numbers; the worlds with offsets are right."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from papers.fedclup.theory import Draw, World, logistic_draw
from plures.types import Key

Floats = NDArray[np.float64]
RADII = (0.1, 3.0)
LR = 0.1


class LabeledInputs(NamedTuple):
    """Inputs, labels, and the coefficients that gave them."""

    x: NDArray[Any]  # (clients, rows, dim)
    y: NDArray[Any]  # (clients, rows)
    truth: NDArray[Any]  # (clients, classes, dim)


def argmax_labels(
    key: Key, *, num_clients: int = 10, dim: int = 10, rows: int = 200, radius: float = 1.0, num_classes: int = 2
) -> LabeledInputs:
    """The generator published with arXiv 2410.08934, kept to show its two defects; it is no world.

    W_k = radius Z_k with normal Z_k, inputs N(v_k, diag(j^-1.2)) around normal v_k, label argmax W_k x. The largest
    of W_k x is where the largest of Z_k x is: **labels do not depend on radius**. And W_k separates them without an
    error, so that the logistic loss has no minimizer: **coefficients grow as long as a client trains**.
    """
    keys = jax.random.split(key, 3)
    basis = np.asarray(jax.random.normal(keys[0], (num_clients, num_classes, dim)), float)
    middle = np.asarray(jax.random.normal(keys[1], (num_clients, 1, dim)), float)
    noise = np.asarray(jax.random.normal(keys[2], (num_clients, rows, dim)), float)
    x = middle + noise * np.arange(1.0, dim + 1) ** -0.6
    y = np.einsum("crd,ckd->crk", x, radius * basis).argmax(-1)
    return LabeledInputs(x, y.astype(np.int32), radius * basis)


class Stopped(NamedTuple):
    """Clients that trained alone for so many steps: mean norm of their coefficients, and mean distance from the truth."""

    labels: str
    steps: int
    norm: float
    distance: float


class Defects(NamedTuple):
    """The published generator beside drawn labels."""

    changed: float  # share of labels that differ between two radii
    drawn_changed: float
    separable: float  # share of clients whose labels the truth separates
    stopped: list[Stopped]


def defects(steps: tuple[int, int], seed: int = 1) -> Defects:
    """Both defects, for ten clients of 200 rows of ten numbers."""
    key = jax.random.key(seed)
    near, far = (argmax_labels(key, radius=radius) for radius in RADII)
    drawn = [logistic_draw(key, World(clients=10, rows=200, dim=10), radius, 1) for radius in RADII]
    scores = np.einsum("crd,ckd->crk", near.x, near.truth)
    stopped = []
    for labels, x, y, truth in (("published", near.x, near.y, _between(near)), ("drawn", *_first(drawn[0]))):
        stopped += _stopped(labels, x, y, truth, steps)
    return Defects(
        float((near.y != far.y).mean()),
        float((drawn[0].y != drawn[1].y).mean()),
        float((scores.argmax(-1) == near.y).all(1).mean()),
        stopped,
    )


def _between(labeled: LabeledInputs) -> Floats:
    """(clients, dim) coefficients of class 1 minus class 0: what one output can know."""
    return labeled.truth[:, 1] - labeled.truth[:, 0]


def _first(draw: Draw) -> tuple[Floats, Floats, Floats]:
    return draw.x[0], draw.y[0], draw.truth[0]


def _stopped(labels: str, x: Floats, y: Floats, truth: Floats, steps: tuple[int, int]) -> list[Stopped]:
    """Gradient descent from zero, looked at after each of two numbers of steps."""
    models, found = np.zeros(truth.shape), []
    turned = np.ascontiguousarray(np.swapaxes(x, 1, 2)) * (LR / x.shape[1])
    for step in range(1, max(steps) + 1):
        error = 1 / (1 + np.exp(-(x @ models[..., None]))) - y[..., None]
        models = models - (turned @ error)[..., 0]
        if step in steps:
            norm, distance = np.linalg.norm(models, axis=1), np.linalg.norm(models - truth, axis=1)
            found.append(Stopped(labels, step, float(norm.mean()), float(distance.mean())))
    return found
