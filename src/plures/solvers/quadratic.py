"""Personal models held near a shared one, for quadratic losses: exactly, along a whole path of strengths.

    min  sum_i p_i ( L_i(w_i) + (lam / 2) |w_g - w_i|^2 ),        L_i(w) = w^T A_i w / 2 - b_i^T w

With A_i = U_i diag(s_i) U_i^T, one eigendecomposition per client,

    w_g  =  ( sum_i p_i U_i diag(lam s_i / (s_i + lam)) U_i^T )^-1  sum_i p_i U_i diag(lam / (s_i + lam)) U_i^T b_i
    w_i  =  w_g + U_i diag(1 / (s_i + lam)) (U_i^T b_i - s_i U_i^T w_g)

for any lam, a number or one per client. Setting the gradient to zero gives both; w_g is the mean of the w_i with
weights p_i lam_i. The first line is used times a number that keeps it finite for lam = 0 (everybody alone, w_g the
limit, the mean of the local minimizers) and for lam = inf (one pooled minimizer).

The problem is that of Yu, He, Sun, Xue, Li: arXiv 2410.08934.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from plures.errors import BadData, BadValue, Unsupported
from plures.moreau import Bounds
from plures.solvers.clients import Clients
from plures.types import Floats

FLAT = 1e-13
"""Eigenvalues below this share of the largest are none."""
BLOCK = 1 << 17
"""Numbers of a block of eigenvectors: a megabyte, so that it stays near while all strengths use it."""


@dataclass(frozen=True, eq=False)
class PenalizedSolution:
    """Models at ``lams`` (L,) or (L, m): ``shared`` (L, ..., d) and ``own`` (L, ..., m, d).

    ``steps`` of Newton's method and the largest ``residual`` of a gradient that they left; 0 where a formula was used.
    """

    lams: Floats
    shared: Floats
    own: Floats
    steps: int = 0
    residual: float = 0.0


@dataclass(frozen=True, eq=False)
class Quadratics:
    """Losses w^T A_i w / 2 - b_i^T w: ``a`` (..., m, d, d), ``b`` (..., m, d), ``weights`` (m,) that sum to 1.

    Leading axes are problems side by side, seeds say.
    """

    a: Floats
    b: Floats
    weights: Floats

    @classmethod
    def of(cls, a: ArrayLike, b: ArrayLike, weights: ArrayLike | None = None) -> Quadratics:
        """Losses from matrices and vectors; weights are equal unless given.

        >>> Quadratics.of([[[1.0]], [[1.0]]], [[0.0], [3.0]]).path([0.0, 2.0, np.inf]).own[..., 0]
        array([[0. , 3. ],
               [1. , 2. ],
               [1.5, 1.5]])
        """
        matrix, vector = np.asarray(a, float), np.asarray(b, float)
        if vector.ndim < 2 or not vector.size or matrix.shape != (*vector.shape, vector.shape[-1]):
            raise BadData(f"matrices (..., m, d, d) and vectors (..., m, d): got {matrix.shape} and {vector.shape}")
        if not (np.isfinite(matrix).all() and np.isfinite(vector).all()):
            raise BadData("a matrix or a vector has a value that is not a finite number")
        skew = np.abs(matrix - matrix.swapaxes(-1, -2)).max((-1, -2)) > 1e-9 * np.abs(matrix).max((-1, -2))
        if skew.any():
            raise BadData(f"the matrix of client {_first(skew)} is not symmetric")
        return cls(matrix, vector, checked_weights(weights, vector.shape[-2]))

    @classmethod
    def from_rows(
        cls, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None, ridge: float = 0.0
    ) -> Quadratics:
        """Linear regression, half the mean squared error and ridge / 2 |w|^2: ``x`` (..., m, n, d), ``y`` (..., m, n)."""
        table, wanted = np.asarray(x, float), np.asarray(y, float)
        if table.ndim < 3 or not table.size or table.shape[:-1] != wanted.shape:
            raise BadData(f"rows (..., m, n, d) and targets (..., m, n): got {table.shape} and {wanted.shape}")
        if not 0 <= ridge < np.inf:
            raise BadValue("ridge", ridge, "0 or more")
        across = table.swapaxes(-1, -2) / table.shape[-2]
        matrix = np.matmul(across, table) + ridge * np.eye(table.shape[-1])
        return cls.of(matrix, np.matmul(across, wanted[..., None])[..., 0], weights)

    @classmethod
    def from_clients(cls, clients: Clients, weights: ArrayLike | None = None) -> Quadratics:
        """The losses of clients with squared errors."""
        if clients.loss.name != "least_squares":
            raise Unsupported(f"squared errors are quadratic, {clients.loss.name} is not: Penalized takes any loss")
        return cls.expanded(clients, np.zeros((clients.num, clients.dim)), weights)

    @classmethod
    def expanded(cls, clients: Clients, models: Floats, weights: ArrayLike | None = None) -> Quadratics:
        """The second-order expansions of clients' losses at ``models`` (m, d), but for constants."""
        matrix = clients.curvature(models)
        return cls.of(matrix, np.einsum("nij,nj->ni", matrix, models) - clients.gradient(models), weights)

    @property
    def num(self) -> int:
        """How many clients a problem has."""
        return self.b.shape[-2]

    @property
    def dim(self) -> int:
        """Numbers in a model."""
        return self.b.shape[-1]

    @cached_property
    def spectrum(self) -> tuple[Floats, Floats]:
        """Eigenvalues (..., m, d), ascending and 0 or more, and eigenvectors (..., m, d, d) in columns."""
        with _one_thread(self.a.size):
            values, vectors = np.linalg.eigh(self.a)
        bent = values[..., 0] < -1e-9 * np.abs(values).max(-1)
        if bent.any():
            raise BadData(
                f"the loss of client {_first(bent)} is not convex: an eigenvalue is {values[bent][0, 0]:g}"
            )
        return np.maximum(values, 0.0), vectors

    @cached_property
    def turned(self) -> Floats:
        """U_i^T b_i (..., m, d)."""
        return np.matmul(self.b[..., None, :], self.spectrum[1])[..., 0, :]

    @property
    def bounds(self) -> Bounds:
        """mu and L over all clients, of every problem."""
        values = self.spectrum[0]
        return Bounds(values.min((-2, -1)), values.max((-2, -1)))

    def path(self, lams: ArrayLike) -> PenalizedSolution:
        """The solutions at ``lams`` (L,), or (L, m) with one for each client; 0 and infinity are taken exactly."""
        given, each = checked_lams(lams, self.num)
        self._refuse_flat(each)
        side = Balance.of(each)
        with _one_thread(self.a.size):
            shared = self._shared(side, each)
            own = self._own(side, shared)
        lead = (len(each), *self.b.shape[:-2])
        return PenalizedSolution(given, shared.reshape(*lead, self.dim), own.reshape(*lead, self.num, self.dim))

    def _refuse_flat(self, each: Floats) -> None:
        """A client alone needs a minimizer of its own."""
        values = self.spectrum[0]
        alone = (each == 0).any(0) & (values[..., 0] <= FLAT * values[..., -1])
        if alone.any():
            raise BadData(
                f"at lam = 0 client {_first(alone)} is alone, and its loss has no single minimizer (its matrix is "
                "singular): a lam > 0 or a ridge would do"
            )

    def _blocks(self) -> Iterator[tuple[slice, Floats, Floats, Floats]]:
        """Clients, eigenvalues (S, c, d), eigenvectors (S, c, d, d) and turned vectors, some clients at a time."""
        num, dim = self.num, self.dim
        values, vectors = self.spectrum
        flat = values.reshape(-1, num, dim), vectors.reshape(-1, num, dim, dim), self.turned.reshape(-1, num, dim)
        size = max(1, BLOCK // (len(flat[0]) * dim * dim))
        for first in range(0, num, size):
            some = slice(first, first + size)
            yield some, flat[0][:, some], flat[1][:, some], flat[2][:, some]

    def _shared(self, side: Balance, each: Floats) -> Floats:
        """(L, S, d) shared models: a product of scaled eigenvectors with themselves for every strength and block."""
        num_problems, dim = self.b.size // (self.num * self.dim), self.dim
        left = np.zeros((len(each), num_problems, dim, dim))
        right = np.zeros((len(each), num_problems, dim))
        part = self.weights * side.part
        for some, values, vectors, turned in self._blocks():
            wide = np.ascontiguousarray(vectors.swapaxes(1, 2)).reshape(num_problems, dim, -1)
            for place in range(len(each)):
                share = part[place, some, None] / side.under(place, some, values)
                half = wide * np.sqrt(share * values).reshape(num_problems, 1, -1)
                left[place] += np.matmul(half, half.swapaxes(1, 2))
                right[place] += np.matmul(wide, (share * turned).reshape(num_problems, -1, 1))[..., 0]
        _refuse_free(left, each)
        return np.asarray(np.linalg.solve(left, right[..., None])[..., 0], float)

    def _own(self, side: Balance, shared: Floats) -> Floats:
        """(L, S, m, d) personal models."""
        own = np.empty((*shared.shape[:2], self.num, self.dim))
        toward = np.moveaxis(shared, 0, -1)[:, None]  # (S, 1, d, L)
        for some, values, vectors, turned in self._blocks():
            under = np.stack([side.under(place, some, values) for place in range(len(shared))], -1)
            pace = side.slack[:, some].T[:, None, :] / under
            left = turned[..., None] - values[..., None] * np.matmul(vectors.swapaxes(-1, -2), toward)
            own[:, :, some] = np.moveaxis(np.matmul(vectors, pace * left), -1, 0)
        own += shared[:, :, None]
        return own


class Balance(NamedTuple):
    """Strengths as quotients ``weight`` / ``slack``, both in [0, 1], so that 0 and infinity are numbers like any other.

    ``part`` is a client's share in the shared model, relative to the largest; all have the same where all are alone.
    """

    weight: Floats
    slack: Floats
    part: Floats

    @classmethod
    def of(cls, lams: Floats) -> Balance:
        """Of strengths (L, m).

        >>> Balance.of(np.array([[0.5, 4.0, np.inf]])).slack
        array([[1.  , 0.25, 0.  ]])
        """
        weight = np.minimum(lams, 1.0)
        top = weight.max(-1, keepdims=True)
        return cls(
            weight, 1.0 / np.maximum(lams, 1.0), np.where(top > 0, weight / np.where(top > 0, top, 1.0), 1.0)
        )

    def under(self, place: int, some: slice, values: Floats) -> Floats:
        """slack s + weight, (S, clients, d): s + lam times the slack."""
        return self.slack[place, some, None] * values + self.weight[place, some, None]


def checked_lams(lams: ArrayLike, num: int) -> tuple[Floats, Floats]:
    """Strengths as given, at least (L,), and as (L, m)."""
    given = np.atleast_1d(np.asarray(lams, float))
    if not given.size or given.ndim > 2 or (given.ndim == 2 and given.shape[1] != num):
        raise BadData(f"strengths are (L,), or (L, {num}) with one for each client; got the shape {given.shape}")
    if not (given >= 0).all():
        raise BadValue("lam", float(given[~(given >= 0)][0]), "0 or more; 0 and infinity are allowed")
    return given, np.broadcast_to(given.reshape(len(given), -1), (len(given), num))


def checked_weights(weights: ArrayLike | None, num: int) -> Floats:
    """Weights of ``num`` clients, equal unless given."""
    if weights is None:
        return np.full(num, 1.0 / num)
    found = np.asarray(weights, float)
    if found.shape != (num,) or not (found > 0).all() or abs(found.sum() - 1) > 1e-9:
        raise BadValue("weights", weights, f"{num} positive numbers that sum to 1")
    return found


def _one_thread(size: int) -> AbstractContextManager[Any]:
    """Small matrices gain nothing from threads and lose by them; asking for one takes milliseconds, too long for few."""
    return threadpool_limits(1, user_api="blas") if size > BLOCK else nullcontext()


def _refuse_free(left: Floats, each: Floats) -> None:
    values = np.linalg.eigvalsh(left)
    free = (values[..., 0] <= FLAT * values[..., -1]).any(1)
    if free.any():
        raise BadData(
            f"at lam = {each[free][0].max():g} the shared model has no single minimizer (the clients' losses together "
            "are flat in some direction): a ridge would do"
        )


def _first(where: np.ndarray) -> int | tuple[int, ...]:
    """The place of the first true value; the last number is the client."""
    found = tuple(int(number) for number in np.argwhere(where)[0])
    return found[0] if len(found) == 1 else found
