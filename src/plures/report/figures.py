"""The look of every picture (panels without a box, faint lines across, one way to write files), and the picture of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from plures.study import Comparison
from plures.study.comparison import ALONE, UNSOUND

matplotlib.use("Agg")
from matplotlib import pyplot as plt

# Okabe and Ito's palette: told apart with any kind of color vision.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


def plain(axis: Any, *, x: str, y: str, title: str = "") -> None:
    """Labels, faint lines across, and no frame above and to the right."""
    axis.set(xlabel=x, ylabel=y, title=title)
    axis.grid(axis="y", color="0.92", lw=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def panels(number: int, width: float = 4.8, height: float = 4.2, **options: Any) -> tuple[Any, list[Any]]:
    """A figure with panels side by side."""
    size = (width * number, height)
    figure, axes = plt.subplots(1, number, figsize=size, layout="constrained", squeeze=False, **options)
    return figure, list(axes[0])


def legend_below(figure: Any, axis: Any, columns: int) -> None:
    """The legend of an axis, below all panels, where it hides nothing."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)


def save_figures(figures: Mapping[str, Any], folder: Path) -> list[Path]:
    """Figures by name as files; none stays open."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=120)
        plt.close(figure)
    return [folder / f"{name}.png" for name in figures]


def overview(result: Comparison, path: Path) -> Path:
    """Means with their intervals, and every client's gain over training alone."""
    board = result.leaderboard
    names = board["method"].to_list()
    sound = [name for name in names if name in result.compared]
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    figure, (left, right) = panels(2, 5.5, 0.45 * len(names) + 2.6)
    for place, row in enumerate(board.iter_rows(named=True)):
        color = colors[row["method"]]
        if row["against_best"] in UNSOUND or row["mean"] is None:
            # One that diverged would leave no room for the others.
            left.text(
                0.02, place, row["against_best"], transform=left.get_yaxis_transform(), va="center", color=color
            )
            continue
        left.plot([row["low"], row["high"]], [place, place], color=color, lw=3, alpha=0.5)
        left.plot(row["mean"], place, "o", color=color, ms=7)
        left.annotate(f"{row['mean']:.3f}", (row["mean"], place), (0, 7), textcoords="offset points", ha="center")
    left.set_yticks(range(len(names)), names)
    x = f"personal {result.metric} on test rows (mean over clients, 95 % interval)"
    left.set(ylim=(len(names) - 0.5, -0.6), xlabel=x, title="Which method")
    _gains(right, result, sound, colors)
    if result.attackers is not None:
        figure.suptitle(result.attackers.said, fontsize="medium")
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _gains(axis: Any, result: Comparison, sound: list[str], colors: dict[str, str]) -> None:
    """One line of sorted client gains per method; above zero a client is better off than alone."""
    axis.axhline(0, color="gray", lw=1)
    axis.set_title("For whom")
    if ALONE not in sound:
        wish = (
            f"{ALONE} gave no model to compare with" if ALONE in result.methods else f"add {ALONE} to see who gains"
        )
        axis.text(0.5, 0.5, wish, transform=axis.transAxes, ha="center")
        return
    names = [name for name in sound if name != ALONE]
    for name in names:
        gain = np.sort(result.gains(name, ALONE))
        axis.plot(np.linspace(0, 100, len(gain)), gain, ".-", color=colors[name], label=name, ms=5, lw=1)
    axis.set(xlabel="clients, sorted by their gain (%)", ylabel="gain over training alone")
    if names:
        axis.legend(frameon=False)
