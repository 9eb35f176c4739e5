"""A picture of a federation: how large its clients are, and how their labels and inputs differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgba_array
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from plures.data.federation import SPLITS, Federation
from plures.data.measure import input_numbers, measure_differences, train_rows
from plures.errors import BadFile, BadValue
from plures.report.figures import COLORS

MOST_CLIENTS = 60
MOST_DOTS = 500
MOST_SYMBOLS = 30
MOST_TICKS = 15
NUM_EXAMPLES = 6
SHADES = ("#0072B2", "#56B4E9", "#BBBBBB")


def picture(federation: Federation, path: str | Path, *, class_names: Sequence[str] | None = None) -> Path:
    """A figure as a file: sizes of clients, labels per client, mean inputs per client, and images where there are.

    The titles carry ``measure``'s numbers. Many clients are shown by an even pick, and the title says so.
    """
    class_names = class_names or federation.class_names or None
    if class_names is not None and len(class_names) != federation.num_classes:
        raise BadValue("class_names", list(class_names), f"{federation.num_classes} names, one per class")
    numbers = measure_differences(federation)
    figure, axes = _panels(federation)
    draw_sizes(axes.pop(0), federation, _said("quantity skew", numbers["quantity_skew"]))
    draw_labels(axes.pop(0), federation, _said("label skew", numbers["label_skew"]), class_names)
    if axes:
        draw_inputs(axes.pop(0), federation, _said("feature shift", numbers["feature_shift"]))
    if axes:
        draw_images(axes.pop(0), federation)
    figure.suptitle(_headline(federation))
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise BadFile(f"{path} cannot be written: {error}") from error
    finally:
        plt.close(figure)
    return Path(path)


def _panels(federation: Federation) -> tuple[Any, list[Any]]:
    """(figure, its axes): two without inputs, three with them, four with images."""
    with_inputs = bool(np.prod(federation.shape, dtype=int))
    rows, columns = (2, 2) if _are_images(federation) else (1, 2 + with_inputs)
    figure, axes = plt.subplots(rows, columns, figsize=(5.6 * columns, 4.4 * rows + 0.4), layout="constrained")
    return figure, list(np.ravel(axes))


def _said(name: str, number: float | None) -> str:
    return f"{name} unknown" if number is None else f"{name} {number:.2f}"


def _headline(federation: Federation) -> str:
    train, valid, test = (f"{number:,}" for number in federation.count.sum(0))
    clients = "1 client" if federation.num_clients == 1 else f"{federation.num_clients:,} clients"
    return f"{_text(federation.title)}: {clients}, {train} train, {valid} valid and {test} test rows ({federation.task})"


def _text(name: str, longest: int = 24) -> str:
    """A name that is not too long, and not taken for a formula."""
    short = name if len(name) <= longest else name[: longest - 1] + "…"
    return short.replace("$", r"\$")


def draw_sizes(axis: Any, federation: Federation, number: str) -> None:
    """Rows of every client by split, stacked; clients in the order of their training rows."""
    counts = federation.count[np.lexsort((-federation.count.sum(1), -federation.count[:, 0]))].T
    place = np.arange(federation.num_clients)
    base = np.zeros(federation.num_clients)
    for split, color, rows in zip(SPLITS, SHADES, counts, strict=True):
        if federation.num_clients <= MOST_CLIENTS:
            axis.bar(place, rows, bottom=base, width=1.0, color=color, label=split, edgecolor="white", lw=0.5)
        else:
            axis.fill_between(place, base, base + rows, color=color, label=split, step="mid", lw=0)
        base = base + rows
    axis.set(xlim=(-0.5, federation.num_clients - 0.5), ylabel="rows", title=f"Sizes ({number})")
    # Room above the largest client for the legend; a logarithm where most clients would be a line at the bottom.
    if base.max() > 50 * np.median(base):
        axis.set(yscale="log", ylim=(0.8, 4 * base.max()), ylabel="rows (logarithmic)")
    else:
        axis.set_ylim(0, 1.18 * max(base.max(), 1))
    _whole_ticks(axis, "clients, sorted by training rows")
    axis.legend(frameon=False, loc="upper right", ncols=3)


def draw_labels(axis: Any, federation: Federation, number: str, class_names: Sequence[str] | None) -> None:
    """Which labels every client has: shares of classes or symbols, or quantiles of a target."""
    if federation.task == "regression":
        _targets(axis, federation, number)
    else:
        _shares(axis, federation, number, class_names)


def _shares(axis: Any, federation: Federation, number: str, class_names: Sequence[str] | None) -> None:
    """A heat map of clients by classes; clients lie by group or domain, then by their commonest class."""
    rows, kind = _picked(federation, MOST_CLIENTS), _kind(federation)
    counts = np.stack([_counts(federation, row) for row in rows])
    shown = _commonest(federation)
    order = np.lexsort((counts.argmax(1), _member(federation)[rows]))
    rows, share = rows[order], counts[order][:, shown] / np.maximum(counts[order].sum(1, keepdims=True), 1)
    image = axis.imshow(share, aspect="auto", cmap="magma_r", vmin=0, interpolation="nearest")
    axis.figure.colorbar(image, ax=axis, label="share of the client's training labels")
    named = [str(one) if class_names is None else _text(class_names[one]) for one in shown]
    short = max(map(len, named)) <= 3
    axis.set_xticks(*_spaced(named), rotation=0 if short else 45, ha="center" if short else "right")
    _mark_members(axis, federation, rows)
    what = "class" if federation.task == "classification" else "symbol"
    cut = len(shown) < federation.num_classes
    most = f" (the {len(shown)} commonest of {federation.num_classes})" if cut else ""
    title = f"Labels ({number}){_pick_said(rows, federation)}"
    axis.set(xlabel=what + most, ylabel=f"clients, by {kind or 'commonest ' + what}", title=title)


def _targets(axis: Any, federation: Federation, number: str) -> None:
    """The 10, 50 and 90 % quantiles of every client's (first) target, clients in the order of medians."""
    rows = _picked(federation, MOST_DOTS)
    low, middle, high = np.array([_quantiles(federation, row) for row in rows]).T
    order = np.argsort(middle, kind="stable")
    low, middle, high, place = low[order], middle[order], high[order], np.arange(len(order))
    color = _colors(federation)[rows[order]]
    axis.vlines(place, low, high, color=color, lw=float(np.clip(200 / len(order), 0.6, 4)), alpha=0.6)
    axis.scatter(place, middle, color=color, s=float(np.clip(800 / len(order), 2, 20)), zorder=3)
    bottom, top = axis.get_ylim()
    axis.set_ylim(bottom, top + 0.2 * (top - bottom) * bool(_kind(federation)))
    _legend(axis, federation, loc="upper center", ncols=4)
    columns = int(np.prod(federation.y.shape[1:], dtype=int))
    title = f"Targets: 10, 50 and 90 % ({number}){_pick_said(rows, federation)}"
    axis.set(ylabel="target" if columns == 1 else f"first of {columns} targets", title=title)
    _whole_ticks(axis, "clients, sorted by median")


def _whole_ticks(axis: Any, label: str) -> None:
    """Clients are counted: no ticks between them."""
    axis.set_xlabel(label)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def draw_inputs(axis: Any, federation: Federation, number: str) -> None:
    """Every client's mean input along the two directions in which clients differ most."""
    rows = _picked(federation, MOST_DOTS)
    points, share = principal(client_means(federation, rows))
    axis.scatter(*points.T, color=_colors(federation)[rows], s=float(np.clip(2000 / len(rows), 8, 36)), alpha=0.8)
    _legend(axis, federation)
    axis.set(xlabel=f"first component ({share[0]:.0%})", ylabel=f"second component ({share[1]:.0%})")
    axis.set_title(f"Clients' mean inputs ({number}){_pick_said(rows, federation)}")


def client_means(federation: Federation, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean input of some clients' training rows, (clients, columns)."""
    reader = input_numbers(federation, train_rows(federation)[0])
    count = federation.count[:, 0]
    first = np.cumsum(count) - count
    step = max(2**22 // reader.cost, 1)
    means = np.zeros((len(rows), reader.width))
    for place, row in enumerate(rows):
        for part in range(0, int(count[row]), step):
            own = np.arange(first[row] + part, first[row] + min(part + step, count[row]))
            means[place] += reader.read(own).sum(0) / count[row]
    return means


def principal(points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(points along their first two principal components, the share of variance of each)."""
    centered = points - points.mean(0)
    left, size, _ = np.linalg.svd(centered, full_matrices=False)
    along, share = left[:, :2] * size[:2], size[:2] ** 2 / max((size**2).sum(), 1e-300)
    missing = 2 - along.shape[1]
    return np.pad(along, ((0, 0), (0, missing))), np.pad(share, (0, missing))


def draw_images(axis: Any, federation: Federation) -> None:
    """Some training images of up to six groups or domains, or else clients, a row of images each."""
    kind, member = _kind(federation), _member(federation)
    known = np.unique(member) if kind else np.arange(federation.num_clients)
    shown = known[np.linspace(0, len(known) - 1, min(len(known), NUM_EXAMPLES)).astype(int)]
    strips = [_strip(federation, np.flatnonzero(member == one) if kind else np.array([one])) for one in shown]
    height, width = federation.shape[:2]
    sheet = _sheet(strips, height, width)
    axis.imshow(sheet, cmap="gray_r" if sheet.ndim == 2 else None, interpolation="nearest")
    names = [f"{kind} {one}" if kind else _text(federation.names[one]) for one in shown]
    axis.set_yticks((np.arange(len(shown)) + 0.5) * (height + 1) - 0.5, names)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    picked = "" if len(shown) == len(known) else f" of {len(shown)} of {len(known):,} {kind or 'client'}s"
    axis.set(xticks=[], anchor="N", title=f"Training images{picked}")


def _strip(federation: Federation, clients: NDArray[np.int64]) -> NDArray[Any]:
    """Six training images, in turn from the given clients (fewer where there are fewer)."""
    some, turn = clients[:NUM_EXAMPLES], np.arange(NUM_EXAMPLES)[:, None]
    place = (federation.start[some, 0] + turn)[turn < federation.count[some, 0]]  # turn by turn
    return np.asarray(federation.x[place[:NUM_EXAMPLES]], np.float64)


def _sheet(strips: list[NDArray[Any]], height: int, width: int) -> NDArray[np.float64]:
    """All images on one sheet with a line of background between them, scaled to [0, 1]."""
    pixels = np.concatenate([strip.ravel() for strip in strips])
    low, high = pixels.min(), pixels.max()
    color = strips[0].shape[3:] if strips[0].shape[3:] == (3,) else ()
    # Gray images are drawn dark on light, so an empty place is 0 there and 1 in color.
    sheet = np.full((len(strips) * (height + 1), NUM_EXAMPLES * (width + 1), *color), 1.0 if color else 0.0)
    for row, strip in enumerate(strips):
        for column, image in enumerate((strip - low) / max(high - low, 1e-12)):
            top, left = row * (height + 1), column * (width + 1)
            sheet[top : top + height, left : left + width] = image.reshape(height, width, *color)
    return sheet


def _are_images(federation: Federation) -> bool:
    """Whether inputs look like images of 5 to 64 pixels a side, gray or of three colors."""
    shape = federation.shape
    sized = len(shape) in (2, 3) and all(5 <= side <= 64 for side in shape[:2])
    return sized and (len(shape) == 2 or shape[2] in (1, 3))


def _kind(federation: Federation) -> str:
    """What is known of clients: "group", "domain" or nothing."""
    return "group" if federation.group is not None else "domain" if federation.domain is not None else ""


def _member(federation: Federation) -> NDArray[np.int64]:
    """Each client's group, or else domain, or else 0."""
    kind = _kind(federation)
    found: NDArray[np.int64] = getattr(federation, kind) if kind else np.zeros(federation.num_clients, np.int64)
    return found


def _colors(federation: Federation) -> NDArray[Any]:
    """A color per client by its group or domain, (clients, 4)."""
    known, number = np.unique(_member(federation), return_inverse=True)
    if len(known) <= len(COLORS):
        return to_rgba_array(COLORS)[number]
    return plt.get_cmap("viridis")(number / (len(known) - 1))


def _legend(axis: Any, federation: Federation, **where: Any) -> None:
    """Says which color is which group or domain."""
    kind, (known, first) = _kind(federation), np.unique(_member(federation), return_index=True)
    if not kind:
        return
    if len(known) > len(COLORS):
        said = f"color: {kind} {known[0]} (dark) to {known[-1]} (bright)"
        axis.text(0.99, 0.01, said, transform=axis.transAxes, ha="right", va="bottom", fontsize="small")
        return
    colors = _colors(federation)
    for one, client in zip(known, first, strict=True):
        axis.plot([], [], "o", color=colors[client], label=f"{kind} {one}")
    axis.legend(fontsize="small", framealpha=0.7, columnspacing=1, handletextpad=0.2, **where)


def _mark_members(axis: Any, federation: Federation, rows: NDArray[np.int64]) -> None:
    """A strip of color and a number beside the clients of each group or domain of a heat map."""
    if not _kind(federation):
        axis.set_yticks([])
        return
    member, colors = _member(federation)[rows], _colors(federation)[rows]
    first = np.flatnonzero(np.append(True, member[1:] != member[:-1]))
    last = np.append(first[1:], len(member))
    across = axis.get_yaxis_transform()
    for begin, end in zip(first, last, strict=True):
        spot = {"transform": across, "clip_on": False, "lw": 0, "color": colors[begin]}
        axis.add_patch(Rectangle((-0.035, begin - 0.5), 0.025, end - begin, **spot))
    for edge in first[1:]:
        axis.axhline(edge - 0.5, color="white", lw=1)
    places, names = _spaced([str(one) for one in member[first]], ((first + last - 1) / 2).tolist())
    axis.set_yticks(places, names)
    axis.tick_params(axis="y", length=0, pad=14)


def _spaced(names: list[str], places: Sequence[float] | None = None) -> tuple[list[float], list[str]]:
    """(where, which): at most fifteen of the tick labels, evenly spaced."""
    step = -(-len(names) // MOST_TICKS)
    return list(places or range(len(names)))[::step], names[::step]


def _picked(federation: Federation, most: int) -> NDArray[np.int64]:
    """At most so many clients, evenly picked from all in the order of their group or domain."""
    order = np.argsort(_member(federation), kind="stable")
    return order[np.linspace(0, len(order) - 1, min(len(order), most)).astype(int)]


def _pick_said(rows: NDArray[np.int64], federation: Federation) -> str:
    return "" if len(rows) == federation.num_clients else f"\n{len(rows)} of {federation.num_clients:,} clients"


def _own(federation: Federation, client: int) -> slice:
    first, count = federation.start[client, 0], federation.count[client, 0]
    return slice(int(first), int(first + count))


def _counts(federation: Federation, client: int) -> NDArray[np.int64]:
    """How often a client has each label in its training rows."""
    labels = np.ravel(federation.y[_own(federation, client)]).astype(np.int64)
    return np.bincount(labels, minlength=federation.num_classes)


def _commonest(federation: Federation) -> NDArray[np.int64]:
    """All classes, or the thirty commonest symbols, in their order."""
    if federation.task == "classification" or federation.num_classes <= MOST_SYMBOLS:
        return np.arange(federation.num_classes)
    labels = np.ravel(federation.y[train_rows(federation)[0]]).astype(np.int64)
    counts = np.bincount(labels, minlength=federation.num_classes)
    return np.sort(np.argsort(-counts, kind="stable")[:MOST_SYMBOLS])


def _quantiles(federation: Federation, client: int) -> NDArray[np.float64]:
    """The 10, 50 and 90 % quantiles of a client's (first) target; NaN without training rows."""
    target = federation.y[_own(federation, client)]
    target = np.asarray(target.reshape(len(target), -1)[:, :1], np.float64)
    return np.quantile(target, [0.1, 0.5, 0.9]) if len(target) else np.full(3, np.nan)
