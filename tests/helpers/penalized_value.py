"""The objective of penalized problems, and how far models are from their solution."""

from typing import NamedTuple

import numpy as np

from plures.solvers import Quadratics


class Optimality(NamedTuple):
    """``gradient``: the norm of the objective's; ``apart``: |w_g - the mean of the w_i|, with weights p_i lam_i."""

    gradient: np.ndarray
    apart: np.ndarray


def value(problem, shared, own, lam):
    """The objective: at a number ``lam``, or at those of a path and its models."""
    if isinstance(problem, Quadratics):
        losses = (own * (0.5 * np.matmul(problem.a, own[..., None])[..., 0] - problem.b)).sum(-1)
        weights = problem.weights
    else:
        losses = _each(problem, own).value(own.reshape(-1, problem.dim)).reshape(own.shape[:-1])
        weights = problem.shares
    off = np.square(own - shared[..., None, :]).sum(-1)
    return (losses + 0.5 * np.where(off > 0, _beside(lam, off), 0.0) * off) @ weights


def optimality(problem, shared, own, lam):
    """How far models are from the solution; clients of an infinite lam count as one with the shared model."""
    strong = np.broadcast_to(_beside(lam, own[..., 0]), own.shape[:-1])[..., None]
    gradients = _each(problem, own).gradient(own.reshape(-1, problem.dim)).reshape(own.shape)
    tied, off = np.isinf(strong), own - shared[..., None, :]
    pulls = np.where(tied, 0.0, strong) * off
    each = np.where(tied, 0.0, gradients + pulls) * problem.shares[:, None]
    whole = (np.where(tied, gradients, -pulls) * problem.shares[:, None]).sum(-2)
    part = problem.shares * _parts(strong[..., 0])
    mean = (part[..., None] * own).sum(-2) / part.sum(-1, keepdims=True)
    size = np.sqrt(np.square(each).sum((-1, -2)) + np.square(whole).sum(-1))
    return Optimality(size, np.linalg.norm(shared - mean, axis=-1))


def _each(problem, own):
    """The clients once for every model in ``own`` (..., m, d)."""
    times = own.size // (problem.clients.num * problem.dim)
    return problem.clients.take(np.tile(np.arange(problem.clients.num), times))


def _beside(lam, like):
    """Strengths with axes that fit (L, ..., m)."""
    strong = np.asarray(lam, float)
    if not strong.ndim:
        return strong
    gap = (1,) * (like.ndim - 2)
    return strong.reshape(len(strong), *gap, -1 if strong.ndim == 2 else 1)


def _parts(lams):
    """(..., m) weights of the mean that the shared model is: lam over the largest, so that infinite ones count alone."""
    top = lams.max(-1, keepdims=True)
    finite = np.where(np.isfinite(top) & (top > 0), top, 1.0)
    return np.where(np.isinf(top), np.isinf(lams), np.where(top > 0, np.minimum(lams, finite) / finite, 1.0))
