"""The look of every picture: panels without a box, faint lines across, one way to write files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt


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
