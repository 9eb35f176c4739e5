"""Pictures of the robust-clustering reproduction, from the tables it left in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl

from plures.report.figures import COLORS

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

# One color and one way to draw a line for each method, in all panels.
LOOKS = {
    "known clusters": (COLORS[7], "-", 1.6),
    "Federated-Clustering": (COLORS[0], "--", 2.2),
    "alone": (COLORS[2], "-", 1.6),
    "IFCA": (COLORS[1], "-", 1.6),
    "one for all": (COLORS[3], "-", 1.6),
}


ATTACKER_LOOKS = {
    "FedAvg": (COLORS[3], "-"),
    "FedAvg, geometric median": (COLORS[1], "-."),
    "Federated-Clustering": (COLORS[0], "--"),
    "known groups": (COLORS[7], ":"),
}
# Points lost, in steps; one hue from light to dark, so that it needs no color vision.
STEPS = (1.0, 2.0, 5.0, 20.0)
SHADES = ("#FFFFFF", "#FDE3C8", "#FBB97D", "#E8772E", "#8F3A04")
NOTE = {"fontsize": 9, "color": "0.3", "labelpad": 8, "loc": "right"}
STEP_NAMES = ("at most 1", "1 to 2", "2 to 5", "5 to 20", "more")
SHOWN = {
    "none": "no attackers",
    "large_noise": "large\nnoise",
    "sign_flip": "sign\nflip",
    "label_flip": "label\nflip",
    "alie": "ALIE",
    "ipm": "IPM",
    "mimic": "mimic",
    "edge": "edge",
    "nan": "NaN",
}


def pictures(folder: Path) -> None:
    """A picture, or more, of every table that is there."""
    drawn = {
        "regression": ("regression", _regression),
        "inner": ("inner", _inner),
        "blobs": ("blobs", _blobs),
        "attackers": ("attackers", _attackers),
        "attacks": ("attacks", _attacks),
        "attacks-worst": ("attacks", _attacks_worst),
        "attacks-clusters": ("attacks", _attacks_clusters),
    }
    for name, (table, draw) in drawn.items():
        if (folder / f"{table}.csv").exists():
            figure = draw(pl.read_csv(folder / f"{table}.csv"))
            if figure is None:
                continue
            # Grids are full of letters, which make large files.
            figure.savefig(folder / f"{name}.png", dpi=100 if table == "attacks" else 130)
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


def _attackers(table: pl.DataFrame) -> Any:
    """Accuracy over rounds, a panel per attack."""
    attacks = table["attack"].unique(maintain_order=True).to_list()
    names = table["method"].unique(maintain_order=True).to_list()
    figure, axes = plt.subplots(
        1, len(attacks), figsize=(3.4 + 3.0 * len(attacks), 4.2), layout="constrained", sharey=True, squeeze=False
    )
    for axis, attack in zip(axes[0], attacks, strict=True):
        for name in names:
            one = table.filter((pl.col("attack") == attack) & (pl.col("method") == name)).sort("round")
            color, style = ATTACKER_LOOKS.get(name, (COLORS[2], "-"))
            axis.plot(one["round"], one["accuracy"], style, color=color, lw=2, label=name)
            axis.fill_between(one["round"], one["low"], one["high"], color=color, alpha=0.15, lw=0)
        axis.set_title("nobody lies" if attack == "none" else f"a fifth lies: {attack.replace('_', ' ')}")
        axis.set_xlabel("round")
        axis.set_ylim(0, 100)
        axis.grid(axis="y", color="0.92", lw=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("accuracy of honest clients in %")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _attacks(table: pl.DataFrame) -> Any:
    """The mean accuracy of honest clients, shaded by what the attack took from it."""
    return _shaded(table, "accuracy", "loss", "Mean accuracy of honest clients in %")


def _attacks_worst(table: pl.DataFrame) -> Any:
    """The same of the worst tenth."""
    return _shaded(table, "worst_decile", "worst_loss", "Accuracy in % that nine of ten honest clients exceed")


def _attacks_clusters(table: pl.DataFrame) -> Any:
    """How well the groups of honest clients are found, for methods that look for clusters; nothing without such."""
    found = table.filter(pl.col("recovery").is_not_null() & ~pl.col("method").str.starts_with("known"))
    if found.is_empty():
        return None
    figure, axis, methods, attacks = _grid(found, "Groups of honest clients: adjusted Rand index")
    colors = plt.get_cmap("Blues_r")
    for method, attack, row in _cells(found, methods, attacks):
        value = row["recovery"]
        _put(axis, attack, method, f"{value:.2f}", colors(value), "white" if value < 0.5 else "black", row["few"])
    said = "1: exactly the planted groups; 0: no better than chance."
    axis.set_xlabel(f"{said} {_footnote(found)}", **NOTE)
    return figure


def _shaded(table: pl.DataFrame, what: str, loss: str, title: str) -> Any:
    """Numbers in a grid of methods and attacks, shaded by points lost."""
    figure, axis, methods, attacks = _grid(table, title)
    colors, norm = ListedColormap(SHADES), BoundaryNorm([-1e3, *STEPS, 1e3], len(SHADES))
    for method, attack, row in _cells(table, methods, attacks):
        lost = row[loss]
        plain = lost is None or row["attack"] == "none"
        shade = (0.93, 0.93, 0.93, 1.0) if plain else colors(norm(lost))
        dark = not plain and lost > STEPS[-1]
        _put(axis, attack, method, f"{row[what]:.1f}", shade, "white" if dark else "black", row["few"])
    boxes = [Rectangle((0, 0), 1, 1, fc=shade, ec="0.6", lw=0.6) for shade in SHADES]
    figure.legend(
        boxes,
        STEP_NAMES,
        title="points lost against the same method without attackers",
        loc="outside lower center",
        ncols=len(SHADES),
        frameon=False,
    )
    axis.set_xlabel(_footnote(table), **NOTE)
    return figure


def _grid(table: pl.DataFrame, title: str) -> tuple[Any, Any, list[str], list[str]]:
    """An empty grid with names; a dash where nothing was played, lines between families of methods."""
    methods = table["method"].unique(maintain_order=True).to_list()
    attacks = [name for name in SHOWN if name in table["attack"].unique().to_list()]
    size = (max(3.2 + 0.82 * len(attacks), 8.5), 2.0 + 0.36 * len(methods))
    figure, axis = plt.subplots(figsize=size, layout="constrained")
    axis.set_xlim(-0.5, len(attacks) - 0.5)
    axis.set_ylim(len(methods) - 0.5, -0.5)
    axis.set_xticks(range(len(attacks)), [SHOWN[name] for name in attacks])
    axis.set_yticks(range(len(methods)), methods)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title(title, pad=12)
    played = set(table.select("attack", "method").iter_rows())
    for x, y in product(range(len(attacks)), range(len(methods))):
        if (attacks[x], methods[y]) not in played:
            axis.text(x, y, "-", ha="center", va="center", color="0.4")
    for y in range(1, len(methods)):
        if methods[y].split(",")[0] != methods[y - 1].split(",")[0]:
            axis.axhline(y - 0.5, color="0.55", lw=0.8, zorder=3)
    return figure, axis, methods, attacks


def _cells(
    table: pl.DataFrame, methods: list[str], attacks: list[str]
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Where a line of the table goes, and whether it has fewer seeds than others."""
    most = table["seeds"].max()
    for row in table.iter_rows(named=True):
        if row["attack"] in attacks:
            yield methods.index(row["method"]), attacks.index(row["attack"]), {**row, "few": row["seeds"] != most}


def _put(axis: Any, x: int, y: int, text: str, shade: Any, color: str, few: bool) -> None:
    axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=shade, ec="0.85", lw=0.6))
    axis.text(x, y, text, ha="center", va="center", color=color, style="italic" if few else "normal", zorder=4)


def _footnote(table: pl.DataFrame) -> str:
    """What dashes and italics mean here."""
    most = max(table["seeds"])
    said = ["-: not played."]
    if (table["seeds"] < most).any():
        said.append(f"Italic: fewer than {most} seeds.")
    if "alone" in table["method"].unique():
        said.append("Training alone uploads nothing: its first value holds under all attacks.")
    return " ".join(said)
