"""Pictures of a path of convex clustering: models, numbers of clusters, and merges and splits.

For losses that are not quadratic clusters may split as the penalty grows, so that there is no tree to draw: bands show
which clients go where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import polars as pl

from plures.report.figures import COLORS
from plures.solvers import Interval, certified_interval
from plures.solvers import Path as Solutions

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline

GROUPS = (COLORS[0], COLORS[5], COLORS[2], COLORS[3], COLORS[1], COLORS[4])
MARKERS = ("o", "s", "^", "D", "v", "P")
MOST_COLUMNS = 9
"""Partitions shown in a picture of merges and splits: with more, bands cannot be told apart."""
MOST_CLIENTS = 300
"""Clients up to which the certified interval of every partition is worked out."""

Tables = Mapping[str, pl.DataFrame]


def path_tables(
    path: Solutions, center: np.ndarray, group: np.ndarray, name: str = "knn"
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A row per alpha and client (cluster, and model on the two axes along which models differ most), and per partition.

    Axes go through ``center``, the global model. ``name`` is that of the graph.
    """
    models = np.concatenate([one.x for one in path.solutions]) - center
    _, _, axes = np.linalg.svd(models, full_matrices=False)
    onto = np.zeros((len(center), 2))
    onto[:, : min(2, len(axes))] = axes[:2].T
    steps = [
        {
            "graph": name,
            "alpha": one.certificate.alpha,
            "t": float(t),
            "client": client,
            "group": int(group[client]),
            "cluster": int(one.label[client]),
            "first": float(place[0]),
            "second": float(place[1]),
        }
        for one, t in zip(path.solutions, path.t, strict=True)
        for client, place in enumerate((one.x - center) @ onto)
    ]
    parts = [
        {"graph": name, "alpha_hat": path.alpha_hat, **_stretch(path, first, last)}
        for first, last in path.plateaus()
    ]
    return pl.DataFrame(steps), pl.DataFrame(parts)


def _stretch(path: Solutions, first: int, last: int) -> dict[str, Any]:
    """What is known of the partition that steps ``first`` to ``last`` share, and where it is proved to hold."""
    one = path.solutions[(first + last) // 2]
    proof, known = one.certificate, None
    if 1 < one.num_clusters < len(one.label) <= MOST_CLIENTS and proof.exact:
        known = certified_interval(one.partition, proof.alpha, one.models, duals=proof.u)
    piece = Interval(np.nan, np.nan, "", "") if known is None else known
    seen = {"upper": float(path.alphas[first]), "lower": float(path.alphas[last]), "clusters": one.num_clusters}
    ends = {"low": piece.low, "high": piece.high, "below": piece.below, "above": piece.above}
    return {**seen, "exact": proof.exact, **ends}


def plain(axis: Any, *, x: str, y: str, title: str = "") -> None:
    """Labels, faint lines across, and no frame above and to the right."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_title(title)
    axis.grid(axis="y", color="0.92", lw=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


MOST_NAMED = 7
"""Groups that are named under a picture."""


def panels(number: int, width: float = 4.8, height: float = 4.2, **options: Any) -> tuple[Any, list[Any]]:
    """A figure with panels side by side."""
    size = (width * number, height)
    figure, axes = plt.subplots(1, number, figsize=size, layout="constrained", squeeze=False, **options)
    return figure, list(axes[0])


def draw_path(tables: Tables, what: str = "planted group") -> Any:
    """Models on the two axes along which they differ most, a line per client as alpha falls, colors by ``what``."""
    table = tables["path"]
    names = table["graph"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(names), height=4.8)
    for axis, name in zip(axes, names, strict=True):
        mine = table.filter(pl.col("graph") == name).sort("client", "alpha", descending=[False, True])
        for _, own in mine.group_by("client", maintain_order=True):
            group = own["group"][0]
            color, first, second = GROUPS[group % len(GROUPS)], own["first"], own["second"]
            axis.plot(first, second, color=color, lw=0.9, alpha=0.6, zorder=2)
            axis.plot(first[-1], second[-1], MARKERS[group % len(MARKERS)], color=color, ms=4.5, zorder=3)
        axis.plot(mine["first"][0], mine["second"][0], "*", color="black", ms=13, zorder=4)
        plain(axis, x="first axis of models", y="", title=f"graph: {name}")
    axes[0].set_ylabel("second axis of models")
    for group in table["group"].unique().sort()[:MOST_NAMED]:
        axes[0].plot(
            [],
            [],
            MARKERS[group % len(MARKERS)],
            color=GROUPS[group % len(GROUPS)],
            label=f"{what} {group + 1}",
        )
    axes[0].plot([], [], "*", color="black", ms=11, label="the global model, alpha_hat")
    columns = min(4, 2 * len(axes))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
    return figure


def draw_clusters(tables: Tables) -> Any:
    """The number of clusters against t; stretches of one partition are shaded where they are proved."""
    table, parts = tables["path"], tables["partitions"]
    names = table["graph"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(names), sharey=True)
    for axis, name in zip(axes, names, strict=True):
        mine = table.filter(pl.col("graph") == name)
        counts = mine.group_by("t").agg(pl.col("cluster").n_unique()).sort("t")
        own = parts.filter((pl.col("graph") == name) & pl.col("low").is_not_nan()).sort("low")
        for place, row in enumerate(own.iter_rows(named=True)):
            ends = row["low"] / row["alpha_hat"], min(row["high"] / row["alpha_hat"], 1.0)
            axis.axvspan(*ends, color=("0.90", "0.80")[place % 2], lw=0, zorder=0)
        axis.plot(counts["t"], counts["cluster"], "o-", color=COLORS[0], ms=3.5, lw=1.2)
        axis.set_xscale("log")
        axis.set_yscale("log")
        ticks = [1, 2, 3, 4, 6, 10, 20, 60]
        axis.set_yticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        low = counts["t"][0]
        shown = [tick for tick in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if tick >= 0.95 * low]
        axis.set_xticks(shown, [f"{tick:g}" for tick in shown])
        plain(axis, x="t = alpha / alpha_hat", y="", title=f"graph: {name}")
    axes[0].set_ylabel("clusters")
    figure.supxlabel("shaded: certified interval of one partition", fontsize=9, color="0.3")
    return figure


def draw_bands(tables: Tables, what: str = "planted group") -> Any:
    """Merges and splits: bands of clients between successive partitions, from the global model down."""
    table, parts = tables["path"], tables["partitions"]
    name = parts["graph"][0]
    own = parts.filter(pl.col("graph") == name).head(MOST_COLUMNS)
    columns = [_column(table.filter(pl.col("graph") == name), row) for row in own.iter_rows(named=True)]
    figure, axis = plt.subplots(figsize=(1.5 * len(columns) + 1.5, 5.0), layout="constrained")
    clients = len(columns[0])
    order = [_order(column, columns[0]["group"].to_numpy()) for column in columns]
    for place, column in enumerate(columns):
        _bars(axis, place, column, order[place])
    for place in range(len(columns) - 1):
        _flows(axis, place, columns[place], columns[place + 1], order[place], order[place + 1])
    labels = [_label(row) for row in own.iter_rows(named=True)]
    axis.set_xticks(range(len(columns)), labels, fontsize=8)
    axis.set_yticks([])
    axis.set_xlim(-0.4, len(columns) - 0.6)
    axis.set_ylim(-0.03 * clients, 1.42 * clients)
    axis.spines[:].set_visible(False)
    axis.set_title(f"Clients from partition to partition as alpha falls (colors: {what}s)", fontsize=11)
    axis.set_xlabel(
        "number of clusters, and the alphas for which the partition is the exact solution's",
        fontsize=9,
        color="0.3",
    )
    return figure


def _label(row: Mapping[str, Any]) -> str:
    """What stands under a partition."""
    if row["clusters"] == 1:
        return f"K = 1\nfrom {row['alpha_hat']:.4g}"
    if row["low"] is None or np.isnan(row["low"]):
        return f"K = {row['clusters']}\nat {row['upper']:.4g}"
    return f"K = {row['clusters']}\n{row['low']:.4f} to\n{row['high']:.4f}"


def _column(table: pl.DataFrame, row: Mapping[str, Any]) -> pl.DataFrame:
    """The clients at one partition."""
    at = table["alpha"].unique().to_numpy()
    return table.filter(pl.col("alpha") == at[np.argmin(np.abs(at - row["upper"]))]).sort("client")


def _order(column: pl.DataFrame, group: np.ndarray) -> dict[int, tuple[float, float, np.ndarray]]:
    """Bottom, top and members of each cluster's bar: larger clusters by their planted group, then single clients."""
    label = column["cluster"].to_numpy()
    found = []
    for own in np.unique(label):
        members = np.flatnonzero(label == own)
        members = members[np.argsort(group[members], kind="stable")]
        found.append((float(np.mean(group[members])), -len(members), int(own), members))
    bars, bottom, gap = {}, 0.0, 0.4 * len(label) / max(len(found), 1) / 1.2
    for _, _, own, members in sorted(found, key=lambda one: one[:3]):
        bars[own] = (bottom, bottom + len(members), members)
        bottom += len(members) + min(gap, 0.13 * len(label))
    return bars


def _bars(axis: Any, place: int, column: pl.DataFrame, bars: Mapping[int, Any]) -> None:
    group = column["group"].to_numpy()
    for bottom, _, members in bars.values():
        for offset, client in enumerate(members):
            axis.bar(
                place,
                1,
                bottom=bottom + offset,
                width=0.16,
                color=GROUPS[group[client] % len(GROUPS)],
                lw=0,
                zorder=3,
            )
        axis.add_patch(
            Rectangle((place - 0.08, bottom), 0.16, len(members), fill=False, ec="black", lw=0.9, zorder=4)
        )


def _flows(axis: Any, place: int, one: pl.DataFrame, other: pl.DataFrame, left: Any, right: Any) -> None:
    """A band for the clients of one group that go from one cluster to another."""
    group = one["group"].to_numpy()
    start = {client: bottom + k for bottom, _, members in left.values() for k, client in enumerate(members)}
    end = {client: bottom + k for bottom, _, members in right.values() for k, client in enumerate(members)}
    for client in range(len(group)):
        points = [
            (place + 0.08, start[client]),
            (place + 0.5, start[client]),
            (place + 0.5, end[client]),
            (place + 0.92, end[client]),
            (place + 0.92, end[client] + 1),
            (place + 0.5, end[client] + 1),
            (place + 0.5, start[client] + 1),
            (place + 0.08, start[client] + 1),
            (place + 0.08, start[client]),
        ]
        codes = [Outline.MOVETO, *[Outline.CURVE4] * 3, Outline.LINETO, *[Outline.CURVE4] * 3, Outline.CLOSEPOLY]
        color = GROUPS[group[client] % len(GROUPS)]
        axis.add_patch(PathPatch(Outline(points, codes), fc=color, ec="none", alpha=0.35, zorder=1))
