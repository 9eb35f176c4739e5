"""Pictures of LG-Mix from the tables of its reproduction: accuracies, who gains, and how every client mixes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import polars as pl

from plures.report.figures import COLORS, plain
from plures.report.fusion_figures import Tables

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

METHODS = {
    "alone": COLORS[7],
    "FedAvg": COLORS[3],
    "FedAvg, own statistics": "#e7bcd3",
    "FedProx": "#999999",
    "APFL": COLORS[1],
    "Ditto": COLORS[5],
    "FedRep": "#8c6d31",
    "FedBN": COLORS[2],
    "LG-Mix": COLORS[0],
    "LG-Mix, published": COLORS[4],
    "LG-Mix, private norm": "#6a51a3",
    "LG-Mix, private statistics": "#9e9ac8",
    "LG-Mix, lam 0.25": "#c6dbef",
    "LG-Mix, lam 0.5": "#9ecae1",
    "LG-Mix, lam 0.75": "#6baed6",
    "LG-Mix, lam by valid rows": "#08306b",
}
"""A color each, in the order in which methods are listed."""

SHOWN = {"FedBN": "s", "LG-Mix": "o", "LG-Mix, published": "^", "LG-Mix, private norm": "D"}
"""Methods of which every client is drawn."""

PALETTE = tuple(COLORS[i] for i in (0, 5, 2, 1, 3, 4, 7))
WIDE = 3


def pictures(folder: Path) -> None:
    """Every picture whose tables are there."""
    drawn: dict[str, tuple[str, Callable[[Tables], Any]]] = {
        "accuracy": ("accuracy", _accuracy),
        "clients": ("clients", _clients),
        "mixing": ("rounds", _mixing),
    }
    for name, (needed, draw) in drawn.items():
        if (folder / f"{needed}.csv").exists():
            tables = {
                one.stem: pl.read_csv(one, infer_schema_length=None, schema_overrides={"domain": pl.String})
                for one in folder.glob("*.csv")
            }
            figure = draw(tables)
            figure.savefig(folder / f"{name}.png", dpi=110)
            plt.close(figure)


def _titles(tables: Tables) -> dict[str, str]:
    """Parts and their titles, in order."""
    table = tables["accuracy"].unique("part", maintain_order=True)
    return dict(zip(table["part"], table["title"], strict=True))


def _grid(number: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """Panels in rows of three; those too many are not shown."""
    columns = min(number, WIDE)
    rows = -(-number // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), layout="constrained", squeeze=False
    )
    for axis in axes.ravel()[number:]:
        axis.set_visible(False)
    return figure, list(axes.ravel()[:number])


def _accuracy(tables: Tables) -> Any:
    """Mean personal accuracy of every method with its interval, a panel per federation."""
    table, titles = tables["accuracy"], _titles(tables)
    figure, axes = _grid(len(titles), 5.6, 4.8)
    for axis, (part, title) in zip(axes, titles.items(), strict=True):
        mine = {row["method"]: row for row in table.filter(pl.col("part") == part).iter_rows(named=True)}
        names = [name for name in METHODS if name in mine]
        for place, name in enumerate(names):
            row, color = mine[name], METHODS[name]
            axis.plot([row["low"], row["high"]], [place, place], color=color, lw=3, alpha=0.6)
            axis.plot(row["accuracy"], place, "o", color=color, ms=7, mec="0.3", mew=0.5)
            axis.annotate(
                f"{row['accuracy']:.1f}",
                (row["accuracy"], place),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.4, -0.8)
        plain(axis, x="accuracy on test rows (%), 95 % interval", y="", title=title)
    return figure


def _clients(tables: Tables) -> Any:
    """Every client's gain over training alone against that over FedAvg, means over seeds."""
    titles = _titles(tables)
    means = (
        tables["clients"].group_by("part", "method", "client", maintain_order=True).agg(pl.col("accuracy").mean())
    )
    figure, axes = _grid(len(titles), 4.6, 4.4)
    for axis, (part, title) in zip(axes, titles.items(), strict=True):
        mine = {
            name: own.sort("client") for (name,), own in means.filter(pl.col("part") == part).group_by("method")
        }
        axis.axhline(0, color="0.5", lw=1)
        axis.axvline(0, color="0.5", lw=1)
        for name, sign in SHOWN.items():
            if {name, "alone", "FedAvg"} <= set(mine):
                own = mine[name]["accuracy"].to_numpy()
                x, y = (own - mine[other]["accuracy"].to_numpy() for other in ("FedAvg", "alone"))
                axis.plot(x, y, sign, color=METHODS[name], ms=6, alpha=0.75, mew=0, label=name)
        plain(axis, x="points above FedAvg", y="points above training alone", title=title)
        axis.grid(axis="x", color="0.92", lw=0.8)
    _legend(figure, axes)
    return figure


def _legend(figure: Any, axes: list[Any]) -> None:
    """One legend below for all panels."""
    shown = {name: line for axis in axes for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=4, frameon=False)


def _mixing(tables: Tables) -> Any:
    """lam, both traces and the cosine of updates, round by round, of the first federation; a line per client."""
    table = tables["rounds"]
    part = table["part"][0]
    table = table.filter(pl.col("part") == part)
    methods = [name for name in METHODS if name in table["method"].unique()]
    domains = table["domain"].unique(maintain_order=True).to_list()
    colors = {one: PALETTE[i % len(PALETTE)] for i, one in enumerate(domains)}
    figure, axes = plt.subplots(
        3,
        len(methods),
        figsize=(4.4 * len(methods), 9),
        layout="constrained",
        squeeze=False,
        sharex=True,
        sharey="row",
    )
    for column, name in enumerate(methods):
        own = table.filter(pl.col("method") == name)
        for (_,), client in own.group_by("client", maintain_order=True):
            color = colors[client["domain"][0]]
            axes[0, column].plot(client["round"], client["lam"], color=color, lw=1.3)
            axes[1, column].plot(client["round"], client["trace_own"], color=color, lw=1.3)
            axes[1, column].plot(client["round"], client["trace_global"], color=color, lw=1.1, ls=":")
            axes[2, column].plot(client["round"], client["cosine"], color=color, lw=1.3)
        axes[0, column].axhline(0.5, color="0.5", lw=1, ls="--")
        plain(axes[0, column], x="", y="", title=name)
        plain(axes[1, column], x="", y="")
        plain(axes[2, column], x="communication round", y="")
    axes[1, 0].set_yscale("log")
    labels = (
        "lam: share of the own update",
        "trace: own (line), everyone's (dots)",
        "cosine of own and everyone's update",
    )
    for axis, label in zip(axes[:, 0], labels, strict=True):
        axis.set_ylabel(label)
    handles = [Line2D([], [], color=color, label=name) for name, color in list(colors.items())[: len(PALETTE)]]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle(f"{_titles(tables)[part]}: a line per client, colors by domain")
    return figure
