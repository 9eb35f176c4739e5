"""The losses of all clients at once, in double precision.

    f_i(x)  =  (1 / m_i) sum_j loss(a_ij . x, y_ij)  +  1/2 sum_k ridge_k x_k^2

Rows are kept as (clients, rows, dim), padded with rows of weight 0. A model is a vector of dim * outputs numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from plures.errors import BadData, BadValue
from plures.solvers.losses import LinearLoss, loss_named
from plures.types import Floats

TINY_RIDGE = 1e-6
"""A client whose rows share one class has no finite best intercept; so little keeps it finite, and moves nobody else."""


@dataclass(frozen=True, eq=False)
class Clients:
    """Rows ``a`` (N, m, d), targets ``y`` (N, m), row weights ``share`` (N, m) and the ``ridge`` (d * outputs,)."""

    a: Floats
    y: Floats
    share: Floats
    ridge: Floats
    loss: LinearLoss

    @property
    def num(self) -> int:
        """How many clients there are."""
        return len(self.a)

    @property
    def dim(self) -> int:
        """Numbers in a model."""
        return len(self.ridge)

    @cached_property
    def counts(self) -> Floats:
        """(N,) rows of each client."""
        return (self.share > 0).sum(1).astype(float)

    def take(self, index: Any) -> Clients:
        """Some of the clients."""
        return replace(self, a=self.a[index], y=self.y[index], share=self.share[index])

    def weighted(self, weight: Floats) -> Clients:
        """The clients with losses times ``weight``; their ridges stay."""
        return replace(self, share=self.share * weight[:, None])

    def scaled(self, scale: Floats) -> Clients:
        """The clients with columns times ``scale`` (d,), their ridges on the same models as before."""
        return replace(self, a=self.a * scale, ridge=self.ridge * np.repeat(scale**2, self.loss.num_outputs))

    def pooled(self) -> Clients:
        """One client with the rows of all, whose loss is the mean of theirs."""
        a, y, share = (part.reshape(1, -1, *part.shape[2:]) for part in (self.a, self.y, self.share / self.num))
        return replace(self, a=a, y=y, share=share)

    def outputs(self, x: Floats) -> Floats:
        """(N, m, C) predictors at (N, dim) models."""
        return np.matmul(self.a, x.reshape(len(x), -1, self.loss.num_outputs))

    def value(self, x: Floats) -> Floats:
        """(N,) losses at (N, dim) models."""
        losses = self.loss.value(self.outputs(x), self.y)
        return np.einsum("nm,nm->n", self.share, losses) + 0.5 * (x * x) @ self.ridge

    def gradient(self, x: Floats) -> Floats:
        """(N, dim) gradients."""
        gradients = self.loss.gradient(self.outputs(x), self.y) * self.share[..., None]
        return np.matmul(self.a.swapaxes(1, 2), gradients).reshape(len(x), -1) + self.ridge * x

    def curvature(self, x: Floats) -> Floats:
        """(N, dim, dim) Hessians; generalized ones at kinks."""
        curvatures = self.loss.curvature(self.outputs(x), self.y) * self.share[..., None, None]
        if self.loss.num_outputs == 1:
            found = np.matmul(self.a.swapaxes(1, 2), self.a * curvatures[..., 0])
        else:
            wide = self.a[..., None, None] * curvatures[:, :, None]  # (N, m, d, C, C)
            found = np.matmul(self.a.swapaxes(1, 2), wide.reshape(*self.a.shape[:2], -1))
            found = found.reshape(len(x), *wide.shape[2:3] * 2, *wide.shape[3:]).transpose(0, 1, 3, 2, 4)
        found = found.reshape(len(x), self.dim, self.dim)
        found[:, np.arange(self.dim), np.arange(self.dim)] += self.ridge
        return found

    @cached_property
    def lipschitz(self) -> Floats:
        """(N,) Lipschitz constants of the gradients: the loss's steepest curvature times the largest eigenvalue."""
        gram = np.matmul(self.a.swapaxes(1, 2), self.a * self.share[..., None])
        return self.loss.steepest * np.linalg.eigvalsh(gram)[:, -1] + self.ridge.max()

    @cached_property
    def steep(self) -> float:
        """The largest sum of squares of a client's rows: how much gradients change with models, at most and roughly."""
        return float(np.einsum("nmd,nmd,nm->n", self.a, self.a, self.share).max() + self.ridge.max())

    @cached_property
    def least_curvature(self) -> float:
        """The least curvature that any loss has everywhere: the least ridge, and what squared errors add."""
        if self.loss.name != "least_squares":
            return float(self.ridge.min())
        return float(np.linalg.eigvalsh(self.curvature(np.zeros((self.num, self.dim))))[:, 0].min())


def as_clients(
    x: Sequence[ArrayLike],
    y: Sequence[ArrayLike],
    *,
    loss: str | LinearLoss = "logistic",
    ridge: float = 1e-3,
    intercept: bool = True,
    intercept_ridge: float | None = None,
) -> Clients:
    """Clients from one table and one list of targets each.

    With ``intercept`` a column of ones comes last; its ridge is ``intercept_ridge`` (by default ``ridge``, or a tiny
    one where that is 0). Every loss is then coercive: a client whose rows share one class has a finite best model.

    >>> as_clients([[[1.0], [2.0]], [[3.0]]], [[0, 1], [1]]).a.shape
    (2, 2, 2)
    """
    if len(x) != len(y) or not len(x):
        raise BadData(f"one table and one list of targets per client: got {len(x)} tables and {len(y)} lists")
    table, wanted, share = _as_arrays(x, y) if isinstance(x, np.ndarray) and x.ndim == 3 else _padded(x, y)
    real = wanted[share > 0]
    loss = loss_named(loss, real) if isinstance(loss, str) else loss
    if (wants := loss.check(real)) is not None:
        raise BadData(f"the targets of {loss.name} must be {wants}; got {real.min():g} to {real.max():g}")
    if intercept:
        table = np.concatenate([table, (share > 0)[..., None]], axis=2, dtype=float)
    width = table.shape[2] - intercept
    return Clients(table, wanted, share, _ridges(width, intercept, loss, ridge, intercept_ridge), loss)


def _as_arrays(x: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Tables that are all of one length, as they are."""
    table = np.asarray(x, float)
    lengths = {len(np.asarray(own)) for own in y}  # type: ignore[union-attr]
    if len(lengths) > 1:
        raise BadData(
            f"tables of {table.shape[1]} rows need as many targets; clients have from {min(lengths)} to {max(lengths)}"
        )
    wanted = np.asarray(y, float)
    if wanted.shape != table.shape[:2] or not table.shape[1]:
        raise BadData(f"tables of shape {table.shape} need targets of shape {table.shape[:2]}, got {wanted.shape}")
    if not (np.isfinite(table).all() and np.isfinite(wanted).all()):
        raise BadData("a table or a target has a value that is not a finite number")
    return table, wanted, np.full(wanted.shape, 1.0 / table.shape[1])


def _padded(x: Sequence[ArrayLike], y: Sequence[ArrayLike]) -> tuple[Floats, Floats, Floats]:
    """Tables and targets padded to the longest, and the weight of every row."""
    tables = [_as_rows(table) for table in x]
    targets = [np.asarray(target, float).reshape(-1) for target in y]
    _check_rows(tables, targets)
    longest, width = max(len(table) for table in tables), tables[0].shape[1]
    a, wanted, share = (np.zeros(shape) for shape in ((len(tables), longest, width), *[(len(tables), longest)] * 2))
    for place, (table, target) in enumerate(zip(tables, targets, strict=True)):
        number = len(table)
        a[place, :number], wanted[place, :number], share[place, :number] = table, target, 1.0 / number
    return a, wanted, share


def points_as_clients(points: ArrayLike) -> Clients:
    """Clients who want to be at a point: f_i(x) = 1/2 |x - a_i|^2, written with one row of weight dim per coordinate.

    This is what is usually called convex clustering.
    """
    where = np.asarray(points, float)
    number, dim = where.shape
    rows = np.broadcast_to(np.eye(dim), (number, dim, dim))
    return Clients(rows, where, np.ones((number, dim)), np.zeros(dim), loss_named("least_squares", where))


def _as_rows(table: ArrayLike) -> Floats:
    found = np.asarray(table, float)
    return found.reshape(len(found), -1) if found.size else found.reshape(0, 1)


def _ridges(width: int, intercept: bool, loss: LinearLoss, ridge: float, last: float | None) -> Floats:
    for name, given in {"ridge": ridge, "intercept_ridge": 0.0 if last is None else last}.items():
        if not 0 <= given < np.inf:
            raise BadValue(name, given, "0 or more")
    own = np.full(width + intercept, max(ridge, 0.0 if loss.coercive else TINY_RIDGE))
    if intercept and last is not None:
        own[-1] = max(last, 0.0 if loss.coercive else TINY_RIDGE)
    return np.repeat(own, loss.num_outputs)


def _check_rows(tables: list[Floats], targets: list[Floats]) -> None:
    for place, (table, target) in enumerate(zip(tables, targets, strict=True)):
        if not len(table) or len(table) != len(target):
            raise BadData(
                f"client {place} has {len(table)} rows and {len(target)} targets; both must be alike, 1 or more"
            )
        if table.shape[1] != tables[0].shape[1]:
            raise BadData(f"client {place} has {table.shape[1]} columns, client 0 has {tables[0].shape[1]}")
        if not (np.isfinite(table).all() and np.isfinite(target).all()):
            raise BadData(f"client {place} has a value that is not a finite number")
