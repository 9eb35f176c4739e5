"""Advice to look at: a table of signs for the terminal, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from plures.report.terminal import plain_table
from plures.study.advice import MARGIN, Advice
from plures.study.signs_words import FAMILY, signs

ADVICE_LEGEND = (
    "skew and shift: 0 none, 1 all that varies; percent: the share of the error of one model for all that is saved on "
    "rows held out (95 % interval); noise, differences: what noise costs models alone, and differences one model for "
    "all, as shares of the target's variance; clusters: Rand index between folds and all rows"
)


def signs_table(advice: Advice) -> Table:
    """What was measured, and what it means."""
    table = plain_table("What training and valid rows say")
    table.add_column("sign", no_wrap=True)
    table.add_column("value", no_wrap=True)
    table.add_column("meaning")
    for sign in signs(advice):
        table.add_row(sign.name, sign.value, sign.meaning)
    return table


def picture(advice: Advice, path: Path) -> Path:
    """Errors by family on the left; where clients' models lie, and what clusters they form, on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12.0, 5.0), width_ratios=(1.0, 1.1), layout="constrained")
    _families(left, advice)
    _models(right, advice)
    said = advice.family if advice.rival is None else f"{advice.family} or {advice.rival}"
    figure.suptitle(f"Which family fits: {said}", fontsize="large")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _families(axis: Any, advice: Advice) -> None:
    """What every family saves over one model for all, with its interval; the chosen one stands out."""
    from plures.report.convex_paths import plain
    from plures.report.figures import COLORS

    names = [name for name in advice.ways if name != "global"]
    for place, name in enumerate(reversed(names)):
        gain = advice.saved("global", name)
        color = COLORS[0] if name == advice.family else COLORS[3] if name == advice.rival else "0.55"
        axis.plot([100 * gain.low, 100 * gain.high], [place, place], color=color, lw=3, solid_capstyle="butt")
        axis.plot(100 * gain.mean, place, "o", color=color, ms=9)
    axis.axvline(0, color="black", lw=1)
    axis.axvspan(-100 * MARGIN, 100 * MARGIN, color="0.5", alpha=0.15, lw=0)
    axis.set_yticks(range(len(names)), [f"{name}:\n{FAMILY[name]}" for name in reversed(names)], fontsize="small")
    axis.set_ylim(-0.6, len(names) - 0.4)
    plain(axis, x="percent of the error of one model for all that is saved", y="", title="Held-out error by family")


def _models(axis: Any, advice: Advice) -> None:
    """A dot per client, as large as its rows are many, in the color of its cluster where clusters fit."""
    from plures.report.convex_paths import plain
    from plures.report.figures import COLORS

    found = advice.found if "clusters" in advice.wants else None
    counts = advice.rows.counts
    size = 20 + 100 * np.sqrt(counts / counts.max())
    label = np.zeros(len(counts), int) if found is None else found.label
    for number in np.unique(label):
        own = label == number
        name = f"cluster {number}: {int(own.sum())} clients"
        color = COLORS[number % len(COLORS)]
        axis.scatter(*advice.points[own].T, s=size[own], color=color, alpha=0.75, ec="white", lw=0.6, label=name)
    if found is not None:
        axis.legend(frameon=False, fontsize="small")
    plain(
        axis,
        x="the axis along which clients' models differ most",
        y="the next axis",
        title=f"Where the models of {len(counts):,} clients lie",
    )
