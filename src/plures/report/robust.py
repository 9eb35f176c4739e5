"""Pictures of the robust-clustering reproduction, from the tables it left in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl

from plures.report.figures import COLORS

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

# One color and one way to draw a line for each method, in all panels.
LOOKS = {
    "known clusters": (COLORS[7], "-", 1.6),
    "Federated-Clustering": (COLORS[0], "--", 2.2),
    "alone": (COLORS[2], "-", 1.6),
    "IFCA": (COLORS[1], "-", 1.6),
    "one for all": (COLORS[3], "-", 1.6),
}


def pictures(folder: Path) -> None:
    """A picture beside every table that is there."""
    for name, draw in (("regression", _regression), ("inner", _inner), ("blobs", _blobs)):
        if (folder / f"{name}.csv").exists():
            figure = draw(pl.read_csv(folder / f"{name}.csv"))
            figure.savefig(folder / f"{name}.png", dpi=130)
            plt.close(figure)


def _regression(table: pl.DataFrame) -> Any:
    """The error over rounds, a panel per problem; crosses are the last values of the paper's figure."""
    panels = table["panel"].unique(maintain_order=True).to_list()
    figure, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 4.4), layout="constrained", sharey=True)
    for axis, panel in zip(np.atleast_1d(axes), panels, strict=True):
        mine = table.filter(pl.col("panel") == panel)
        for name, (color, style, width) in LOOKS.items():
            _line(axis, mine.filter(pl.col("method") == name), name, color, style, width)
        axis.set_yscale("log")
        axis.set_title(mine["title"][0])
        axis.set_xlabel("round")
        axis.grid(axis="y", color="0.92", lw=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    first = np.atleast_1d(axes)[0]
    first.set_ylabel("mean distance from the truth")
    cross = Line2D([], [], color="0.35", marker="x", ls="", ms=7, mew=1.8, label="last value in the paper's figure")
    lines = [*first.get_legend_handles_labels()[0], cross]
    figure.legend(handles=lines, loc="outside lower center", ncols=6, frameon=False)
    return figure


def _line(axis: Any, one: pl.DataFrame, name: str, color: str, style: str, width: float) -> None:
    """A method's mean over draws with its range, and the figure's last value right of the end."""
    if one.is_empty():
        return
    axis.plot(one["round"], one["error"], style, color=color, lw=width, label=name)
    axis.fill_between(one["round"], one["low"], one["high"], color=color, alpha=0.15, lw=0)
    published = one["figure"][0]
    if published is not None:
        axis.plot(1.04 * one["round"][-1], published, "x", color=color, ms=7, mew=1.8)


def _inner(table: pl.DataFrame) -> Any:
    """The last error against the number of inner rounds; a dot per draw, dashed what known clusters reach."""
    figure, axis = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    for place, panel in enumerate(table["panel"].unique(maintain_order=True)):
        mine, color = table.filter(pl.col("panel") == panel), COLORS[(0, 5)[place % 2]]
        means = mine.group_by("inner").agg(pl.col("error").mean()).sort("inner")
        axis.plot(means["inner"], means["error"], "o-", color=color, lw=1.8, ms=6, label=mine["title"][0])
        axis.plot(mine["inner"], mine["error"], ".", color=color, ms=4, alpha=0.45)
        axis.axhline(np.mean(mine["known"].to_numpy()), color=color, lw=1.2, ls="--")
        other = mine.drop_nulls("other").unique("inner").sort("inner")
        axis.plot(other["inner"], other["other"], "x", color="0.2", ms=7, mew=1.8, zorder=4)
    axis.plot([], [], "--", color="0.35", lw=1.2, label="known clusters")
    axis.plot([], [], "x", color="0.2", ms=7, mew=1.8, label="another program's draw")
    axis.set_xscale("log")
    axis.set_yscale("log")
    ticks = table["inner"].unique().sort().to_list()
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("inner rounds of Threshold-Clustering")
    axis.set_ylabel("last mean distance from the truth")
    axis.set_title("Federated-Clustering needs enough inner rounds")
    axis.grid(axis="y", color="0.92", lw=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _blobs(table: pl.DataFrame) -> Any:
    """The distance from a center to the members of its blob over inner rounds, a line per deviation."""
    figure, axis = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    for place, deviation in enumerate(table["deviation"].unique(maintain_order=True)):
        mine, color = table.filter(pl.col("deviation") == deviation), COLORS[place]
        axis.plot(mine["round"], mine["distance"], color=color, lw=1.8)
        axis.plot([1, mine["round"][-1]], 2 * [deviation * np.sqrt(80 / 9)], ":", color=color, lw=1.2)
        marks = mine.drop_nulls("figure")
        axis.plot(marks["round"], marks["figure"], "x", color=color, ms=7, mew=1.8)
        where = (mine["round"][-1], mine["distance"][-1])
        axis.annotate(
            f"  deviation {deviation:g}", where, (6, 0), textcoords="offset points", color=color, va="center"
        )
    axis.plot([], [], color="0.35", lw=1.8, label="ours")
    axis.plot([], [], ":", color="0.35", lw=1.2, label="from the members' own mean")
    axis.plot([], [], "x", color="0.35", ms=7, mew=1.8, label="the paper's figure")
    axis.set_yscale("log")
    axis.set_yticks([1.5, 2, 3, 4, 6, 8, 12, 16], ["1.5", "2", "3", "4", "6", "8", "12", "16"])
    axis.minorticks_off()
    axis.set_xlabel("inner round")
    axis.set_ylabel("root mean square distance to the members")
    axis.set_title("Ten blobs of nine points")
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
