"""Checks at the border: every inconsistency of given arrays is refused in one clear line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plures.errors import BadData, BadValue, UnknownChoice


def as_array(name: str, given: Any) -> NDArray[Any]:
    """The values as an array with at least one axis."""
    try:
        values = np.asarray(given)
    except ValueError as error:
        raise BadData(f"{name} must be an array; its rows differ in length") from error
    if values.ndim == 0:
        raise BadData(f"{name} must be an array with a row per example, got the single value {given!r}")
    return values


def labels_of(y: NDArray[Any], task: str) -> NDArray[Any]:
    """Labels without a needless last axis; one label per example where the task wants that."""
    if task != "sequence" and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if task in ("classification", "density") and y.ndim != 1:
        raise BadData(f"{task} wants one label per example, got labels of shape {y.shape}")
    return y


def check_arrays(x: NDArray[Any], y: NDArray[Any], client: NDArray[Any], task: str, num_classes: int | None) -> int:
    """The number of classes (0 for regression), or an error that names what is wrong."""
    if client.ndim != 1:
        raise BadData(f"client must have one entry per example, got an array of shape {client.shape}")
    if not len(x) == len(y) == len(client):
        raise BadData(f"x, y and client must be equally long, got {len(x)}, {len(y)} and {len(client)} examples")
    if not len(x):
        raise BadData("there are no examples; give at least one")
    _check_finite("x", x)
    _check_finite("y", y)
    if task == "regression":
        return 0
    return _check_classes(y, num_classes)


def _check_finite(name: str, values: NDArray[Any]) -> None:
    if values.dtype.kind not in "fiub":
        raise BadData(f"{name} must hold numbers, got dtype {values.dtype}")
    if values.dtype.kind == "f":
        bad = rows_not_below(values, np.inf)
        if len(bad):
            where = f"row {bad[0]}" if len(bad) == 1 else f"{len(bad)} rows, the first is row {bad[0]}"
            raise BadData(f"{name} holds NaN or infinity in {where}")


def rows_not_below(values: NDArray[Any], limit: float, block: int = 4096) -> NDArray[np.int64]:
    """Rows with NaN or a size of ``limit`` or more, looked for in blocks: large data need no second copy."""
    fine = [
        (np.abs(values[first : first + block]) < np.float64(limit)).all(axis=tuple(range(1, values.ndim)))
        for first in range(0, len(values), block)
    ]
    return np.flatnonzero(~np.concatenate([np.ones(0, bool), *fine]))


def _check_classes(y: NDArray[Any], num_classes: int | None) -> int:
    if y.dtype.kind == "f" and (y != np.floor(y)).any():
        raise BadData("labels must be whole numbers for classification; for real targets use task='regression'")
    if num_classes is not None and num_classes < 1:
        raise BadValue("num_classes", num_classes, "1 or more")
    low, high = int(y.min()), int(y.max())
    known = high + 1 if num_classes is None else num_classes
    if low < 0 or high >= known:
        raise BadData(f"labels must lie in 0..{known - 1}, found {low if low < 0 else high}")
    return known


def check_shares(shares: Sequence[float]) -> None:
    """Refuse shares that are not three non-negative numbers adding up to 1 with some left to train."""
    fine = len(shares) == 3 and min(shares) >= 0 and abs(sum(shares) - 1) < 1e-6 and shares[0] > 0
    if not fine:
        raise BadValue("shares", tuple(shares), "three numbers >= 0 that add up to 1, the first above 0")


def split_codes(split: ArrayLike, length: int, splits: Sequence[str]) -> NDArray[np.int64]:
    """0, 1, 2 for "train", "valid", "test"; numbers stay what they are."""
    given = as_array("split", split)
    if len(given) != length:
        raise BadData(f"split must have one entry per example, got {len(given)} for {length}")
    if given.dtype.kind in "iu":
        wrong = given[(given < 0) | (given >= len(splits))]
        if len(wrong):
            raise BadValue("split", int(wrong[0]), f"0, 1 or 2 ({', '.join(splits)}) where it is a number")
        return given.astype(np.int64)
    words, inverse = np.unique(given.astype(str), return_inverse=True)
    for word in words:
        if word not in splits:
            raise UnknownChoice("split", str(word), splits)
    return np.array([list(splits).index(word) for word in words], np.int64)[inverse]


def one_per_client(what: str, given: Mapping[str, int] | None, names: NDArray[Any]) -> NDArray[np.int64] | None:
    """The number of every client in order, or an error that names the first client without one."""
    if given is None:
        return None
    numbers = {str(name): int(number) for name, number in given.items()}
    for name in names:
        if str(name) not in numbers:
            raise BadData(f"client '{name}' has no {what}; give every client one, or none at all")
    found = np.array([numbers[str(name)] for name in names], np.int64)
    if found.min() < 0:
        raise BadData(f"{what} numbers start at 0, found {found.min()}")
    return found
