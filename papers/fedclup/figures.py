"""Pictures of FedCLUP from the tables of its reproduction: errors, rounds and what a strength costs and buys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl

from plures.report.figures import COLORS, panels, plain
from plures.report.fusion_figures import Tables

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

RADII = (COLORS[0], COLORS[2], COLORS[1], COLORS[5], COLORS[3])
BLUES = ("#9ecae1", "#4292c6", "#084594")
OTHERS = {
    "LocalTrain": (COLORS[7], ":"),
    "GlobalTrain": (COLORS[3], "-."),
    "pFedMe": (COLORS[1], "--"),
    "L2GD": (COLORS[2], "--"),
    "Ditto": (COLORS[5], "--"),
}
WAYS = {
    "exact": ("exact inner solutions, gamma = 1 / L_g", COLORS[0], "o-"),
    "averaging": ("exact inner solutions, plain averaging", COLORS[5], "s--"),
    "auto": ("K steps from the automatic rule", COLORS[2], "^-"),
}


def pictures(folder: Path) -> None:
    """Every picture whose tables are there."""
    drawn: dict[str, tuple[tuple[str, ...], Callable[[Tables], Any]]] = {
        "mean": (("mean",), _mean),
        "error": (("error", "ends"), _error),
        "rounds": (("rounds",), _rounds),
        "tradeoff": (("tradeoff",), _tradeoff),
        "costs": (("costs",), _costs),
        "mnist": (("mnist",), _mnist),
    }
    for name, (needed, draw) in drawn.items():
        if all((folder / f"{one}.csv").exists() for one in needed):
            figure = draw({one: pl.read_csv(folder / f"{one}.csv", infer_schema_length=None) for one in needed})
            figure.savefig(folder / f"{name}.png", dpi=110)
            plt.close(figure)


def _groups(table: pl.DataFrame, column: str) -> list[Any]:
    return table[column].unique(maintain_order=True).to_list()


def _mean(tables: Tables) -> Any:
    """The risk of mean estimation against the strength: formula, draws, and the best strength."""
    table = tables["mean"].filter(pl.col("lam").is_finite() & (pl.col("lam") > 0))
    figure, axis = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    for color, radius in zip(RADII, _groups(table, "radius"), strict=False):
        own = table.filter(pl.col("radius") == radius).sort("lam")
        axis.plot(own["lam"], own["formula"], color=color, lw=1.8, label=f"R = {radius:g}")
        axis.errorbar(own["lam"], own["drawn"], 2 * own["error"].to_numpy(), fmt="o", ms=4, color=color)
        best = own[int(np.argmin(own["formula"].to_numpy()))]
        axis.plot(best["lam"], best["formula"], "*", ms=15, color=color, mec="white", zorder=4)
    axis.axhline(tables["mean"].filter(pl.col("lam") == 0)["formula"][0], color="0.4", ls=":", lw=1.4)
    axis.text(0.02, 0.97, "dotted: everyone alone", color="0.3", transform=axis.transAxes, va="top")
    axis.set_xscale("log")
    axis.set_yscale("log")
    plain(axis, x="lambda", y="mean squared distance from the truth")
    axis.set_title("Lines: formula; dots: draws; star: best lambda", fontsize=11)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


TITLES = {"linear": "linear regression, 50 rows", "logistic": "logistic regression, 200 rows"}


def _error(tables: Tables) -> Any:
    """The squared distance from the truth against the strength, theory and draws, both ends and the plug-in."""
    table, ends = tables["error"], tables["ends"]
    models = _groups(table, "model")
    figure, axes = panels(len(models), width=5.4, height=4.8)
    for axis, model in zip(axes, models, strict=True):
        mine = table.filter(pl.col("model") == model)
        low, high = _span(mine["lam"])
        for color, radius in zip(RADII, _groups(mine, "radius"), strict=False):
            own = mine.filter(pl.col("radius") == radius).sort("lam")
            axis.plot(own["lam"], own["theory"], color=color, lw=1.6)
            axis.plot(own["lam"], own["drawn"], ".", color=color, ms=6, label=f"R = {radius:g}")
            one = ends.filter((pl.col("model") == model) & (pl.col("radius") == radius)).row(0, named=True)
            axis.plot(low / 2, one["local"], "<", color=color, ms=7)
            axis.plot(high * 2, one["all_alike"], ">", color=color, ms=7)
            axis.plot(one["plug_in_lam"], one["plug_in"], "*", ms=15, color=color, mec="black", mew=0.7, zorder=4)
        axis.set_xscale("log")
        axis.set_yscale("log")
        plain(axis, x="lambda", y="", title=TITLES.get(model, model))
        axis.legend(frameon=False, fontsize=9, loc="best")
    axes[0].set_ylabel("mean squared distance from the truth")
    signs = [
        ("-", "theory"),
        (".", "draws"),
        ("<", "everyone alone"),
        (">", "one model for all"),
        ("*", "plug-in lambda"),
    ]
    handles = [
        Line2D(
            [], [], color="0.3", ls="-" if sign == "-" else "", marker="" if sign == "-" else sign, label=name, ms=8
        )
        for sign, name in signs
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _span(values: pl.Series) -> tuple[float, float]:
    found = values.to_numpy()
    return float(found.min()), float(found.max())


def _rounds(tables: Tables) -> Any:
    """Rounds and gradients to an error of 1e-8 against the strength, with the rate that kappa_g predicts."""
    table = tables["rounds"].sort("lam")
    figure, axes = panels(2, width=5.2, height=4.6)
    lam = table["lam"].to_numpy()
    for name, (label, color, style) in WAYS.items():
        axes[0].plot(lam, table[name], style, color=color, lw=1.8, ms=5, label=label)
    axes[0].plot(
        lam, table["predicted"], color="0.3", lw=1.4, ls=":", label="bound from kappa_g, exact inner solutions"
    )
    axes[0].plot(lam, table["listed"], "x", color="black", ms=8, label="another program, automatic K")
    axes[0].set_yscale("log")
    axes[1].plot(lam, table["gradients"], "^-", color=COLORS[2], lw=1.8, ms=5, label="ours: K times rounds")
    axes[1].plot(lam, table["listed_gradients"], "x", color="black", ms=8, label="another program")
    axes[1].set_ylim(0, 1.25 * max(table["gradients"].max(), table["listed_gradients"].max()))  # type: ignore[operator,type-var]
    for axis, what in zip(axes, ("rounds", "gradients of a client"), strict=True):
        axis.set_xscale("log")
        plain(axis, x="lambda", y=f"{what} to a relative error of 1e-8")
        axis.legend(frameon=False, fontsize=9, loc="best")
    return figure


def _tradeoff(tables: Tables) -> Any:
    """The distance from the truth over rounds: what is left is statistical, what falls is optimization."""
    table = tables["tradeoff"]
    models = _groups(table, "model")
    figure, axes = panels(len(models), width=5.4, height=4.8)
    for axis, model in zip(axes, models, strict=True):
        mine = table.filter(pl.col("model") == model)
        shades = iter(BLUES)
        for name in _groups(mine, "method"):
            own = mine.filter(pl.col("method") == name).sort("round")
            color, style = OTHERS.get(name.split(",")[0], ("", ""))
            if not color:
                color, style = next(shades, BLUES[-1]), "-"
            axis.plot(own["round"], own["error"], style, color=color, lw=2, label=name)
        axis.set_xscale("log")
        axis.set_yscale("log")
        plain(
            axis, x="communication round", y="", title=f"{TITLES.get(model, model)}, lambda = {mine['lam'][0]:.2g}"
        )
    axes[0].set_ylabel("mean squared distance from the truth")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _costs(tables: Tables) -> Any:
    """Error, rounds and gradients against the strength."""
    table = tables["costs"].sort("lam")
    figure, axes = panels(3, width=3.9, height=4.2)
    shown = (
        ("error", "mean squared distance from the truth"),
        ("rounds", "rounds needed"),
        ("gradients", "gradients of a client"),
    )
    for axis, (column, what) in zip(axes, shown, strict=True):
        for color, model in zip((COLORS[0], COLORS[5]), ("linear", "logistic"), strict=True):
            own = table.filter(pl.col("model") == model)
            axis.plot(own["lam"], own[column], "o-", ms=4, color=color, lw=1.8, label=f"{model} regression")
            if column == "error":
                axis.plot(own["lam"], own["theory"], ":", color=color, lw=1.6, label="theory")
        axis.set_xscale("log")
        axis.set_yscale("log")
        plain(axis, x="lambda", y=what)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


NEIGHBORS = {
    "alone": (COLORS[7], ":"),
    "FedAvg": (COLORS[3], "-."),
    "FedCLUP, lam 0.2": ("#c6dbef", "-"),
    "FedCLUP, lam 0.5": (BLUES[0], "-"),
    "FedCLUP, lam 1.5": (BLUES[1], "-"),
    "FedCLUP, lam 2.5": (BLUES[2], "-"),
    "FedCLUP, lam auto": (COLORS[0], "o-"),
    "FedCLUP, lam by valid rows": (COLORS[4], "D-"),
    "MR-MTL": ("0.6", ":"),
    "pFedMe": (COLORS[1], "--"),
    "L2GD": (COLORS[2], "--"),
    "Ditto": (COLORS[5], "--"),
}
DEEPEST = -6.0
"""Points below training alone from which on a line leaves the picture."""


def _mnist(tables: Tables) -> Any:
    """Points of personal accuracy above training alone, against the number of digits that a client sees."""
    table = tables["mnist"].sort("digits")
    models = _groups(table.sort("model", descending=True), "model")
    figure, axes = panels(len(models), width=5.6, height=4.8)
    for axis, model in zip(axes, models, strict=True):
        mine = table.filter(pl.col("model") == model)
        base = mine.filter(pl.col("method") == "alone").select("digits", alone="accuracy")
        for name in sorted(_groups(mine, "method"), key=lambda name: (not name.startswith("FedCLUP"), name)):
            own = mine.filter(pl.col("method") == name).join(base, on="digits").sort("digits")
            color, style = NEIGHBORS[name]
            axis.plot(own["digits"], own["accuracy"] - own["alone"], style, ms=4, lw=1.8, color=color, label=name)
        axis.set_ylim(bottom=max(axis.get_ylim()[0], DEEPEST))
        plain(axis, x="digits that a client sees", y="", title=model)
    axes[0].set_ylabel("points of accuracy above training alone")
    shown = {name: line for axis in axes for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    names = [name for name in NEIGHBORS if name in shown]
    figure.legend([shown[name] for name in names], names, loc="outside lower center", ncols=3, frameon=False)
    return figure
