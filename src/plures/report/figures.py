"""Pictures of a comparison and of decisions, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl

from plures.study import Comparison, Guidance
from plures.study.choosing import FAMILIES
from plures.study.comparison import ALONE
from plures.study.statistics import over_seeds

matplotlib.use("Agg")
from matplotlib import pyplot as plt

# Okabe and Ito's palette: told apart with any kind of color vision.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


def overview(result: Comparison, path: Path) -> Path:
    """Means with their intervals, and every client's gain over training alone."""
    board = result.leaderboard
    names = board["method"].to_list()
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 0.45 * len(names) + 2.6), layout="constrained")
    for place, row in enumerate(board.iter_rows(named=True)):
        color = colors[row["method"]]
        left.plot([row["low"], row["high"]], [place, place], color=color, lw=3, alpha=0.5)
        left.plot(row["mean"], place, "o", color=color, ms=7)
        left.annotate(f"{row['mean']:.3f}", (row["mean"], place), (0, 7), textcoords="offset points", ha="center")
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.5, -0.6)
    left.set_xlabel(f"personal {result.metric} on test rows (mean over clients, 95 % interval)")
    left.set_title("Which method")
    _gains(right, result, [name for name in names if name != ALONE], colors)
    _tell_threat(figure, result)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _tell_threat(figure: Any, result: Comparison | Guidance) -> None:
    """Who lied, above all else."""
    if result.threat is not None:
        figure.suptitle(result.threat.said, fontsize="medium")


def _gains(axis: Any, result: Comparison, names: list[str], colors: dict[str, str]) -> None:
    """One line of sorted client gains per method; above zero a client is better off than alone."""
    axis.axhline(0, color="gray", lw=1)
    axis.set_title("For whom")
    if ALONE not in result.clients["method"].unique():
        axis.text(0.5, 0.5, f"add {ALONE} to see who gains", transform=axis.transAxes, ha="center")
        return
    sign = 1 if result.higher_is_better else -1
    alone = over_seeds(result.scores(ALONE))
    for name in names:
        gain = np.sort(sign * (over_seeds(result.scores(name)) - alone))
        axis.plot(np.linspace(0, 100, len(gain)), gain, ".-", color=colors[name], label=name, ms=5, lw=1)
    axis.set_xlabel("clients, sorted by their gain (%)")
    axis.set_ylabel("gain over training alone")
    if names:
        axis.legend(frameon=False)


FAMILY_COLORS = dict(zip(FAMILIES, ("#000000", "#0072B2", "#E69F00", "#CC79A7"), strict=True))


def decisions(result: Guidance, path: Path) -> Path:
    """Every client's gain on test rows over the global model, by what it decided for; unseen clients are hollow."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.6), layout="constrained", gridspec_kw={"width_ratios": [3, 1.5]}
    )
    _clients(left, result)
    _policies(right, result)
    _tell_threat(figure, result)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _clients(axis: Any, result: Guidance) -> None:
    """A dot per client with its standard error, sorted by gain."""
    known = result.honest.filter(pl.col("test_gain").is_not_null()).sort("test_gain", "uid")
    axis.axhline(0, color="gray", lw=1)
    for place, row in enumerate(known.iter_rows(named=True)):
        color, error = FAMILY_COLORS[row["family"]], row["test_gain_error"] or 0.0
        axis.plot(
            [place, place], [row["test_gain"] - error, row["test_gain"] + error], color=color, lw=1, alpha=0.5
        )
        filled = color if row["seen"] else "white"
        axis.plot(place, row["test_gain"], "o" if row["seen"] else "D", color=color, mfc=filled, ms=5)
    for family, number in result.counts.items():
        axis.plot([], [], "o", color=FAMILY_COLORS[family], label=f"{family}: {number}")
    if not result.honest["seen"].all():
        axis.plot([], [], "D", color="gray", mfc="white", label="unseen in training")
    axis.legend(frameon=False)
    missing = result.honest.height - known.height
    axis.set_xlabel(
        "clients, sorted by gain" + (f" ({missing} without test rows are not shown)" if missing else "")
    )
    axis.set_ylabel(f"test loss saved against {result.reference}\n(± standard error over rows)")
    axis.set_title("What each client's decision gains")


def _policies(axis: Any, result: Guidance) -> None:
    """The mean gain of deciding one by one and of one option for all, with intervals."""
    axis.axvline(0, color="gray", lw=1)
    rows = result.evidence.filter(pl.col("against") == "global", pl.col("mean").is_not_null())
    names = []
    for place, row in enumerate(rows.iter_rows(named=True)):
        color = "black" if row["seen"] else "gray"
        axis.plot([row["low"], row["high"]], [place, place], color=color, lw=3, alpha=0.5)
        axis.plot(
            row["mean"], place, "o" if row["seen"] else "D", color=color, mfc=color if row["seen"] else "white"
        )
        axis.annotate(f"{row['mean']:.3f}", (row["mean"], place), (0, 8), textcoords="offset points", ha="center")
        said = row["policy"].replace(":", ":\n").replace(",", ",\n")
        names.append(said + ("" if row["seen"] else "\n(unseen clients)"))
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.6)
    axis.set_xlabel("mean, 95 % interval")
    axis.set_title("On average")
