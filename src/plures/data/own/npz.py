"""One client's NPZ file: read without pickle, and checked alone and against the other clients' files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plures.data.own.columns import LARGEST
from plures.data.own.words import counted, listed
from plures.errors import BadData, BadFile

PARTS = ("_train", "_valid", "_test")
WANTED = "it should hold x and y, or x_train, y_train, x_test and y_test (with x_valid and y_valid if you like)"
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Client:
    """One file's arrays by part: "_train", "_valid" and "_test", or "" for rows that are still to be split."""

    file: str
    parts: tuple[str, ...]
    xs: tuple[NDArray[Any], ...]
    ys: tuple[NDArray[Any], ...]
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What x and y hold, in words."""
        return _kind(self.xs[0], self.ys[0])

    def label(self, part: str) -> str:
        """The file, and the part of it where there are several."""
        return f"{part.lstrip('_')} in {self.file}" if part else self.file


def read_client(path: Path) -> Client:
    """The arrays of a file, each checked by itself."""
    if not path.stat().st_size:
        raise BadFile(f"{path.name} is empty (0 bytes)")
    stored = _load(path)
    parts = _parts(path.name, stored)
    used = {f"{letter}{part}" for part in parts for letter in "xy"}
    extra = sorted(set(stored) - used)
    note = f"{path.name}: arrays that are not used: {listed(extra)}"
    xs = tuple(_as_rows(stored[f"x{part}"]) for part in parts)
    ys = tuple(_as_labels(stored[f"y{part}"]) for part in parts)
    client = Client(path.name, parts, xs, ys, (note,) if extra else ())
    _check(client)
    return client


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    # A single stored array is no context manager (TypeError); the others are what a damaged archive raises.
    except (OSError, ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise BadFile(f"{path.name} is damaged or no NPZ file of plain arrays; {WANTED}") from error


def _parts(file: str, stored: Collection[str]) -> tuple[str, ...]:
    """Which parts the keys make up; a key too few is refused."""
    plain = "x" in stored or "y" in stored
    given = [part for part in PARTS if f"x{part}" in stored or f"y{part}" in stored]
    if plain and given:
        raise BadFile(f"{file} holds x or y besides {listed([f'x{part}' for part in given])}; {WANTED}")
    parts = ("",) if plain else tuple(part for part in PARTS if part in given or part != "_valid")
    lacks = [f"{letter}{part}" for part in parts for letter in "xy" if f"{letter}{part}" not in stored]
    if lacks:
        raise BadFile(f"{file} lacks {listed(lacks)}; {WANTED}")
    return parts


def _as_rows(x: NDArray[Any]) -> NDArray[Any]:
    """Inputs with at least one axis besides the rows."""
    return x[:, None] if x.ndim == 1 else x


def _as_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Labels without a needless last axis; truth as text, as in a table."""
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    return np.where(y, "true", "false") if y.dtype.kind == "b" else y


def _check(client: Client) -> None:
    """Refuse arrays that do not fit together or hold something else than they should."""
    for part, x, y in zip(client.parts, client.xs, client.ys, strict=True):
        if x.ndim == 0:
            raise BadData(f"x{part} in {client.file} is a single value; give a row per example")
        if x.dtype.kind not in "fiub":
            raise BadData(f"x{part} in {client.file} holds {x.dtype}; give numbers")
        if y.dtype.kind not in "fiuU":
            raise BadData(f"y{part} in {client.file} holds {y.dtype}; give numbers or text")
        if y.ndim != 1:
            raise BadData(f"y{part} in {client.file} has the shape {y.shape}; give one label per row")
        if len(x) != len(y):
            raise BadData(f"{client.file} has {counted(len(x), 'row')} in x{part} but {len(y):,} in y{part}")
        _check_finite(f"x{part} in {client.file}", x)
        if 0 in x.shape[1:]:
            raise BadData(f"x{part} in {client.file} has the shape {x.shape}; give at least one input per row")
    if len({x.shape[1:] for x in client.xs}) > 1:
        raise BadData(f"{client.file} holds {_shapes(client)}; all must agree")
    kinds = sorted({_kind(x, y) for x, y in zip(client.xs, client.ys, strict=True)})
    if len(kinds) > 1:
        raise BadData(f"{client.file} holds {' and '.join(kinds)}; all must agree")
    if not sum(map(len, client.xs)):
        raise BadData(f"{client.file} has no rows")


def _kind(x: NDArray[Any], y: NDArray[Any]) -> str:
    inputs = "uint8" if x.dtype == np.uint8 else "number"
    return f"{inputs} inputs with {'text' if y.dtype.kind == 'U' else 'number'} labels"


def _check_finite(what: str, x: NDArray[Any]) -> None:
    """Refuse NaN and infinity by row; in blocks, so that large inputs need no second copy."""
    if x.dtype.kind != "f":
        return
    for first in range(0, len(x), BLOCK):
        block = x[first : first + BLOCK]
        bad = np.flatnonzero(~(np.abs(block.reshape(len(block), -1)) < np.float64(LARGEST)).all(axis=1))
        if len(bad):
            row = first + int(bad[0]) + 1
            raise BadData(f"{what} holds NaN or infinity in row {row}; give finite numbers")


def check_alike(first: Client, other: Client) -> None:
    """Refuse a client whose arrays have another layout, kind or shape than the first client's."""
    if (first.parts == ("",)) != (other.parts == ("",)):
        whole, cut = (first, other) if first.parts == ("",) else (other, first)
        raise BadData(f"{whole.file} holds x and y but {cut.file} holds x_train and so on; give all the same")
    for one, two in ((first.kind, other.kind), (_shapes(first), _shapes(other))):
        if one != two:
            raise BadData(f"{first.file} holds {one} but {other.file} {two}; all clients must agree")


def _shapes(client: Client) -> str:
    return "inputs of shape " + " and ".join(str(shape) for shape in sorted({x.shape[1:] for x in client.xs}))
