"""Regressions of clients whose truths are known, for tests of how much to personalize."""

import numpy as np

from plures.solvers.clients import as_clients


def offsets(radius, *, repeats, num=20, rows=50, dim=5, spread=None, seed=0):
    """Regressions whose truths lie exactly ``radius`` from their mean: rows, targets and truths of all repeats."""
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(repeats, num // 2, dim))
    half *= radius / np.linalg.norm(half, axis=-1, keepdims=True)
    truth = np.concatenate([half, -half], 1) + rng.normal(size=(repeats, 1, dim))
    x = rng.normal(size=(repeats, num, rows, dim)) * (1.0 if spread is None else np.sqrt(spread))
    y = np.einsum("smnd,smd->smn", x, truth) + rng.normal(size=(repeats, num, rows))
    return x, y, truth


def regression(x, y):
    return as_clients(x, y, loss="least_squares", ridge=0.0, intercept=False)


def mean_estimation(num=6, dim=3, times=8, scatter=1.0, seed=0):
    """Clients whose Hessians are the unit matrix: every row measures one number, ``times`` each."""
    rng = np.random.default_rng(seed)
    rows = np.tile(np.sqrt(dim) * np.eye(dim), (times, 1))
    points = scatter * rng.normal(size=(num, dim))[:, None] + rng.normal(size=(num, times, dim))
    return np.broadcast_to(rows, (num, *rows.shape)), np.sqrt(dim) * points.reshape(num, -1), points


def many(seed=4, num=8, rows=30, dim=3, radius=0.4):
    x, y, _ = offsets(radius, repeats=1, num=num, rows=rows, dim=dim, seed=seed)
    return x[0], y[0]
