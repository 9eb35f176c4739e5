"""A folder with an NPZ file per client: arrays x and y, or x_train, y_train, x_test, y_test (and valid).

Inputs that are uint8 (images) are divided by 255. Vectors are standardized by the training rows of seen clients.
Other inputs with several axes are left as they are. Missing inputs are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plures.data.own.columns import LARGEST
from plures.data.own.files import Files
from plures.data.own.found import Found, federation_of, with_labels, with_layout
from plures.data.own.layout import Layout, Marks, Owners, check_unseen, lay_out
from plures.data.own.npz import PARTS, Client, check_alike, read_client
from plures.data.own.options import TableOptions
from plures.data.own.summary import Column, Summary
from plures.data.own.target import Raw, labels
from plures.data.own.words import Places, attempt, in_order
from plures.data.scale import federated_scale
from plures.errors import BadData, BadValue, UserError

WIDTH = 16


def examine_arrays(files: Files, options: TableOptions, errors: list[UserError]) -> Found:
    """Everything about a folder of NPZ files."""
    attempt(errors, _check_options, options)
    read = [attempt(errors, read_client, path) for path in files.paths]
    clients = [client for client in read if client is not None]
    for client in clients:
        attempt(errors, check_alike, clients[0], client)
    summary = _summary(files, clients)
    if len(clients) < len(read) or len({client.kind for client in clients}) > 1:
        return Found.of(summary, errors)
    places = _places(clients)
    raw = attempt(errors, _raw, clients, places)
    target = None if raw is None else attempt(errors, labels, raw, options.task, places)
    summary = with_labels(summary, target)
    owners = Owners(_owner(clients), files.clients)
    if errors or target is None:
        check_unseen(owners, options, errors)
        return Found.of(summary, errors)
    layout = lay_out(target, owners, Marks(given=_given(clients)), options, errors)
    if layout is None:
        return Found.of(summary, errors)
    xs = [x for client in clients for x in client.xs]
    return Found(
        with_layout(replace(summary, feature_names=_features(xs[0])), layout),
        make=lambda: federation_of(inputs(xs, layout), target, layout, files.title),
    )


def inputs(xs: list[NDArray[Any]], layout: Layout) -> NDArray[np.float32]:
    """The inputs in the order of the layout, scaled by the rule for their kind."""
    if all(x.dtype == np.uint8 for x in xs):
        return np.asarray(np.concatenate(xs)[layout.rows] / np.float32(255))
    if xs[0].ndim > 2:
        return np.concatenate(xs, dtype=np.float32, casting="same_kind")[layout.rows]
    out = np.empty((len(layout.rows), xs[0].shape[1]), np.float32)
    # A few columns at a time: the doubles that a scale needs are never there for all of them at once.
    for first in range(0, out.shape[1], WIDTH):
        block = np.concatenate([x[:, first : first + WIDTH].astype(np.float64) for x in xs])[layout.rows]
        out[:, first : first + WIDTH] = federated_scale(block, layout.owner, layout.use).apply(block)
    return out


def _check_options(options: TableOptions) -> None:
    """Refuse names of columns: arrays have none."""
    for name, use in options.uses:
        if (name, use) != ("y", "target"):
            raise BadValue(use, name, "left out for NPZ files, whose arrays are x and y")


def _summary(files: Files, clients: list[Client]) -> Summary:
    rows = sum(len(x) for client in clients for x in client.xs)
    notes = (*files.notes, *(note for client in clients for note in client.notes))
    columns = (Column(name="x", kind="number"), Column(name="y", kind="target", missing=_missing(clients)))
    return Summary(title=files.title, rows=rows, clients=len(clients), columns=columns, notes=notes)


def _missing(clients: list[Client]) -> int:
    return sum(int(np.isnan(y).sum()) for client in clients for y in client.ys if y.dtype.kind == "f")


def _places(clients: list[Client]) -> Places:
    sizes = [len(x) for client in clients for x in client.xs]
    labels_of = tuple(client.label(part) for client in clients for part in client.parts)
    first = tuple(int(row) for row in np.cumsum(sizes) - sizes)
    return Places(np.concatenate([np.arange(1, size + 1) for size in sizes]), labels_of, first)


def _raw(clients: list[Client], places: Places) -> Raw:
    """All labels, text as numbers with the words they stand for; infinity is refused."""
    y = np.concatenate([y for client in clients for y in client.ys])
    if y.dtype.kind == "U":
        found, codes = np.unique(y, return_inverse=True)
        words = in_order(str(word) for word in found)
        place = np.array([words.index(word) for word in found], np.float64)
        return Raw("y", place[codes], tuple(words))
    bad = np.flatnonzero(np.abs(y.astype(np.float64)) >= LARGEST)
    if len(bad):
        raise BadData(f"y holds {y[bad[0]]} in {places.of_all(bad)}; give finite numbers")
    return Raw("y", y.astype(np.float64))


def _owner(clients: list[Client]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(clients)), [sum(map(len, client.xs)) for client in clients])


def _given(clients: list[Client]) -> NDArray[np.int64] | None:
    """The split codes, where the files give them."""
    if clients[0].parts == ("",):
        return None
    codes = [
        (PARTS.index(part), len(x)) for client in clients for part, x in zip(client.parts, client.xs, strict=True)
    ]
    return np.repeat([code for code, _ in codes], [size for _, size in codes])


def _features(x: NDArray[Any]) -> tuple[str, ...]:
    """Names for the columns of vectors; inputs with more axes have none."""
    return tuple(f"x{column}" for column in range(x.shape[1])) if x.ndim == 2 else ()
