"""A folder with an NPZ file per client: arrays x and y, or x_train, y_train, x_test, y_test (and valid).

Inputs that are uint8 (images) are divided by 255. Vectors are standardized by the training rows of seen clients,
and their tails tamed. Other inputs with several axes are left as they are. Missing inputs are refused.
Files are read without pickle, and checked alone and against the first client's.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plures.data.check import rows_not_below
from plures.data.scale import ColumnScale, federated_scale
from plures.data.tables.columns import LARGEST
from plures.data.tables.examination import Column, Content, Inputs, TableSummary
from plures.data.tables.files import Files
from plures.data.tables.layout import RowOwners, SplitMarks, TableLayout
from plures.data.tables.messages import RowPlaces, attempt, in_order
from plures.data.tables.options import TableOptions
from plures.data.tables.target import Labels, RawTarget, infer_labels
from plures.data.tails import knee_of, tamed_note
from plures.errors import BadData, BadFile, BadValue, UserError
from plures.wording import counted, listed

PARTS = ("_train", "_valid", "_test")
WANTED = "it should hold x and y, or x_train, y_train, x_test and y_test (with x_valid and y_valid if you like)"
WIDTH = 16


def read_arrays(files: Files, options: TableOptions, errors: list[UserError]) -> Content:
    """What a folder of NPZ files holds."""
    attempt(errors, _check_options, options)
    read = [attempt(errors, read_client, path) for path in files.paths]
    clients = [client for client in read if client is not None]
    for client in clients:
        attempt(errors, check_alike, clients[0], client)
    parts = [part for client in clients for part in client.parts]
    missing = sum(int(np.isnan(part.y).sum()) for part in parts if part.y.dtype.kind == "f")
    summary = TableSummary(
        title=files.title,
        rows=sum(len(part.x) for part in parts),
        clients=len(clients),
        columns=(Column(name="x", kind="number"), Column(name="y", kind="target", missing=missing)),
        notes=(*files.notes, *(note for client in clients for note in client.notes)),
    )
    if len(clients) < len(read) or len({client.kind for client in clients}) > 1:
        return Content(summary)
    labels = attempt(errors, _labels, parts, options.task)
    sizes = [sum(len(part.x) for part in client.parts) for client in clients]
    owners = RowOwners(np.repeat(np.arange(len(clients)), sizes), files.clients)
    return Content(
        summary,
        labels,
        owners,
        lambda: _marks(parts),
        lambda layout: _inputs(parts, layout, knee_of(options.tails)),
    )


def _check_options(options: TableOptions) -> None:
    """Refuse names of columns: arrays have none."""
    for name, use in options.uses:
        if (name, use) != ("y", "target"):
            raise BadValue(use, name, "left out for NPZ files, whose arrays are x and y")


class ArrayPart(NamedTuple):
    """The inputs and labels of one part of a file: "_train", "_valid" or "_test", or "" for rows still to be split."""

    name: str
    file: str
    x: NDArray[Any]
    y: NDArray[Any]

    @property
    def kind(self) -> str:
        """What x and y hold, in words."""
        inputs = "uint8" if self.x.dtype == np.uint8 else "number"
        return f"{inputs} inputs with {'text' if self.y.dtype.kind == 'U' else 'number'} labels"

    @property
    def label(self) -> str:
        """The file, and the part of it where there are several."""
        return f"{self.name.lstrip('_')} in {self.file}" if self.name else self.file


def _labels(parts: list[ArrayPart], task: str | None) -> Labels:
    """All labels, text as numbers with the words they stand for; infinity is refused."""
    y = np.concatenate([part.y for part in parts])
    places = RowPlaces([np.arange(1, len(part.y) + 1) for part in parts], tuple(part.label for part in parts))
    if y.dtype.kind == "U":
        found, codes = np.unique(y, return_inverse=True)
        words = in_order(str(word) for word in found)
        place = np.array([words.index(word) for word in found], np.float64)
        return infer_labels(RawTarget("y", place[codes], tuple(words)), task, places)
    values = y.astype(np.float64)
    places.refuse(np.abs(values) >= LARGEST, lambda row: f"y holds {y[row]}", "give finite numbers")
    return infer_labels(RawTarget("y", values), task, places)


def _marks(parts: list[ArrayPart]) -> SplitMarks:
    """The split codes, where the files give them."""
    if not parts[0].name:
        return SplitMarks()
    return SplitMarks(given=np.repeat([PARTS.index(part.name) for part in parts], [len(part.x) for part in parts]))


def _inputs(parts: list[ArrayPart], layout: TableLayout, knee: float) -> Inputs:
    """The inputs, with names for the columns of vectors; inputs with more axes have none."""
    xs = [part.x for part in parts]
    names = tuple(f"x{column}" for column in range(xs[0].shape[1])) if xs[0].ndim == 2 else ()
    if all(x.dtype == np.uint8 for x in xs):
        return Inputs(make=lambda: np.asarray(np.concatenate(xs)[layout.rows] / np.float32(255)), names=names)
    if xs[0].ndim > 2:
        as_is = partial(np.concatenate, dtype=np.float32, casting="same_kind")
        return Inputs(make=lambda: as_is(xs)[layout.rows], names=names)
    return _scaled(xs, layout, knee, names)


def _scaled(xs: list[NDArray[Any]], layout: TableLayout, knee: float, names: tuple[str, ...]) -> Inputs:
    """Vectors in the order of the layout, standardized, with their tails tamed."""
    scales, far = list[ColumnScale](), [np.zeros(0)]
    for block in _blocks(xs, layout):
        scales.append(federated_scale(block, layout.owner, layout.use)._replace(knee=knee))
        learned = np.abs(scales[-1].standardize(block[layout.use]))
        far.append(learned[learned > knee])

    def make() -> NDArray[np.float32]:
        blocks = [scale.apply(block) for scale, block in zip(scales, _blocks(xs, layout), strict=True)]
        return np.concatenate(blocks, axis=1)

    return Inputs(make=make, names=names, notes=tamed_note("x", np.concatenate(far), knee))


def _blocks(xs: list[NDArray[Any]], layout: TableLayout) -> Iterator[NDArray[np.float64]]:
    """A few columns at a time: the doubles that a scale needs are never there for all of them at once."""
    for first in range(0, xs[0].shape[1], WIDTH):
        yield np.concatenate([x[:, first : first + WIDTH].astype(np.float64) for x in xs])[layout.rows]


@dataclass(frozen=True, eq=False)
class ClientArrays:
    """One file's arrays by part."""

    file: str
    parts: tuple[ArrayPart, ...]
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What x and y hold, in words."""
        return self.parts[0].kind

    @property
    def whole(self) -> bool:
        """Whether the rows are still to be split."""
        return not self.parts[0].name

    @property
    def shapes(self) -> str:
        """The shapes of inputs, in words."""
        shapes = sorted({part.x.shape[1:] for part in self.parts})
        return "inputs of shape " + " and ".join(str(shape) for shape in shapes)


def read_client(path: Path) -> ClientArrays:
    """The arrays of a file, each checked by itself."""
    if not path.stat().st_size:
        raise BadFile(f"{path.name} is empty (0 bytes)")
    stored = _load(path)
    names = _parts(path.name, stored)
    extra = sorted(set(stored) - {f"{letter}{name}" for name in names for letter in "xy"})
    note = f"{path.name}: arrays that are not used: {listed(extra)}"
    parts = tuple(ArrayPart(name, path.name, *_rows(stored[f"x{name}"], stored[f"y{name}"])) for name in names)
    client = ClientArrays(path.name, parts, (note,) if extra else ())
    _check(client)
    return client


def _rows(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Inputs with an axis besides the rows; labels without a needless last axis, truth as text, as in a table."""
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    return x[:, None] if x.ndim == 1 else x, np.where(y, "true", "false") if y.dtype.kind == "b" else y


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


def _check(client: ClientArrays) -> None:
    """Refuse arrays that do not fit together or hold something else than they should."""
    for part in client.parts:
        _check_part(part)
    if len({part.x.shape[1:] for part in client.parts}) > 1:
        raise BadData(f"{client.file} holds {client.shapes}; all must agree")
    kinds = sorted({part.kind for part in client.parts})
    if len(kinds) > 1:
        raise BadData(f"{client.file} holds {' and '.join(kinds)}; all must agree")
    if not any(len(part.x) for part in client.parts):
        raise BadData(f"{client.file} has no rows")


def _check_part(part: ArrayPart) -> None:
    name, file, x, y = part
    x_name, y_name = f"x{name}", f"y{name}"
    if x.ndim == 0:
        raise BadData(f"{x_name} in {file} is a single value; give a row per example")
    if x.dtype.kind not in "fiub":
        raise BadData(f"{x_name} in {file} holds {x.dtype}; give numbers")
    if y.dtype.kind not in "fiuU":
        raise BadData(f"{y_name} in {file} holds {y.dtype}; give numbers or text")
    if y.ndim != 1:
        raise BadData(f"{y_name} in {file} has the shape {y.shape}; give one label per row")
    if len(x) != len(y):
        raise BadData(f"{file} has {counted(len(x), 'row')} in {x_name} but {len(y):,} in {y_name}")
    if x.dtype.kind == "f" and len(bad := rows_not_below(x, LARGEST)):
        raise BadData(f"{x_name} in {file} holds NaN or infinity in row {bad[0] + 1}; give finite numbers")
    if 0 in x.shape[1:]:
        raise BadData(f"{x_name} in {file} has the shape {x.shape}; give at least one input per row")


def check_alike(first: ClientArrays, other: ClientArrays) -> None:
    """Refuse a client whose arrays have another layout, kind or shape than the first client's."""
    if first.whole != other.whole:
        whole, cut = (first, other) if first.whole else (other, first)
        raise BadData(f"{whole.file} holds x and y but {cut.file} holds x_train and so on; give all the same")
    for one, two in ((first.kind, other.kind), (first.shapes, other.shapes)):
        if one != two:
            raise BadData(f"{first.file} holds {one} but {other.file} {two}; all clients must agree")
