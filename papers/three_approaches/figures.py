"""Pictures of the three-approaches reproduction, from the tables it left in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl

from plures.data.worlds import density_truth, partition_loss
from plures.report.figures import COLORS

matplotlib.use("Agg")
from matplotlib import pyplot as plt

MARKS = "osD^vP*X"


def pictures(folder: Path) -> None:
    """A picture beside every table that is there."""
    for name, draw in (("density", _density), ("curve", _curve), ("grid", _grid)):
        if (folder / f"{name}.csv").exists():
            figure = draw(pl.read_csv(folder / f"{name}.csv"))
            figure.savefig(folder / f"{name}.png", dpi=130)
            plt.close(figure)


def _density(table: pl.DataFrame) -> Any:
    """Loss against the number of clusters: ours, the closed form, the paper's."""
    figure, axis = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    q = table["q"].to_numpy()
    axis.plot(q, table["paper"], "x--", color=COLORS[5], label="paper, Table 1 (reported)", ms=8)
    low, high = (np.abs(table[name].to_numpy() - table["ours"].to_numpy()) for name in ("low", "high"))
    axis.errorbar(
        q, table["ours"], yerr=[low, high], fmt="o-", color=COLORS[0], capsize=4, label="ours (range of seeds)"
    )
    axis.plot(q, table["closed"], "_", color=COLORS[7], ms=22, mew=2, label="best partition known (closed form)")
    axis.set_xticks(q)
    axis.set_xlabel("clusters q")
    axis.set_ylabel("log-loss under the true distributions (nats)")
    axis.set_title("HypCluster on densities, 100 samples per client")
    axis.legend(frameon=False)
    return figure


def _curve(table: pl.DataFrame) -> Any:
    """Loss against samples per client, a line per method."""
    figure, axis = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
    for place, name in enumerate(table["method"].unique(maintain_order=True)):
        one = table.filter(pl.col("method") == name).sort("rows")
        axis.plot(one["rows"], one["loss"], f"{MARKS[place]}-", color=COLORS[place], label=name, lw=1.4, ms=5)
    truth = density_truth()
    floor = partition_loss(truth, [[client] for client in range(len(truth))])
    axis.axhline(floor, color="gray", lw=1, ls=":")
    where = (table["rows"].min(), floor)
    axis.annotate("entropy of the clients", where, (0, -11), textcoords="offset points", fontsize=8)
    axis.set_xscale("log")
    sizes = sorted(table["rows"].unique())
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    axis.set_xlabel("training samples per client")
    axis.set_ylabel("log-loss under the true distributions (nats)")
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _grid(table: pl.DataFrame) -> Any:
    """Accuracy with its interval for every cell, and what is gained over the initial model."""
    bases = table["base"].unique(maintain_order=True).to_list()
    ways = table["personalizer"].unique(maintain_order=True).to_list()
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 7), layout="constrained", sharey="row")
    for column, who in enumerate(("seen", "unseen")):
        for line, (value, low, high) in enumerate((("ours", "low", "high"), ("gain", "gain_low", "gain_high"))):
            axis = axes[line][column]
            for place, base in enumerate(bases):
                mine = table.filter((pl.col("clients") == who) & (pl.col("base") == base))
                x = np.arange(len(ways)) + 0.22 * (place - 1)
                spans = np.abs(np.array([mine[low], mine[high]]) - mine[value].to_numpy())
                axis.errorbar(
                    x, mine[value], yerr=spans, fmt=MARKS[place], color=COLORS[place], capsize=3, label=base
                )
            axis.set_xticks(range(len(ways)), [way.replace(", ", ",\n") for way in ways])
            if line:
                axis.axhline(0, color="gray", lw=1)
        axes[0][column].set_title(f"{who} writers")
    axes[0][0].set_ylabel("accuracy (%)")
    axes[1][0].set_ylabel("gain over the initial model (points)")
    axes[0][0].legend(frameon=False)
    return figure
