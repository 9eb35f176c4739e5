"""Pictures of convex clustering from the tables of its reproduction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl

from plures.report.figures import COLORS, panels, plain
from plures.report.fusion_figures import GROUPS, MARKERS, Tables, draw_bands, draw_clusters, draw_path

matplotlib.use("Agg")
from matplotlib import pyplot as plt

NORMS, SQUARES = "sum of norms", "squared penalty"
PENALTIES = {NORMS: (COLORS[0], "-"), SQUARES: (COLORS[5], "--")}
FLATS = {"global": (COLORS[3], ":"), "local": (COLORS[2], "-."), "oracle": (COLORS[7], "--")}
LINES = {
    "Douglas-Rachford": (COLORS[0], "-"),
    "FISTA": (COLORS[2], "--"),
    "linearized ADMM": (COLORS[1], "-."),
    "PDMM": (COLORS[5], "-"),
}


def pictures(folder: Path) -> None:
    """Every picture whose tables are there."""
    drawn: dict[str, tuple[tuple[str, ...], Callable[[Tables], Any]]] = {
        "accuracy": (("accuracy", "anchors"), _accuracy),
        "distance": (("accuracy",), _distance),
        "path": (("path",), draw_path),
        "clusters": (("path", "partitions"), draw_clusters),
        "bands": (("path", "partitions"), draw_bands),
        "margins": (("margins",), _margins),
        "rounds": (("rounds-curves",), _rounds),
        "printed": (("printed-curves",), _printed),
        "real": (("real",), _real),
    }
    for name, (needed, draw) in drawn.items():
        if all((folder / f"{one}.csv").exists() for one in needed):
            figure = draw({one: pl.read_csv(folder / f"{one}.csv") for one in needed})
            figure.savefig(folder / f"{name}.png", dpi=110)
            plt.close(figure)


def _twin(axis: Any, table: pl.DataFrame, value: str, floor: float = 0.0) -> None:
    """The mean over draws of a value against the strength of each penalty, each on the scale of its own."""
    for name, (color, style) in PENALTIES.items():
        mine = table.filter(pl.col("method") == name)
        means = mine.group_by("strength").agg(pl.col(value).mean()).sort("strength")
        # Strengths of the two penalties have different units: both run from the weakest to the strongest.
        place = np.linspace(0, 1, means.height)
        axis.plot(place, np.maximum(means[value].to_numpy(), floor), style, color=color, lw=2, label=name)
    ticks = np.linspace(0, 1, 5)
    labels = []
    for tick in ticks:
        ends = [table.filter(pl.col("method") == name)["strength"].unique().sort().to_numpy() for name in PENALTIES]
        shown = [np.exp(np.interp(tick, np.linspace(0, 1, len(end)), np.log(end))) for end in ends]
        labels.append(f"{shown[0]:.2g}\n{shown[1]:.2g}")
    axis.set_xticks(ticks, labels)


STRENGTH = "strength: alpha of norms (above), gamma of squares (below)"


def _accuracy(tables: Tables) -> Any:
    """Accuracy against the strength of both penalties, a panel for balanced and for free clients."""
    table, fixed = tables["accuracy"], tables["anchors"]
    kinds = table["kind"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(kinds), sharey=True)
    for axis, kind in zip(axes, kinds, strict=True):
        _twin(axis, table.filter(pl.col("kind") == kind), "accuracy")
        own = fixed.filter(pl.col("kind") == kind)
        for name in ("local", "oracle"):
            color, style = FLATS[name]
            axis.axhline(own[name].to_numpy().mean(), color=color, ls=style, lw=1.4, label=name)
        low = own["global"].to_numpy().mean()
        axis.text(0.03, 0.03, f"one model for all: {low:.3f}", transform=axis.transAxes, color="0.3")
        axis.set_ylim(0.82, 0.88)
        plain(axis, x=STRENGTH, y="", title=f"{kind} clients")
    axes[0].set_ylabel("accuracy on test points")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


FLOOR = 1e-6


def _distance(tables: Tables) -> Any:
    """The mean distance between models of one planted group against the strength of both penalties."""
    table = tables["accuracy"]
    kinds = table["kind"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(kinds), sharey=True)
    for axis, kind in zip(axes, kinds, strict=True):
        _twin(axis, table.filter(pl.col("kind") == kind), "apart", FLOOR)
        axis.set_yscale("log")
        axis.axhline(FLOOR, color="0.6", lw=0.8)
        axis.text(0.02, 1.3 * FLOOR, "exactly 0: fused in all draws", color="0.3", fontsize=9)
        plain(axis, x=STRENGTH, y="", title=f"{kind} clients")
    axes[0].set_ylabel("mean distance of two models of a group")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _margins(tables: Tables) -> Any:
    """What alpha must exceed for each planted group to stay fused, exactly and by the published condition."""
    table = tables["margins"]
    figure, axis = plt.subplots(figsize=(6.2, 4.6), layout="constrained")
    alphas = table["alpha"].unique().sort().to_numpy()
    for group in table["group"].unique().sort():
        own = table.filter(pl.col("group") == group).sort("alpha")
        color, marker = GROUPS[group % len(GROUPS)], MARKERS[group % len(MARKERS)]
        axis.plot(
            own["alpha"],
            own["phi"],
            marker=marker,
            ms=4,
            markevery=max(own.height // 8, 1),
            color=color,
            label=f"group {group + 1}, exact threshold",
        )
    one = table.filter(pl.col("group") == table["group"].min()).sort("alpha")
    axis.plot(one["alpha"], one["theorem_6"], ":", color="0.2", lw=1.8, label="published condition (6), all groups")
    axis.plot(alphas, alphas, color="black", lw=1.2, label="alpha itself")
    axis.fill_between(alphas, 0, alphas, color="0.94", lw=0, zorder=0)
    axis.set_xlim(alphas[0], alphas[-1])
    axis.set_ylim(0, 1.1 * max(float(np.max(table["theorem_6"].to_numpy())), alphas[-1]))
    plain(axis, x="alpha", y="what alpha must exceed", title="A group stays fused where its line is in the shade")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _rounds(tables: Tables) -> Any:
    """The relative error of the objective over rounds; thin lines with a fifth of the clients in each."""
    table = tables["rounds-curves"]
    alphas = table["alpha"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(alphas), sharey=True)
    for axis, alpha in zip(axes, alphas, strict=True):
        for (method, share), own in table.filter(pl.col("alpha") == alpha).group_by(
            "method", "share", maintain_order=True
        ):
            color, style = LINES[str(method)]
            label = str(method) + ("" if share == 1 else f", {share:.0%} of clients")
            wide = 2.0 if share == 1 else 1.0
            marker = {} if share == 1 else {"marker": ".", "ms": 4, "markevery": 6}
            axis.plot(own["round"], own["error"], style, color=color, lw=wide, label=label, **marker)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(1e-10, 2)
        plain(axis, x="round", y="", title=f"alpha = {alpha:g}")
    axes[0].set_ylabel("relative error of the objective")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(3, len(axes) + 1), frameon=False
    )
    return figure


CASE_LOOKS = {
    "all blocks": (COLORS[0], "-"),
    "half of the duals": (COLORS[5], "-"),
    "non-zero dual start": (COLORS[1], "--"),
    "half of the clients and edges": (COLORS[2], "-."),
}


def _printed(tables: Tables) -> Any:
    """The relative error over rounds of the printed algorithm, of (14), and of the corrected one."""
    table = tables["printed-curves"]
    table = table.filter(pl.col("lam") == table["lam"].min())
    variants = table["variant"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(variants), width=3.9, sharey=True)
    for axis, variant in zip(axes, variants, strict=True):
        mine = table.filter(pl.col("variant") == variant)
        for case, (color, style) in CASE_LOOKS.items():
            own = mine.filter(pl.col("case") == case)
            axis.plot(own["round"], own["error"], style, color=color, lw=1.8, label=case)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(1e-12, 10)
        plain(axis, x="round", y="", title=variant)
    axes[0].set_ylabel("relative error of the objective")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _real(tables: Tables) -> Any:
    """Scores on test rows along the path of real federations."""
    table = tables["real"]
    names = table["set"].unique(maintain_order=True).to_list()
    figure, axes = panels(len(names))
    for axis, name in zip(axes, names, strict=True):
        mine = table.filter(pl.col("set") == name).sort("t")
        axis.plot(mine["t"], mine["test"], "o-", color=COLORS[0], lw=2, label="fused")
        axis.plot(
            mine["t"], mine["refit_test"], "s--", color=COLORS[4], ms=4, lw=1.2, label="clusters by themselves"
        )
        for what in ("global", "local"):
            color, style = FLATS[what]
            axis.axhline(mine[what][0], color=color, ls=style, lw=1.5, label=what)
        last = 0
        for t, test, clusters in mine.select("t", "test", "clusters").iter_rows():
            if clusters != last:
                axis.annotate(f"{clusters}", (t, test), (0, 8), textcoords="offset points", ha="center", fontsize=8)
            last = clusters
        axis.set_xscale("log")
        axis.margins(y=0.15)
        plain(
            axis, x="t = alpha / alpha_hat (numbers: clusters)", y=f"{mine['metric'][0]} on test rows", title=name
        )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure
