"""A federation's rows as linear models see them, in sums that are quick to fit and to judge by.

Inputs are put on one scale, wide ones on their main axes; targets are numbers or one-hot classes, centered and scaled so
that the mean of all training rows has loss 1. A model W of D columns (an intercept comes last) and C outputs has on some
rows of a client the squared error

    |X W - Y|^2  =  tr(W^T G W)  -  2 tr(W^T B)  +  s        G = X^T X,   B = X^T Y,   s = |Y|^2

so that a client's G, B and s, fold by fold, are all that fitting and judging need. Test rows are never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from plures.advise.preparation import distinct_rows, fit_scale, flat_table, principal_axes
from plures.data import Federation
from plures.errors import BadData, Unsupported
from plures.keys import Purpose, derive, root
from plures.types import Floats

Ints = NDArray[np.int64]

NUM_FOLDS = 5
MOST_COLUMNS = 64
"""Wider inputs are reduced to so many main axes."""
MOST_CLIENTS, MOST_ROWS, MOST_WORK = 500, 400, 70_000_000
"""Of more clients, of rows of a client, and of clients times columns cubed, some are drawn: so it takes about a minute."""
FARTHEST = 5.0
"""Inputs farther than so many deviations from the mean count as this far: one wild row must not decide."""
TASKS = ("classification", "regression")


@dataclass(frozen=True, eq=False)
class RowSums:
    """G (N, D, D), B (N, D, C), s (N,) and the number of rows (N,) of every client."""

    gram: Floats
    cross: Floats
    square: Floats
    count: Floats

    def without(self, other: RowSums) -> RowSums:
        """The sums over rows that are not among the other's."""
        return RowSums(
            self.gram - other.gram, self.cross - other.cross, self.square - other.square, self.count - other.count
        )

    def losses(self, models: Floats) -> Floats:
        """(N,) squared errors, summed over rows, of one model for all (1, D, C) or one each (N, D, C)."""
        if len(models) == 1:
            return self.losses_of_each(models)[:, 0]
        curvature = np.einsum("ndc,ndc->n", np.matmul(self.gram, models), models)
        return curvature - 2 * np.einsum("ndc,ndc->n", self.cross, models) + self.square

    def losses_of_each(self, models: Floats) -> Floats:
        """(N, k) squared errors, summed over rows, of every client with every one of the models (k, D, C)."""
        flat, cross = (part.reshape(len(part), -1) for part in (self.gram, self.cross))
        outer = np.matmul(models, models.swapaxes(1, 2)).reshape(len(models), -1)
        return np.asarray(flat @ outer.T - 2 * cross @ models.reshape(len(models), -1).T + self.square[:, None])


@dataclass(frozen=True, eq=False)
class FoldedRows:
    """Training and valid rows on one scale, client by client: ``x`` (n, D), ``y`` (n, C), whose they are, and their fold.

    The rows of fold f are held out when models of fold f are fitted; those of fold -1 never are. ``notes`` say what
    was left out.
    """

    x: Floats
    y: Floats
    owner: Ints
    fold: Ints
    names: tuple[str, ...]
    task: str
    notes: tuple[str, ...]

    @property
    def num(self) -> int:
        """How many clients there are."""
        return len(self.names)

    @property
    def num_folds(self) -> int:
        """How often models are fitted."""
        return int(self.fold.max()) + 1

    @property
    def counts(self) -> Ints:
        """(N,) rows of each client."""
        return np.bincount(self.owner, minlength=self.num)

    def sums(self, some: NDArray[np.bool_]) -> RowSums:
        """The sums over some rows, client by client."""
        width, outputs = self.x.shape[1], self.y.shape[1]
        gram, cross = np.zeros((self.num, width, width)), np.zeros((self.num, width, outputs))
        ends = np.searchsorted(self.owner, np.arange(self.num + 1))
        for client in range(self.num):
            own = slice(ends[client], ends[client + 1])
            a, b = self.x[own][some[own]], self.y[own][some[own]]
            gram[client], cross[client] = a.T @ a, a.T @ b
        square, count = (
            np.bincount(self.owner[some], weights, minlength=self.num).astype(float)
            for weights in (np.square(self.y[some]).sum(1), None)
        )
        return RowSums(gram, cross, square, count)

    def outputs(self, models: Floats, some: NDArray[np.bool_]) -> Floats:
        """(rows, C) predictions for some rows."""
        table = self.x[some]
        if len(models) == 1:
            return np.asarray(table @ models[0])
        found, owner = np.empty((len(table), models.shape[2])), self.owner[some]
        ends = np.searchsorted(owner, np.arange(self.num + 1))
        for client in range(self.num):
            own = slice(ends[client], ends[client + 1])
            found[own] = table[own] @ models[client]
        return found


def fold_rows(federation: Federation, *, seed: int = 0) -> FoldedRows:
    """The rows of a federation's clients; what a split keeps together is never torn apart by folds."""
    _check(federation)
    federation = distinct_rows(federation)
    index, owner, code = _row_index(federation)
    lot = _lots(federation.uid[owner], index - federation.start[owner, 0], seed)
    rank = _ranks(owner, lot)
    kept, notes = _choose_rows(federation, owner, rank)
    index, owner, code, rank = index[kept], owner[kept], code[kept], rank[kept]
    present, owner = np.unique(owner, return_inverse=True)
    if len(present) < 2:
        raise BadData("advice is about how clients differ: two clients with rows are needed, got 1")
    x, said = _inputs(federation, index)
    if federation.unit:
        fold = np.where(code == 1, 0, -1)
        if not (fold == 0).any() or not (fold == -1).any():
            raise BadData(f"rows are split by {federation.unit}, but no client has valid rows to judge models by")
        notes.append(f"judged by valid rows: each {federation.unit} stays in one split")
    else:
        fold = (rank + federation.uid[present][owner]) % NUM_FOLDS
    return FoldedRows(
        np.concatenate([x, np.ones((len(x), 1))], axis=1),
        _targets(federation, index),
        owner,
        fold,
        tuple(federation.names[client] for client in present),
        federation.task,
        (*notes, *said),
    )


def _check(federation: Federation) -> None:
    if federation.task not in TASKS:
        raise Unsupported(
            f"advice rests on squared errors of linear models, which say little about a {federation.task} task; "
            "`plures decide` trains models for it and decides for every client"
        )
    if federation.num_clients < 2:
        raise BadData("advice is about how clients differ: two clients or more are needed, got 1")
    if not federation.count[:, 0].any():
        raise BadData("no client has training rows, so there is nothing to learn from")


def _row_index(federation: Federation) -> tuple[Ints, Ints, Ints]:
    """(where each training and valid row lies, whose it is, 0 for training and 1 for valid), client by client."""
    sizes = federation.count[:, :2].ravel()
    cell = np.repeat(np.arange(len(sizes)), sizes)
    first = np.cumsum(sizes) - sizes
    index = np.arange(len(cell)) + (federation.start[:, :2].ravel() - first)[cell]
    return index, cell // 2, cell % 2


def _lots(uid: Ints, index: Ints, seed: int) -> Floats:
    """A number for every row, drawn for its client and its index there: the order of clients makes no difference."""
    key = derive(root(seed), Purpose.SPLIT)

    def one(own: Any, at: Any) -> Any:
        return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, own), at))

    # Lengths are powers of two, so that data of about the same size compile once.
    length = 1 << max(len(uid) - 1, 1).bit_length()
    drawn = jax.vmap(one)(*(jnp.asarray(np.resize(values, length)) for values in (uid, index)))
    return np.asarray(drawn, float)[: len(uid)]


def _ranks(owner: Ints, lot: Floats) -> Ints:
    """The rank of every row in a random order of its client's rows."""
    order = np.lexsort((lot, owner))
    rank = np.empty(len(owner), np.int64)
    first = np.searchsorted(owner, owner)
    rank[order] = np.arange(len(owner)) - first
    return rank


def _choose_rows(federation: Federation, owner: Ints, rank: Ints) -> tuple[Ints, list[str]]:
    """The rows that are looked at, and what is left out."""
    width = min(int(np.prod(federation.shape, dtype=int)), MOST_COLUMNS) + 1
    most = min(MOST_CLIENTS, MOST_WORK // width**3)
    notes, fine = [], rank < MOST_ROWS
    if not fine.all():
        notes.append(f"of clients with more than {MOST_ROWS} rows, {MOST_ROWS} drawn ones are looked at")
    if federation.num_clients > most:
        chosen = np.argsort(_lots(federation.uid, np.zeros_like(federation.uid), 1))[:most]
        fine &= np.isin(owner, chosen)
        notes.append(f"{most:,} of {federation.num_clients:,} clients, drawn at random, are looked at")
    return np.flatnonzero(fine), notes


def _inputs(federation: Federation, index: Ints) -> tuple[Floats, list[str]]:
    """Columns on one scale; of wide inputs the main axes."""
    x = flat_table(federation.x[index])
    if not x.shape[1]:
        return x, []
    # Pixels and signals share a scale: one that hardly ever changes is not blown up.
    x = fit_scale(x, constant=1e-9, floor=0.2 if len(federation.shape) > 1 else 0.0)(x)
    np.clip(x, -FARTHEST, FARTHEST, out=x)
    if x.shape[1] <= MOST_COLUMNS:
        return x, []
    values, axes = principal_axes(x, MOST_COLUMNS)
    share = values[:MOST_COLUMNS].sum() / max(values.sum(), 1e-300)
    x = x @ axes
    x *= np.sqrt(MOST_COLUMNS / max(np.square(x).sum(1).mean(), 1e-300))
    return x, [
        f"{len(values):,} columns are reduced to {MOST_COLUMNS} main axes ({100 * share:.0f} % of the variance)"
    ]


def _targets(federation: Federation, index: Ints) -> Floats:
    """Targets, or one-hot classes, centered; the mean has loss 1."""
    y = np.asarray(federation.y[index])
    if federation.task != "regression":
        y = np.eye(federation.num_classes)[y.reshape(-1).astype(np.int64)]
    y = np.asarray(y, float).reshape(len(y), -1)
    y = y - y.mean(0)
    size = np.sqrt(np.square(y).sum(1).mean())
    if size <= 1e-12:
        raise BadData("all training targets are the same, so there is nothing to predict")
    return np.asarray(y / size)


def noise_floor(whole: RowSums, least: float = 10.0) -> float | None:
    """The error that noise leaves: what own models leave of their own rows, per row beyond the numbers of a model."""
    values, vectors = np.linalg.eigh(whole.gram)
    on = values > 1e-9 * np.maximum(values[:, -1:], 1e-300)
    turned = np.matmul(vectors.swapaxes(1, 2), whole.cross)  # (N, D, C)
    explained = (np.square(turned).sum(2) * np.where(on, 1.0 / np.where(on, values, 1.0), 0.0)).sum(1)
    spare = whole.count - on.sum(1)
    some = spare > 0
    if spare[some].sum() < least:
        return None
    return float(max((whole.square - explained)[some].sum() / spare[some].sum(), 0.0))
