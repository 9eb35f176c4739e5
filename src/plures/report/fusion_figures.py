"""Pictures of a path of convex clustering: models, numbers of clusters, and merges and splits.

For losses that are not quadratic clusters may split as the penalty grows, so that there is no tree to draw: bands show
which clients go where.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from plures.report.figures import COLORS, legend_below, panels, plain
from plures.solvers import AlphaInterval, certified_interval
from plures.solvers import ClusterPath as Solutions

GROUPS = (COLORS[0], COLORS[5], COLORS[2], COLORS[3], COLORS[1], COLORS[4])
MARKERS = ("o", "s", "^", "D", "v", "P")
MOST_COLUMNS = 9
"""Partitions shown in a picture of merges and splits: with more, bands cannot be told apart."""
MOST_CLIENTS = 300
"""Clients up to which the certified interval of every partition is worked out, and bands are drawn: thinner ones are not seen."""

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
    clients = {"client": np.arange(len(group)), "group": np.asarray(group, int)}
    steps = []
    for one, t in zip(path.solutions, path.t, strict=True):
        first, second = ((one.x - center) @ onto).T
        known = {"graph": name, "alpha": float(one.certificate.alpha), "t": float(t), **clients}
        steps.append(
            pl.DataFrame({**known, "cluster": np.asarray(one.label, int), "first": first, "second": second})
        )
    parts = [{"graph": name, "alpha_hat": path.alpha_hat, **_stretch(path, *ends)} for ends in path.plateaus()]
    return pl.concat(steps), pl.DataFrame(parts)


def _stretch(path: Solutions, first: int, last: int) -> dict[str, Any]:
    """What is known of the partition that steps ``first`` to ``last`` share, and where it is proved to hold."""
    one = path.solutions[(first + last) // 2]
    proof, known = one.certificate, None
    if 1 < one.num_clusters < len(one.label) <= MOST_CLIENTS and proof.exact:
        known = certified_interval(one.partition, proof.alpha, one.models, duals=proof.u)
    piece = AlphaInterval(np.nan, np.nan, "", "") if known is None else known
    seen = {"upper": float(path.alphas[first]), "lower": float(path.alphas[last]), "clusters": one.num_clusters}
    return {**seen, "exact": proof.exact, **{end: getattr(piece, end) for end in ("low", "high", "below", "above")}}


MOST_NAMED = 7
"""Groups that are named under a picture."""


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
        color, marker = GROUPS[group % len(GROUPS)], MARKERS[group % len(MARKERS)]
        axes[0].plot([], [], marker, color=color, label=f"{what} {group + 1}")
    axes[0].plot([], [], "*", color="black", ms=11, label="the global model, alpha_hat")
    legend_below(figure, axes[0], min(4, 2 * len(axes)))
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
        for number, row in enumerate(own.iter_rows(named=True)):
            ends = row["low"] / row["alpha_hat"], min(row["high"] / row["alpha_hat"], 1.0)
            axis.axvspan(*ends, color=("0.90", "0.80")[number % 2], lw=0, zorder=0)
        axis.plot(counts["t"], counts["cluster"], "o-", color=COLORS[0], ms=3.5, lw=1.2)
        axis.set(xscale="log", yscale="log")
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
    figure, (axis,) = panels(1, max(1.5 * len(columns) + 1.5, 6.5), 5.0)
    group, clients = columns[0]["group"].to_numpy(), len(columns[0])
    bottoms = [_stack(axis, at, column["cluster"].to_numpy(), group) for at, column in enumerate(columns)]
    for at, (left, right) in enumerate(pairwise(bottoms)):
        _flows(axis, at, left, right, group)
    axis.set_xticks(range(len(columns)), [_label(row) for row in own.iter_rows(named=True)], fontsize=8)
    axis.set(yticks=[], xlim=(-0.4, len(columns) - 0.6), ylim=(-0.03 * clients, 1.42 * clients))
    axis.spines[:].set_visible(False)
    axis.set_title(f"Clients from partition to partition as alpha falls (colors: {what}s)", fontsize=11)
    below = "number of clusters, and the alphas for which the partition is the exact solution's"
    axis.set_xlabel(below, fontsize=9, color="0.3")
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


def _stack(axis: Any, at: int, label: np.ndarray, group: np.ndarray) -> np.ndarray:
    """A bar for each cluster, larger ones by their planted group, then single clients; where each client's share begins."""
    members = {own: np.flatnonzero(label == own) for own in np.unique(label)}
    order = sorted(members, key=lambda own: (float(np.mean(group[members[own]])), -len(members[own]), int(own)))
    bottoms, bottom, gap = np.zeros(len(label)), 0.0, 0.4 * len(label) / max(len(members), 1) / 1.2
    for own in order:
        mine = members[own][np.argsort(group[members[own]], kind="stable")]
        bottoms[mine] = bottom + np.arange(len(mine))
        colors = [GROUPS[k % len(GROUPS)] for k in group[mine]]
        axis.bar([at] * len(mine), 1, bottom=bottoms[mine], width=0.16, color=colors, lw=0, zorder=3)
        axis.bar(at, len(mine), bottom=bottom, width=0.16, fill=False, ec="black", lw=0.9, zorder=4)
        bottom += len(mine) + min(gap, 0.13 * len(label))
    return bottoms


def _flows(axis: Any, at: int, left: np.ndarray, right: np.ndarray, group: np.ndarray) -> None:
    """A band for every client, from its cluster to its next one."""
    step = np.linspace(0.0, 1.0, 40)
    smooth = step**2 * (3 - 2 * step)
    for start, end, own in zip(left, right, group, strict=True):
        y = start + (end - start) * smooth
        color = GROUPS[own % len(GROUPS)]
        axis.fill_between(at + 0.08 + 0.84 * step, y, y + 1, color=color, alpha=0.35, lw=0, zorder=1)
