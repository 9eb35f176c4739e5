"""Pictures of a sweep: error and rounds against the degree of collaboration, and error against bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl

from plures.report.figures import COLORS
from plures.study.fronts import said_mb, unit_of
from plures.study.statistics import bootstrap
from plures.study.tradeoff import Curve, Tradeoff
from plures.study.tradeoff_words import values_table

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize, SymLogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

# Without the last tenth of the map, whose yellow is lost on white.
COOL_TO_WARM = ListedColormap(plt.get_cmap("viridis")(np.linspace(0, 0.9, 256)))
BLUE, AMBER, GREEN, RED = COLORS[0], COLORS[1], COLORS[2], COLORS[5]
INK, FAINT = "0.25", "0.6"
STAR: dict[str, Any] = {"marker": "*", "ms": 17, "color": AMBER, "mec": "black", "mew": 0.8, "ls": "", "zorder": 5}
RING: dict[str, Any] = {"marker": "o", "ms": 12, "mfc": "none", "mec": AMBER, "mew": 1.6, "ls": ""}
END_LOOKS = {"local_only": (GREEN, (0, (5, 2))), "fedavg": (COLORS[3], (0, (1.5, 1.5)))}
END_WORDS = {"local_only": "alone", "fedavg": "one model for all"}


def tradeoff_pictures(result: Tradeoff, folder: Path) -> list[Path]:
    """Both pictures, as files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"degree.png": degree_figure(result), "front.png": front_figure(result)}
    for name, figure in drawn.items():
        figure.savefig(folder / name, dpi=130)
        plt.close(figure)
    return [folder / name for name in drawn]


def degree_figure(result: Tradeoff) -> Any:
    """Above: the test loss against the option, with its interval; below: the rounds each value needs."""
    table = values_table(result)
    values = table.filter(pl.col("kind") == "value").sort("number")
    auto = table.filter(pl.col("kind") == "auto")
    figure, axes = plt.subplots(
        2,
        2 if auto.height else 1,
        figsize=(7.6, 6.2),
        layout="constrained",
        squeeze=False,
        sharex="col",
        sharey="row",
        gridspec_kw={"height_ratios": [2.1, 1], **({"width_ratios": [14, 1]} if auto.height else {})},
    )
    _errors(axes[0, 0], result, values)
    _rounds(axes[1, 0], result, values)
    if auto.height:
        _auto(axes[:, 1], auto.row(0, named=True))
    _degree_axis(axes[1, 0], values["number"].to_numpy())
    axes[1, 0].set_xlabel(f"{result.option} of {_short(result.sweep.degree.text)}")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _errors(axis: Any, result: Tradeoff, values: pl.DataFrame) -> None:
    x = values["number"].to_numpy()
    axis.fill_between(x, values["test_loss_low"], values["test_loss_high"], color=BLUE, alpha=0.16, lw=0)
    axis.plot(
        x,
        values["test_loss"],
        "o-",
        color=BLUE,
        lw=2,
        ms=5,
        label=f"test loss after {result.sweep.rounds} rounds, 95 % interval",
    )
    valid = values["valid_loss"].cast(pl.Float64).fill_null(np.nan)
    axis.plot(x, valid, "-", color=FAINT, lw=1.2, label=f"valid loss at the best round{_under(result)}")
    for end in result.ends:
        color, style = END_LOOKS[end.setting.said]
        level = bootstrap(end.test_losses)
        axis.axhline(
            level.mean, color=color, ls=style, lw=1.8, label=f"{END_WORDS[end.setting.said]} ({end.setting.said})"
        )
    _star(axis, result, values, "test_loss")
    _house(axis, "loss of the personal models", "What the degree of collaboration buys")
    _steady_limits(axis, values, result)


def _rounds(axis: Any, result: Tradeoff, values: pl.DataFrame) -> None:
    needed = values["rounds_needed"].cast(pl.Float64).fill_null(np.nan)
    axis.plot(values["number"], needed, "s-", color=INK, lw=1.6, ms=4.5)
    _star(axis, result, values, "rounds_needed", label=False)
    most = max((one for curve in result.swept if (one := _rounds_of(result, curve))), default=result.sweep.rounds)
    axis.set_ylim(0, 1.25 * most)
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    _house(axis, "rounds needed", "What it costs")


def _rounds_of(result: Tradeoff, curve: Curve) -> int | None:
    place = result.needed(curve)
    return None if place is None else int(curve.rounds[place])


def _star(axis: Any, result: Tradeoff, values: pl.DataFrame, column: str, *, label: bool = True) -> None:
    """The best value, marked; values within noise of it have a ring."""
    near = values.filter(pl.col("value").is_in([one.said for one in result.near]))
    ring = {"label": "within noise of the best"} if label and near.height else {}
    axis.plot(near["number"], near[column], **RING, **ring)
    best = values.filter(pl.col("value") == (result.best.setting.said if result.best else ""))
    if best.height:
        star = {"label": "best on valid rows"} if label else {}
        axis.plot(best["number"], best[column], **STAR, **star)


def _auto(axes: Any, row: dict[str, Any]) -> None:
    """A column of its own for the value that the method chose for itself: it has no place on the axis."""
    marked = row["mark"].split(", ")
    look = (
        STAR if "best" in marked else {"marker": "D", "ms": 7, "color": BLUE, "mec": "black", "mew": 0.8, "ls": ""}
    )
    if np.isfinite(row["test_loss"]):
        axes[0].plot([0, 0], [row["test_loss_low"], row["test_loss_high"]], color=BLUE, lw=5, alpha=0.3)
    for axis, height in zip(axes, (row["test_loss"], row["rounds_needed"]), strict=True):
        if height is not None and np.isfinite(height):
            axis.plot([0], [height], **look)
            if "within noise" in marked:
                axis.plot([0], [height], **RING)
    for axis in axes:
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
        axis.set_facecolor("0.97")
    axes[1].set_xticks([0], ["auto"])


def _steady_limits(axis: Any, values: pl.DataFrame, result: Tradeoff) -> None:
    """Limits that show what matters: a value that blew up is beyond the frame, one that diverged is named at its top."""
    levels = [float(bootstrap(one.test_losses).mean) for one in result.ends]
    shown = np.array(
        [*values.select("test_loss_low", "test_loss_high", "valid_loss").to_numpy().ravel(), *levels], float
    )
    known = shown[np.isfinite(shown)]
    if len(known):
        usual = max(abs(one) for one in (float(np.median(known)), *levels) if np.isfinite(one))
        top = min(float(known.max()), 2.5 * usual)
        room = 0.06 * (top - known.min()) or 0.1 * abs(top) or 1.0
        axis.set_ylim(known.min() - room, top + room)
    for number in values.filter(pl.col("mark").str.contains("diverged"))["number"]:
        place = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "top", "rotation": 90}
        axis.annotate("diverged", (number, 0.97), color=RED, **place)


def _degree_axis(axis: Any, numbers: np.ndarray) -> None:
    """The values themselves as ticks, on a log scale; 0 stands at the left, before a short linear stretch."""
    if not len(numbers):
        return
    low, high = float(numbers.min()), float(numbers.max())
    if 0 < low < high:
        room = (high / low) ** 0.05
        axis.set_xscale("log")
        axis.set_xlim(low / room, high * room)
    elif low == 0 < high:
        axis.set_xscale("symlog", linthresh=float(numbers[numbers > 0].min()), linscale=0.4)
        axis.set_xlim(-0.1 * float(numbers[numbers > 0].min()), 1.3 * high)
    else:
        room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
        axis.set_xlim(low - room, high + room)
    axis.set_xticks(numbers, [f"{one:g}" for one in numbers])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.minorticks_off()


def front_figure(result: Tradeoff) -> Any:
    """The valid loss against the traffic of a client, a line per value; the front, the budget and the ends."""
    figure, axis = plt.subplots(figsize=(8.2, 5.2), layout="constrained")
    unit, per_mb = unit_of(max(float(one.cost[-1]) for one in result.swept))
    numbers = [one.setting.value for one in result.swept if one.setting.value is not None]
    colors = ScalarMappable(_norm(np.array(numbers)), COOL_TO_WARM)
    for curve in result.swept:
        _curve(axis, curve, colors, per_mb)
    for end in result.ends:
        _end(axis, end, per_mb)
    _front(axis, result, per_mb)
    _front_limits(axis, result, per_mb)
    _budget(axis, result, per_mb)
    axis.set_xlabel(f"{unit} per client, sent and received so far")
    _house(axis, "valid loss of the personal models", f"What traffic buys: {_short(result.sweep.degree.text)}")
    bar = figure.colorbar(colors, ax=axis, pad=0.02, aspect=28, label=result.option)
    bar.outline.set_visible(False)
    if len(numbers) <= 12:
        bar.set_ticks(numbers, labels=[f"{one:g}" for one in numbers])
        bar.ax.minorticks_off()
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _norm(numbers: np.ndarray) -> Normalize:
    """Colors by the order of magnitude of the value."""
    positive = numbers[numbers > 0]
    if not len(positive) or (numbers < 0).any() or len(numbers) < 2:
        return Normalize(float(numbers.min()), float(numbers.max())) if len(numbers) else Normalize()
    if (numbers == 0).any():
        return SymLogNorm(float(positive.min()), linscale=0.4, vmin=0.0, vmax=float(positive.max()))
    return LogNorm(float(positive.min()), float(positive.max()))


def _curve(axis: Any, curve: Curve, colors: Any, per_mb: float) -> None:
    if curve.diverged:
        return
    known = np.isfinite(curve.errors)
    x, y = per_mb * curve.cost[known], curve.errors[known]
    if curve.setting.value is None:
        axis.plot(x, y, "-.", color="black", lw=1.6, label="auto")
    else:
        axis.plot(x, y, "-", color=colors.to_rgba(curve.setting.value), lw=1.7, alpha=0.9)


def _end(axis: Any, end: Curve, per_mb: float) -> None:
    """What costs the same after any number of rounds is a level, the rest a curve."""
    if end.diverged:
        return
    color, style = END_LOOKS[end.setting.said]
    known, label = np.isfinite(end.errors), f"{END_WORDS[end.setting.said]} ({end.setting.said})"
    if end.cost[0] == end.cost[-1]:
        axis.axhline(end.errors[known].min(), color=color, ls=style, lw=1.8, label=f"{label}, at its best")
    else:
        axis.plot(per_mb * end.cost[known], end.errors[known], color=color, ls=style, lw=1.8, label=label)


def _front(axis: Any, result: Tradeoff, per_mb: float) -> None:
    points = [(result.curve_of(one), place) for one, place in result.front]
    x = [per_mb * curve.cost[place] for curve, place in points]
    y = [curve.errors[place] for curve, place in points]
    axis.step(x, y, where="post", color="black", lw=1.0, alpha=0.8)
    axis.plot(x, y, "o", color="black", ms=3.2, label="front: no point is cheaper and better")
    if result.best is not None:
        label = f"best{_under(result)}: {result.option}={result.best.setting.said}, round {result.best.round}"
        axis.plot([per_mb * result.best.mb], [result.best.loss], label=label, **STAR)


def _front_limits(axis: Any, result: Tradeoff, per_mb: float) -> None:
    """The frame holds every curve from left to right, and in height what is near the best ones."""
    shown = [one for one in (*result.swept, *result.ends) if not one.diverged]
    costs = [one.cost for one in shown if one.cost[0] < one.cost[-1]]
    errors = np.concatenate([one.errors[np.isfinite(one.errors)] for one in shown]) if shown else np.array([])
    if costs:
        low, high = min(one[0] for one in costs), max(one[-1] for one in costs)
        axis.set_xscale("log")
        axis.set_xlim(per_mb * low / 1.15, per_mb * high * 1.15)
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    if len(errors):
        top = float(np.percentile(errors, 97))
        room = 0.07 * (top - errors.min()) or 0.1 * abs(top) or 1.0
        axis.set_ylim(errors.min() - room, top + room)


def _budget(axis: Any, result: Tradeoff, per_mb: float) -> None:
    """What lies beyond the budget is shaded."""
    most = result.sweep.budget.mb
    left, right = axis.get_xlim()
    if most is None or not left < per_mb * most < right:
        return
    axis.axvline(per_mb * most, color=RED, lw=1.4)
    axis.axvspan(per_mb * most, right, color=RED, alpha=0.07, lw=0)
    place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    look = {
        "ha": "right",
        "va": "top",
        "color": RED,
        "rotation": 90,
        "bbox": {"fc": "white", "ec": "none", "alpha": 0.8, "pad": 1},
    }
    axis.annotate(f"budget: {said_mb(most)}", (per_mb * most, 0.98), (-3, 0), **place, **look)


def _under(result: Tradeoff) -> str:
    said = result.sweep.budget.said
    return f" within {said}" if said else ""


def _short(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _house(axis: Any, y: str, title: str) -> None:
    """The look of every panel: no box, a light grid behind."""
    axis.set_ylabel(y)
    axis.set_title(title, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="0.92", lw=0.8)
    axis.set_axisbelow(True)
