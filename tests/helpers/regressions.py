"""Linear regressions whose penalized models are the solution of one linear system."""

import jax
import numpy as np

from plures.data import from_arrays
from plures.data.worlds.known_optima import through_origin

DIM, LAM = 3, 0.7
SIZES = (12, 20, 16, 30, 24)


def regression(*, sizes=SIZES, radius=0.6, sigma=0.5, scale=1.0, unit=1.0, seed=0):
    """Linear regressions whose coefficients differ; columns times ``unit``, targets times ``scale``."""
    keys = jax.random.split(jax.random.key(seed), 3)
    truth = 1 + radius * np.asarray(jax.random.normal(keys[0], (len(sizes), DIM)))
    who = np.repeat(np.arange(len(sizes)), sizes)
    x = np.asarray(jax.random.normal(keys[1], (len(who), DIM))) * np.array([1.0, 1.5, 0.7])
    y = (x * truth[who]).sum(1) + sigma * np.asarray(jax.random.normal(keys[2], len(who)))
    names = np.array([f"client-{k}" for k in who])
    return from_arrays(
        (unit * x).astype(np.float32),
        (scale * y).astype(np.float32),
        names,
        shares=(1.0, 0.0, 0.0),
        task="regression",
        title="regressions",
    )


FEDERATION, MODEL = regression(), through_origin(DIM)


def moments(federation):
    """A_i = X'X / n and b_i = X'y / n."""
    tables = [federation.rows_of(name, "train") for name in federation.names]
    return (
        np.stack([x.T @ x / len(x) for x, _ in tables]).astype(float),
        np.stack([x.T @ y / len(x) for x, y in tables]).astype(float),
    )


def solved(federation, lam, weights):
    """(P) of quadratics as one linear system of all models: [w_g, w_1, .., w_m]."""
    a, b = moments(federation)
    number, dim = b.shape
    lam = np.broadcast_to(lam, number)
    size = (number + 1) * dim
    left, right = np.zeros((size, size)), np.zeros(size)
    for k in range(number):
        at = slice((k + 1) * dim, (k + 2) * dim)
        left[at, at], left[at, :dim] = a[k] + lam[k] * np.eye(dim), -lam[k] * np.eye(dim)
        right[at] = b[k]
        left[:dim, :dim] += weights[k] * lam[k] * np.eye(dim)
        left[:dim, at] = -weights[k] * lam[k] * np.eye(dim)
    found = np.linalg.solve(left, right).reshape(number + 1, dim)
    return found[0], found[1:]


def shared_of(result):
    return np.asarray(result.state.server.shared.params["kernel"])[0]


def own_of(result):
    return np.asarray(result.state.private.weights.params["kernel"])[:, 0]
