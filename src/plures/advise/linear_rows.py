"""A federation's rows for linear models: who takes part, columns on one scale, and how models are scored.

Clients with too few rows are left out and named. Columns are put on one scale by their pooled mean and spread, and
may be reduced to the first principal axes of all training rows: sums over clients are enough for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plures.advise.preparation import POOLED, fit_scale, flat_table, principal_axes
from plures.data import Federation
from plures.errors import BadData, BadValue, Unsupported
from plures.solvers.losses import LINEAR_LOSSES, LinearLoss
from plures.types import Floats

MOST_NUMBERS = 400
"""A model of more numbers than this is refused: curvatures of so many numbers are large."""

NEAR = 0.1
"""Columns that scaling moves by less than this, in deviations, are on one scale as they are."""

LOSSES = {"classification": "multinomial", "binary": "logistic", "regression": "least_squares"}
"""The loss of each task; two classes are "binary" to those who ask for it."""


@dataclass(frozen=True, eq=False)
class SplitRows:
    """Tables and targets of one split, a pair per client; clients without rows have empty ones."""

    tables: list[Floats]
    targets: list[Floats]

    @property
    def counts(self) -> list[int]:
        """Rows of each client."""
        return [len(target) for target in self.targets]


@dataclass(frozen=True, eq=False)
class LinearRows:
    """The clients that take part, and their rows on one scale by split; ``left_out`` have no training or no test rows.

    ``scaled`` puts inputs on that scale. ``as_given``: columns were on it already, but for ``NEAR``.
    """

    names: tuple[str, ...]
    left_out: tuple[str, ...]
    parts: dict[str, SplitRows]
    as_given: bool
    scaled: Callable[[Any], Floats] = flat_table

    @property
    def remarks(self) -> list[str]:
        """Where rows are read, and who is left out, if anybody."""
        named = ", ".join(sorted(self.left_out))
        return [POOLED, *([f"left out, for want of training or test rows: {named}"] if named else [])]

    def of(self, federation: Federation, names: Sequence[str], split: str) -> SplitRows:
        """The rows of some clients of a federation."""
        own = [federation.rows_of(name, split) for name in names]
        return SplitRows([self.scaled(x) for x, _ in own], [np.asarray(y, float).reshape(-1) for _, y in own])

    def keep(self, names: Sequence[str]) -> LinearRows:
        """Those of some clients."""
        places = [self.names.index(name) for name in names]
        parts = {
            split: SplitRows([part.tables[one] for one in places], [part.targets[one] for one in places])
            for split, part in self.parts.items()
        }
        return replace(self, names=tuple(names), parts=parts)


def prepare_linear_rows(
    federation: Federation, *, axes: int | None, splits: Sequence[str] = ("train", "test"), deed: str
) -> LinearRows:
    """The rows of clients that have some to train and to test on; ``deed`` is what is done with their models."""
    if federation.task not in LOSSES:
        raise Unsupported(f"linear models of a {federation.task} task cannot be {deed}; known: {', '.join(LOSSES)}")
    if not np.prod(federation.shape):
        raise Unsupported(f"these clients have no input columns; what is {deed} are linear models of columns")
    if federation.y.ndim > 1 and federation.y.shape[1] > 1:
        raise Unsupported(f"these data have several targets per row; linear models of one target can be {deed}")
    kept = _clients_with_rows(federation)
    pooled = np.concatenate([flat_table(federation.rows_of(name, "train")[0]) for name in kept])
    columns = fit_columns(pooled, axes)
    left_out = tuple(name for name in federation.names if name not in set(kept))
    rows = LinearRows(
        tuple(kept), left_out, {}, _is_unmoved(pooled, columns(pooled)), lambda x: columns(flat_table(x))
    )
    return replace(rows, parts={split: rows.of(federation, kept, split) for split in splits})


def _clients_with_rows(federation: Federation) -> list[str]:
    """The clients with training and test rows; two are needed."""
    counts = federation.count
    if not counts[:, 2].any():
        raise BadData(
            "no client has test rows, so models cannot be judged; a named set is split as it comes, "
            "a table or a folder of your own as --shares 0.6,0.2,0.2 says"
        )
    kept = [name for name, row in zip(federation.names, counts, strict=True) if row[0] > 0 and row[2] > 0]
    if len(kept) < 2:
        have = "1 client has" if len(kept) == 1 else "0 clients have"
        raise BadData(f"{have} training and test rows; two or more are needed")
    return kept


def _is_unmoved(before: Floats, after: Floats) -> bool:
    """Whether no column was moved much."""
    return before.shape == after.shape and bool(np.sqrt(np.square(after - before).mean(0)).max() < NEAR)


def fit_columns(rows: Floats, axes: int | None) -> Callable[[Floats], Floats]:
    """A function that puts columns on one scale, on the first principal axes where ``axes`` are asked for."""
    if axes is not None and axes < 1:
        raise BadValue("axes", axes, "1 or more")
    scale = fit_scale(rows, constant=1e-12)
    if axes is None or axes >= rows.shape[1]:
        return scale
    values, vectors = principal_axes(scale(rows), axes)
    main = vectors / np.sqrt(np.maximum(values[:axes], 1e-12))
    return lambda table: scale(table) @ main


def check_width(width: int, num_outputs: int) -> None:
    """Refuse a model of too many numbers; ``width`` counts columns, and the intercept if there is one."""
    numbers = width * num_outputs
    if numbers > MOST_NUMBERS:
        wanted = max(1, MOST_NUMBERS // num_outputs - 1)
        raise Unsupported(
            f"a model would have {numbers:,} numbers, more than {MOST_NUMBERS}: reduce the columns to their "
            f"principal axes, at most {wanted} here (--axes {min(wanted, 16)})"
        )


def link_of(loss: str, federation: Federation) -> LinearLoss:
    """The loss called so; "auto" is that of the task."""
    two = federation.task == "classification" and federation.num_classes == 2
    name = LOSSES["binary" if two else federation.task] if loss == "auto" else loss
    return LINEAR_LOSSES[name](max(federation.num_classes, 2)) if name == "multinomial" else LINEAR_LOSSES[name]()


def metric_of(loss: str) -> str:
    """What models with this loss are scored by."""
    return "RMSE" if loss in ("least_squares", "huber", "poisson") else "accuracy"


def score(given: Floats, wanted: Floats, loss: str) -> float:
    """The accuracy, or the root of the mean squared error, of outputs (rows,) or (rows, classes)."""
    if loss == "multinomial":
        return float((given.argmax(1) == wanted).mean())
    if loss in ("logistic", "squared_hinge"):
        return float(((given > 0) == (wanted > 0.5)).mean())
    guess = np.exp(np.minimum(given, 200.0)) if loss == "poisson" else given
    return float(np.sqrt(((guess - wanted) ** 2).mean()))
