"""Pictures of advice: which family fits, whether to federate, what every client decides for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from matplotlib.ticker import MaxNLocator

from plures.advise.advice import Advice
from plures.advise.decisions import Decisions
from plures.advise.families import DECISIONS, ENDS, FAMILIES
from plures.advise.family_advice import MARGIN, FamilyAdvice
from plures.advise.fusion import FusedModels
from plures.advise.tradeoff import Tradeoff
from plures.advise.tradeoff_figures import tradeoff_figures
from plures.advise.worth import Worth
from plures.advise.worth_wording import strength_of
from plures.report.figures import COLORS, panels, plain
from plures.report.fusion_figures import MOST_CLIENTS, draw_bands, draw_clusters, draw_path, path_tables

END_LOOKS = {"alone": (COLORS[2], "-."), "global": (COLORS[3], ":")}
DECISION_COLORS = dict(zip(DECISIONS, (COLORS[7], COLORS[0], COLORS[1], COLORS[3]), strict=True))
FEW = 10
"""Up to so many clients are named."""


def advice_figures(advice: Advice) -> dict[str, Any]:
    """The pictures of any advice, by name."""
    drawn: dict[type[Advice], Callable[[Any], dict[str, Any]]] = {
        FamilyAdvice: lambda found: {"advice": families_figure(found)},
        Worth: lambda found: {"worth": worth_figure(found)},
        Decisions: lambda found: {"decisions": decisions_figure(found)},
        FusedModels: fusion_figures,
        Tradeoff: tradeoff_figures,
    }
    return drawn[type(advice)](advice)


def families_figure(advice: FamilyAdvice) -> Any:
    """Errors by family on the left; where clients' models lie, and what clusters they form, on the right."""
    figure, (left, right) = panels(2, 6.0, 5.0, width_ratios=(1.0, 1.1))
    _savings(left, advice)
    _models(right, advice)
    figure.suptitle(f"Which family fits: {advice.verdict}", fontsize="large")
    return figure


def _savings(axis: Any, advice: FamilyAdvice) -> None:
    """What every family saves over one model for all, with its interval; the chosen one stands out."""
    names = [name for name in reversed(advice.scores) if name != "global"]
    for height, name in enumerate(names):
        gain = advice.saving("global", name)
        color = COLORS[0] if name == advice.family else COLORS[3] if name == advice.rival else "0.55"
        axis.plot([100 * gain.low, 100 * gain.high], [height, height], color=color, lw=3, solid_capstyle="butt")
        axis.plot(100 * gain.mean, height, "o", color=color, ms=9)
    axis.axvline(0, color="black", lw=1)
    axis.axvspan(-100 * MARGIN, 100 * MARGIN, color="0.5", alpha=0.15, lw=0)
    axis.set_yticks(range(len(names)), [f"{name}:\n{FAMILIES[name]}" for name in names], fontsize="small")
    axis.set_ylim(-0.6, len(names) - 0.4)
    plain(axis, x="percent of the error of one model for all that is saved", y="", title="Held-out error by family")


def _models(axis: Any, advice: FamilyAdvice) -> None:
    """A dot per client, as large as its rows are many, in the color of its cluster where clusters fit."""
    clusters = advice.clusters if "clusters" in advice.wants else None
    counts = advice.rows.counts
    size = 20 + 100 * np.sqrt(counts / counts.max())
    label = np.zeros(len(counts), int) if clusters is None else clusters.label
    for number in np.unique(label):
        own, color = label == number, COLORS[number % len(COLORS)]
        name = f"cluster {number}: {int(own.sum())} clients"
        axis.scatter(*advice.points[own].T, s=size[own], color=color, alpha=0.75, ec="white", lw=0.6, label=name)
    if clusters is not None:
        axis.legend(frameon=False, fontsize="small")
    first = "the axis along which clients' models differ most"
    plain(axis, x=first, y="the next axis", title=f"Where the models of {len(counts):,} clients lie")


def worth_figure(worth: Worth) -> Any:
    """Losses along the path of strengths on the left, the clients' gains on the right."""
    figure, axes = panels(2, 5.75, 5.6)
    _strengths(axes[0], worth)
    _gains(axes[1], worth)
    for axis in axes:  # below the panel, where it hides nothing
        axis.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    figure.suptitle(worth.sentences[0].split(";")[0], fontsize="large")
    return figure


def _strengths(axis: Any, worth: Worth) -> None:
    """Mean losses against lam; levels of both ends by test rows; where auto and valid rows choose."""
    lams, degree, valid = worth.validated.lams, worth.degree, worth.validated
    axis.plot(lams, valid.losses.mean(1), "--", color="0.45", lw=1.6, label="a model each, valid rows")
    axis.plot(lams, worth.path_test, color=COLORS[0], lw=2.2, label="a model each, test rows")
    for way, (color, style) in END_LOOKS.items():
        axis.axhline(worth.test[way].mean(), color=color, ls=style, lw=1.8, label=f"{ENDS[way]}, test rows")
    low, high = (float(np.clip(end, lams[0], lams[-1])) for end in (degree.low, degree.high))
    axis.axvspan(low, high, color=COLORS[5], alpha=0.13, lw=0, label="auto lam, 95 % interval")
    axis.plot(
        degree.lam, worth.test[worth.auto].mean(), "o", ms=9, color=COLORS[5], zorder=4, label=f"{worth.auto} lam"
    )
    diamond = {"ms": 7, "mfc": "none", "mec": "black", "mew": 1.5, "zorder": 5}
    axis.plot(valid.lam, worth.test["valid"].mean(), "D", label="lam by valid rows", **diamond)
    axis.set(xscale="log", xlim=(lams[0], lams[-1]))
    x = "lam (weak to strong proximal term to the shared model)"
    plain(axis, x=x, y="mean loss over clients", title="How much to share")


def _gains(axis: Any, worth: Worth) -> None:
    """What clients gain, a dot each: sorted by their gain over training alone; lines for what was predicted."""
    table = worth.clients_table.sort("gain_over_alone", descending=True, maintain_order=True)
    num = table.height
    order, few = np.arange(1, num + 1), num <= FEW
    for (way, (color, _)), marker in zip(END_LOOKS.items(), "os", strict=True):
        gain, ahead = (table[f"{kind}gain_over_{way}"].to_numpy() for kind in ("", "predicted_"))
        share = f"{int((gain > 0).sum())} of {num}"
        axis.plot(order, gain, marker, ms=8 if few else 4, color=color, label=f"over {ENDS[way]}: {share} gain")
        axis.axhline(ahead.mean(), color=color, ls="--", lw=1.3, label=f"predicted mean: {ahead.mean():+.2g}")
    axis.axhline(0, color="black", lw=1)
    room = max(0.5, 0.015 * num)
    axis.set_xlim(1 - room, num + room)
    if few:
        axis.set_xticks(order, [str(name) for name in table["client"]])
    else:
        axis.set_xticks([tick for tick in MaxNLocator(integer=True).tick_values(1, num) if 1 <= tick <= num])
    title = f"Who gains with {strength_of(worth)}"
    plain(axis, x="clients, sorted by their gain over training alone", y="test loss saved", title=title)


def fusion_figures(fusion: FusedModels) -> dict[str, Any]:
    """The path of a fused federation: models, numbers of clusters, and who goes where; nothing without a path."""
    fitted = fusion.fitted
    if fitted.path is None:
        return {}
    known = fusion.group if fusion.group is not None else fitted.label
    steps, parts = path_tables(fitted.path, fitted.consensus.model, np.asarray(known))
    what = "cluster chosen" if fusion.group is None else "planted group"
    tables = {"path": steps, "partitions": parts}
    drawn = {"path": draw_path(tables, what), "clusters": draw_clusters(tables)}
    return drawn if fitted.clients.num > MOST_CLIENTS else {**drawn, "bands": draw_bands(tables, what)}


def decisions_figure(result: Decisions) -> Any:
    """Every client's gain on test rows over the global model, by what it decided for; unseen clients are hollow."""
    figure, (left, right) = panels(2, 5.5, 4.6, width_ratios=(3, 1.5))
    _clients(left, result)
    _policies(right, result)
    if result.attackers is not None:
        figure.suptitle(result.attackers.said, fontsize="medium")
    return figure


def _clients(axis: Any, result: Decisions) -> None:
    """A dot per client with its standard error, sorted by gain."""
    known = result.honest.filter(pl.col("test_gain").is_not_null()).sort("test_gain", "uid")
    axis.axhline(0, color="gray", lw=1)
    for order, row in enumerate(known.iter_rows(named=True)):
        color, gain, error = DECISION_COLORS[row["family"]], row["test_gain"], row["test_gain_error"] or 0.0
        axis.plot([order, order], [gain - error, gain + error], color=color, lw=1, alpha=0.5)
        filled = color if row["seen"] else "white"
        axis.plot(order, gain, "o" if row["seen"] else "D", color=color, mfc=filled, ms=5)
    for family, number in result.counts.items():
        axis.plot([], [], "o", color=DECISION_COLORS[family], label=f"{family}: {number}")
    if not result.honest["seen"].all():
        axis.plot([], [], "D", color="gray", mfc="white", label="unseen in training")
    axis.legend(frameon=False)
    missing = result.honest.height - known.height
    x = "clients, sorted by gain" + (f" ({missing} without test rows are not shown)" if missing else "")
    y = f"test loss saved against {result.reference}\n(± standard error over rows)"
    plain(axis, x=x, y=y, title="What each client's decision gains")


def _policies(axis: Any, result: Decisions) -> None:
    """The mean gain of deciding one by one and of one option for all, with intervals."""
    rows = result.evidence.filter(pl.col("against") == "global", pl.col("mean").is_not_null()).to_dicts()
    axis.axvline(0, color="gray", lw=1)
    for height, row in enumerate(rows):
        color, marker = ("black", "o") if row["seen"] else ("gray", "D")
        axis.plot([row["low"], row["high"]], [height, height], color=color, lw=3, alpha=0.5)
        axis.plot(row["mean"], height, marker, color=color, mfc=color if row["seen"] else "white")
        axis.annotate(f"{row['mean']:.3f}", (row["mean"], height), (0, 8), textcoords="offset points", ha="center")
    names = [row["policy"].replace(":", ":\n").replace(",", ",\n") for row in rows]
    whose = ["" if row["seen"] else "\n(unseen clients)" for row in rows]
    axis.set_yticks(range(len(names)), [name + who for name, who in zip(names, whose, strict=True)])
    axis.set_ylim(len(names) - 0.5, -0.6)
    plain(axis, x="mean, 95 % interval", y="", title="On average")
