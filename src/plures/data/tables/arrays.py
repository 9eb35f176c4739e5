"""A folder with an NPZ file per client: arrays x and y, or x_train, y_train, x_test, y_test (and valid).

Inputs that are uint8 (images) are divided by 255. Vectors are standardized by the training rows of seen clients,
and their tails tamed.
Other inputs with several axes are left as they are. Missing inputs are refused.
Files are read without pickle, and checked alone and against the first client's.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plures.data.check import rows_not_below
from plures.data.federation import Federation
from plures.data.scale import federated_scale
from plures.data.tables.columns import LARGEST
from plures.data.tables.examination import (
    Column,
    Examination,
    TableSummary,
    federation_of,
    with_labels,
    with_layout,
)
from plures.data.tables.files import Files
from plures.data.tables.layout import RowOwners, SplitMarks, TableLayout, check_unseen, lay_out
from plures.data.tables.messages import RowPlaces, attempt, in_order
from plures.data.tables.options import TableOptions
from plures.data.tables.target import Labels, RawTarget, infer_labels
from plures.data.tails import knee_of, tamed_note
from plures.errors import BadData, BadFile, BadValue, UserError
from plures.wording import counted, listed

PARTS = ("_train", "_valid", "_test")
WANTED = "it should hold x and y, or x_train, y_train, x_test and y_test (with x_valid and y_valid if you like)"
WIDTH = 16


def examine_arrays(files: Files, options: TableOptions, errors: list[UserError]) -> Examination:
    """Everything about a folder of NPZ files."""
    attempt(errors, _check_options, options)
    read = [attempt(errors, read_client, path) for path in files.paths]
    clients = [client for client in read if client is not None]
    for client in clients:
        attempt(errors, check_alike, clients[0], client)
    summary = _summary(files, clients)
    if len(clients) < len(read) or len({client.kind for client in clients}) > 1:
        return Examination.of(summary, errors)
    places = _places(clients)
    raw = attempt(errors, _raw, clients, places)
    target = None if raw is None else attempt(errors, infer_labels, raw, options.task, places)
    summary = with_labels(summary, target)
    sizes = [sum(map(len, client.xs)) for client in clients]
    owners = RowOwners(np.repeat(np.arange(len(clients)), sizes), files.clients)
    if errors or target is None:
        check_unseen(owners, options, errors)
        return Examination.of(summary, errors)
    layout = lay_out(target, owners, SplitMarks(given=_given(clients)), options, errors)
    if layout is None:
        return Examination.of(summary, errors)
    xs = [x for client in clients for x in client.xs]
    return Examination(
        with_layout(replace(summary, feature_names=_features(xs[0])), layout),
        make=lambda: _made(xs, layout, target, files.title, knee_of(options.tails)),
    )


def _made(xs: list[NDArray[Any]], layout: TableLayout, target: Labels, title: str, knee: float) -> Federation:
    x, notes = inputs(xs, layout, knee)
    return federation_of(x, target, layout, title).noted(*notes)


def inputs(xs: list[NDArray[Any]], layout: TableLayout, knee: float) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """The inputs in the order of the layout, scaled by the rule for their kind, and notes on what became of them."""
    if all(x.dtype == np.uint8 for x in xs):
        return np.asarray(np.concatenate(xs)[layout.rows] / np.float32(255)), ()
    if xs[0].ndim > 2:
        return np.concatenate(xs, dtype=np.float32, casting="same_kind")[layout.rows], ()
    out, far = np.empty((len(layout.rows), xs[0].shape[1]), np.float32), [np.zeros(0)]
    # A few columns at a time: the doubles that a scale needs are never there for all of them at once.
    for first in range(0, out.shape[1], WIDTH):
        block = np.concatenate([x[:, first : first + WIDTH].astype(np.float64) for x in xs])[layout.rows]
        scale = federated_scale(block, layout.owner, layout.use)._replace(knee=knee)
        out[:, first : first + WIDTH] = scale.apply(block)
        learned = np.abs(scale.standardize(block[layout.use]))
        far.append(learned[learned > knee])
    return out, tamed_note("x", np.concatenate(far), knee)


def _check_options(options: TableOptions) -> None:
    """Refuse names of columns: arrays have none."""
    for name, use in options.uses:
        if (name, use) != ("y", "target"):
            raise BadValue(use, name, "left out for NPZ files, whose arrays are x and y")


def _summary(files: Files, clients: list[ClientArrays]) -> TableSummary:
    rows = sum(len(x) for client in clients for x in client.xs)
    missing = sum(int(np.isnan(y).sum()) for client in clients for y in client.ys if y.dtype.kind == "f")
    notes = (*files.notes, *(note for client in clients for note in client.notes))
    columns = (Column(name="x", kind="number"), Column(name="y", kind="target", missing=missing))
    return TableSummary(title=files.title, rows=rows, clients=len(clients), columns=columns, notes=notes)


def _places(clients: list[ClientArrays]) -> RowPlaces:
    sizes = [len(x) for client in clients for x in client.xs]
    labels_of = tuple(client.label(part) for client in clients for part in client.parts)
    first = tuple(int(row) for row in np.cumsum(sizes) - sizes)
    return RowPlaces(np.concatenate([np.arange(1, size + 1) for size in sizes]), labels_of, first)


def _raw(clients: list[ClientArrays], places: RowPlaces) -> RawTarget:
    """All labels, text as numbers with the words they stand for; infinity is refused."""
    y = np.concatenate([y for client in clients for y in client.ys])
    if y.dtype.kind == "U":
        found, codes = np.unique(y, return_inverse=True)
        words = in_order(str(word) for word in found)
        place = np.array([words.index(word) for word in found], np.float64)
        return RawTarget("y", place[codes], tuple(words))
    bad = np.flatnonzero(np.abs(y.astype(np.float64)) >= LARGEST)
    if len(bad):
        raise BadData(f"y holds {y[bad[0]]} in {places.of_all(bad)}; give finite numbers")
    return RawTarget("y", y.astype(np.float64))


def _given(clients: list[ClientArrays]) -> NDArray[np.int64] | None:
    """The split codes, where the files give them."""
    if clients[0].parts == ("",):
        return None
    codes = [PARTS.index(part) for client in clients for part in client.parts]
    return np.repeat(codes, [len(x) for client in clients for x in client.xs])


def _features(x: NDArray[Any]) -> tuple[str, ...]:
    """Names for the columns of vectors; inputs with more axes have none."""
    return tuple(f"x{column}" for column in range(x.shape[1])) if x.ndim == 2 else ()


@dataclass(frozen=True, eq=False)
class ClientArrays:
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


def read_client(path: Path) -> ClientArrays:
    """The arrays of a file, each checked by itself."""
    if not path.stat().st_size:
        raise BadFile(f"{path.name} is empty (0 bytes)")
    stored = _load(path)
    parts = _parts(path.name, stored)
    used = {f"{letter}{part}" for part in parts for letter in "xy"}
    extra = sorted(set(stored) - used)
    note = f"{path.name}: arrays that are not used: {listed(extra)}"
    given = [stored[f"x{part}"] for part in parts]
    xs = tuple(x[:, None] if x.ndim == 1 else x for x in given)  # an axis besides the rows
    ys = tuple(_as_labels(stored[f"y{part}"]) for part in parts)
    client = ClientArrays(path.name, parts, xs, ys, (note,) if extra else ())
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


def _as_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Labels without a needless last axis; truth as text, as in a table."""
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    return np.where(y, "true", "false") if y.dtype.kind == "b" else y


def _check(client: ClientArrays) -> None:
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
    """Refuse NaN and infinity by row."""
    if x.dtype.kind == "f" and len(bad := rows_not_below(x, LARGEST)):
        raise BadData(f"{what} holds NaN or infinity in row {bad[0] + 1}; give finite numbers")


def check_alike(first: ClientArrays, other: ClientArrays) -> None:
    """Refuse a client whose arrays have another layout, kind or shape than the first client's."""
    if (first.parts == ("",)) != (other.parts == ("",)):
        whole, cut = (first, other) if first.parts == ("",) else (other, first)
        raise BadData(f"{whole.file} holds x and y but {cut.file} holds x_train and so on; give all the same")
    for one, two in ((first.kind, other.kind), (_shapes(first), _shapes(other))):
        if one != two:
            raise BadData(f"{first.file} holds {one} but {other.file} {two}; all clients must agree")


def _shapes(client: ClientArrays) -> str:
    return "inputs of shape " + " and ".join(str(shape) for shape in sorted({x.shape[1:] for x in client.xs}))
