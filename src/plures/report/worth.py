"""The picture of whether to federate: losses along the path of strengths, and every client's gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from plures.report.convex_paths import plain
from plures.report.figures import COLORS
from plures.study.worth import Worth

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

ENDS = {"alone": (COLORS[2], "-."), "global": (COLORS[3], ":")}
FEW = 10
"""Up to so many clients are named."""
LABELS = {"alone": "training alone", "global": "one model for all"}


def picture(worth: Worth, path: Path) -> Path:
    """The path on the left, the clients' gains on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 5.6), layout="constrained")
    _path(left, worth)
    _gains(right, worth)
    figure.suptitle(worth.sentences[0].split(";")[0], fontsize="large")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _path(axis: Any, worth: Worth) -> None:
    """Mean losses against lam; levels of both ends by test rows; where auto and valid rows choose."""
    found = worth.validated
    axis.plot(found.lams, found.losses.mean(1), "--", color="0.45", lw=1.6, label="a model each, valid rows")
    axis.plot(found.lams, worth.path_test, color=COLORS[0], lw=2.2, label="a model each, test rows")
    for way, (color, style) in ENDS.items():
        axis.axhline(worth.test[way].mean(), color=color, ls=style, lw=1.8, label=f"{LABELS[way]}, test rows")
    degree = worth.degree
    low, high = (float(np.clip(end, found.lams[0], found.lams[-1])) for end in (degree.low, degree.high))
    axis.axvspan(low, high, color=COLORS[5], alpha=0.13, lw=0, label="auto lam, 95 % interval")
    axis.plot(degree.lam, worth.test["auto"].mean(), "o", ms=9, color=COLORS[5], zorder=4, label="auto lam")
    axis.plot(
        found.lam,
        worth.test["valid"].mean(),
        "D",
        ms=7,
        mfc="none",
        mec="black",
        mew=1.5,
        zorder=5,
        label="lam by valid rows",
    )
    axis.set_xscale("log")
    axis.set_xlim(found.lams[0], found.lams[-1])
    plain(
        axis,
        x="lam (weak to strong pull to the shared model)",
        y="mean loss over clients",
        title="How much to share",
    )
    _legend(axis)


def _gains(axis: Any, worth: Worth) -> None:
    """What clients gain, a place each: sorted by their gain over training alone; lines for what was predicted."""
    table = worth.table.sort("gain_over_alone", descending=True, maintain_order=True)
    num = table.height
    place, few = np.arange(1, num + 1), num <= FEW
    for (way, (color, _)), marker in zip(ENDS.items(), "os", strict=True):
        gain = table[f"gain_over_{way}"].to_numpy()
        share = f"{int((gain > 0).sum())} of {num}"
        axis.plot(place, gain, marker, ms=8 if few else 4, color=color, label=f"over {LABELS[way]}: {share} gain")
        ahead = table[f"predicted_gain_over_{way}"].to_numpy()
        axis.axhline(ahead.mean(), color=color, ls="--", lw=1.3, label=f"predicted mean: {ahead.mean():+.2g}")
    axis.axhline(0, color="black", lw=1)
    room = max(0.5, 0.015 * num)
    axis.set_xlim(1 - room, num + room)
    if few:
        axis.set_xticks(place, [str(name) for name in table["client"]])
    else:
        axis.set_xticks([tick for tick in MaxNLocator(integer=True).tick_values(1, num) if 1 <= tick <= num])
    plain(
        axis,
        x="clients, sorted by their gain over training alone",
        y="test loss saved",
        title=f"Who gains with lam = {worth.degree.lam:.3g}",
    )
    _legend(axis)


def _legend(axis: Any) -> None:
    """Below the panel, where it hides nothing."""
    axis.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
