"""Pictures of a sweep: error, rounds, bytes and gradients against the degree, and error against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib import pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize, SymLogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from plures.advise.advice import mean_interval
from plures.advise.families import ENDS
from plures.advise.tradeoff import Tradeoff, ValueCurve
from plures.report.figures import COLORS, legend_below, panels, plain
from plures.wording import counted, said_mb, unit_of

# Without the last tenth of the map, whose yellow is lost on white.
COOL_TO_WARM = ListedColormap(plt.get_cmap("viridis")(np.linspace(0, 0.9, 256)))
BLUE, AMBER, GREEN, RED = COLORS[0], COLORS[1], COLORS[2], COLORS[5]
INK, FAINT = "0.25", "0.6"
STAR: dict[str, Any] = {"marker": "*", "ms": 17, "color": AMBER, "mec": "black", "mew": 0.8, "ls": "", "zorder": 5}
DIAMOND: dict[str, Any] = {"marker": "D", "ms": 7, "color": BLUE, "mec": "black", "mew": 0.8, "ls": ""}
RING: dict[str, Any] = {"marker": "o", "ms": 12, "mfc": "none", "mec": AMBER, "mew": 1.6, "ls": ""}
PALE = {"fc": "white", "ec": "none", "alpha": 0.8, "pad": 1}
UPRIGHT: dict[str, Any] = {"va": "top", "rotation": 90, "color": RED, "bbox": PALE}
END_LOOKS = {"local_only": (GREEN, (0, (5, 2))), "fedavg": (COLORS[3], (0, (1.5, 1.5)))}
END_WORDS = {"local_only": "alone", "fedavg": ENDS["global"]}


def tradeoff_figures(result: Tradeoff) -> dict[str, Any]:
    """Both pictures, by name."""
    return {"degree": degree_figure(result), "front": front_figure(result)}


COSTS = {
    "rounds_needed": "rounds\nneeded",
    "mb_needed": "{} per\nclient",
    "gradients_needed": "gradients\nper client",
}


def degree_figure(result: Tradeoff) -> Any:
    """Above: the test loss against the option, with its interval; below: rounds, traffic and gradients that it needs.

    Gradients are left out where no value reports them.
    """
    table = result.tables["values"]
    unit, per_mb = unit_of(max((one for one in table["mb_needed"] if one is not None), default=1.0))
    table = table.with_columns(pl.col("mb_needed").cast(pl.Float64) * per_mb)
    values = table.filter(pl.col("kind") == "value").sort("number")
    auto = table.filter(pl.col("kind") == "auto")
    swept = table.filter(pl.col("kind") != "end")
    costs = [name for name in COSTS if name == "rounds_needed" or not swept[name].is_null().all()]
    shape: dict[str, Any] = {"nrows": 1 + len(costs), "height_ratios": [2.3] + [1] * len(costs)}
    shape |= {"ncols": 2, "width_ratios": [14, 1]} if auto.height else {}
    size = (7.6, 4.2 + 1.5 * len(costs))
    figure, axes = plt.subplots(
        **shape, figsize=size, layout="constrained", squeeze=False, sharex="col", sharey="row"
    )
    _errors(axes[0, 0], result, values)
    for axis, name in zip(axes[1:, 0], costs, strict=True):
        _cost(axis, result, values, name, swept[name].cast(pl.Float64).max())
        title = "What it costs, with the rounds needed" if name == costs[0] else ""
        plain(axis, x="", y=COSTS[name].format(unit), title=title)
    if auto.height:
        _auto(axes[:, 1], auto.row(0, named=True), (_compared(result), *costs))
    _degree_axis(axes[-1, 0], values["number"].to_numpy())
    axes[-1, 0].set_xlabel(f"{result.option} of {_short(result.sweep.degree.text)}")
    figure.align_ylabels(axes[:, 0])
    legend_below(figure, axes[0, 0], 2)
    return figure


def _errors(axis: Any, result: Tradeoff, values: pl.DataFrame) -> None:
    x, rounds = values["number"].to_numpy(), counted(result.sweep.rounds, "round")
    axis.fill_between(x, values["test_loss_low"], values["test_loss_high"], color=BLUE, alpha=0.16, lw=0)
    known = values["test_loss_low"].is_finite().any()
    label = f"test loss after {rounds}{', 95 % interval' if known else ''}"
    axis.plot(x, values["test_loss"], "o-", color=BLUE, lw=2, ms=5, label=label)
    valid = values["valid_loss"].cast(pl.Float64).fill_null(np.nan)
    when = f"at the last round{_under(result)}" if result.ends_early else f"after {rounds}"
    axis.plot(x, valid, "-", color=FAINT, lw=1.2, label=f"valid loss {when}")
    for end in _sane_ends(result):
        color, style = END_LOOKS[end.setting.text]
        label = f"{END_WORDS[end.setting.text]} ({end.setting.text})"
        axis.axhline(mean_interval(end.test_losses).mean, color=color, ls=style, lw=1.8, label=label)
    _star(axis, result, values, _compared(result))
    plain(axis, x="", y="loss of the personal models", title="What the degree of collaboration buys")
    _steady_limits(axis, values, result)


def _compared(result: Tradeoff) -> str:
    """Whose line has the marks: values are chosen by valid rows, and under a budget test rows belong to a later round."""
    return "valid_loss" if result.ends_early else "test_loss"


def _sane_ends(result: Tradeoff) -> list[ValueCurve]:
    return [one for one in result.ends if not result.diverged(one)]


def _cost(axis: Any, result: Tradeoff, values: pl.DataFrame, name: str, most: Any) -> None:
    """One cost against the option, from zero on; values of which it is unknown have no point."""
    axis.plot(values["number"], values[name].cast(pl.Float64).fill_null(np.nan), "s-", color=INK, lw=1.6, ms=4.5)
    _star(axis, result, values, name, label=False)
    axis.set_ylim(0, 1.25 * (most or 1.0))
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=name == "rounds_needed"))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _star(axis: Any, result: Tradeoff, values: pl.DataFrame, column: str, *, label: bool = True) -> None:
    """The best value, marked; values within noise of it have a ring."""
    near = values.filter(pl.col("value").is_in([one.text for one in result.near]))
    ring = {"label": "within noise of the best"} if label and near.height else {}
    axis.plot(near["number"], near[column], **RING, **ring)
    best = values.filter(pl.col("value") == (result.best.setting.text if result.best else ""))
    if best.height:
        star = {"label": "best on valid rows"} if label else {}
        axis.plot(best["number"], best[column], **STAR, **star)


def _auto(axes: Any, row: dict[str, Any], columns: Sequence[str]) -> None:
    """A column of its own for the value that the method chose for itself: it has no place on the axis."""
    marked = row["mark"].split(", ")
    look = STAR if "best" in marked else DIAMOND
    if columns[0] == "test_loss" and np.isfinite(row["test_loss_low"]):
        axes[0].plot([0, 0], [row["test_loss_low"], row["test_loss_high"]], color=BLUE, lw=5, alpha=0.3)
    for axis, height in zip(axes, (row[name] for name in columns), strict=True):
        if height is not None and np.isfinite(height):
            axis.plot([0], [height], **look)
            if "within noise" in marked:
                axis.plot([0], [height], **RING)
    for axis in axes:
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
        axis.set_facecolor("0.97")
    axes[-1].set_xticks([0], ["auto"])


def _steady_limits(axis: Any, values: pl.DataFrame, result: Tradeoff) -> None:
    """Limits that show what matters: a value that blew up is beyond the frame, one that diverged is named at its top."""
    levels = [float(mean_interval(one.test_losses).mean) for one in _sane_ends(result)]
    losses = values.select("test_loss_low", "test_loss_high", "valid_loss").to_numpy().ravel()
    known = np.array([one for one in (*losses, *levels) if one is not None and np.isfinite(one)], float)
    if len(known):
        usual = max(abs(one) for one in (float(np.median(known)), *levels) if np.isfinite(one))
        top = min(float(known.max()), 2.5 * usual)
        room = 0.06 * (top - known.min()) or 0.1 * abs(top) or 1.0
        axis.set_ylim(known.min() - room, top + room)
    for number in values.filter(pl.col("mark").str.contains("diverged"))["number"]:
        axis.annotate("diverged", (number, 0.97), xycoords=("data", "axes fraction"), ha="center", **UPRIGHT)


def _degree_axis(axis: Any, numbers: np.ndarray) -> None:
    """The values themselves as ticks, on a log scale; 0 stands at the left, before a short linear stretch."""
    if not len(numbers):
        return
    low, high = float(numbers.min()), float(numbers.max())
    if 0 < low < high:
        room = (high / low) ** 0.05
        axis.set(xscale="log", xlim=(low / room, high * room))
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
    figure, (axis,) = panels(1, 8.2, 5.2)
    unit, per_mb = unit_of(max(float(one.cost[-1]) for one in result.swept))
    numbers = [one.setting.value for one in result.swept if one.setting.value is not None]
    colors = ScalarMappable(_norm(np.array(numbers)), COOL_TO_WARM)
    for curve in result.swept:
        if not result.diverged(curve):
            _curve(axis, curve, colors, per_mb)
    for end in _sane_ends(result):
        _end(axis, end, per_mb)
    _front(axis, result, per_mb)
    _front_limits(axis, result, per_mb)
    _budget(axis, result, per_mb)
    title = f"What traffic buys: {_short(result.sweep.degree.text)}"
    x = f"{unit} per client, sent and received so far"
    plain(axis, x=x, y="valid loss of the personal models", title=title)
    bar = figure.colorbar(colors, ax=axis, pad=0.02, aspect=28, label=result.option)
    bar.outline.set_visible(False)
    if len(numbers) <= 12:
        bar.set_ticks(numbers, labels=[f"{one:g}" for one in numbers])
        bar.ax.minorticks_off()
    legend_below(figure, axis, 2)
    return figure


def _norm(numbers: np.ndarray) -> Normalize:
    """Colors by the order of magnitude of the value."""
    positive = numbers[numbers > 0]
    if not len(positive) or (numbers < 0).any() or len(numbers) < 2:
        return Normalize(float(numbers.min()), float(numbers.max())) if len(numbers) else Normalize()
    if (numbers == 0).any():
        return SymLogNorm(float(positive.min()), linscale=0.4, vmin=0.0, vmax=float(positive.max()))
    return LogNorm(float(positive.min()), float(positive.max()))


def _curve(axis: Any, curve: ValueCurve, colors: Any, per_mb: float) -> None:
    known = np.isfinite(curve.errors)
    x, y = per_mb * curve.cost[known], curve.errors[known]
    if curve.setting.value is None:
        axis.plot(x, y, "-.", color="black", lw=1.6, label="auto")
    else:
        axis.plot(x, y, "-", color=colors.to_rgba(curve.setting.value), lw=1.7, alpha=0.9)


def _end(axis: Any, end: ValueCurve, per_mb: float) -> None:
    """What costs the same after any number of rounds is a level, the rest a curve."""
    color, style = END_LOOKS[end.setting.text]
    known, label = np.isfinite(end.errors), f"{END_WORDS[end.setting.text]} ({end.setting.text})"
    if end.cost[0] == end.cost[-1]:
        axis.axhline(end.errors[-1], color=color, ls=style, lw=1.8, label=f"{label}, at its end")
    else:
        axis.plot(per_mb * end.cost[known], end.errors[known], color=color, ls=style, lw=1.8, label=label)


def _front(axis: Any, result: Tradeoff, per_mb: float) -> None:
    points = [(result.curve_of(one), at) for one, at in result.front]
    x = [per_mb * curve.cost[at] for curve, at in points]
    y = [curve.errors[at] for curve, at in points]
    axis.step(x, y, where="post", color="black", lw=1.0, alpha=0.8)
    axis.plot(x, y, "o", color="black", ms=3.2, label="front: no point is cheaper and better")
    if result.best is not None:
        label = f"best{_under(result)}: {result.option}={result.best.setting.text}, round {result.best.round}"
        axis.plot([per_mb * result.best.mb], [result.best.loss], label=label, **STAR)


def _front_limits(axis: Any, result: Tradeoff, per_mb: float) -> None:
    """The frame holds every curve from left to right, and in height what is near the best ones."""
    shown = [one for one in result.curves if not result.diverged(one)]
    costs = [one.cost for one in shown if one.cost[0] < one.cost[-1]]
    errors = np.concatenate([one.errors[np.isfinite(one.errors)] for one in shown]) if shown else np.array([])
    if costs:
        low, high = min(one[0] for one in costs), max(one[-1] for one in costs)
        axis.set(xscale="log", xlim=(per_mb * low / 1.15, per_mb * high * 1.15))
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
    where = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "right"}
    axis.annotate(f"budget: {said_mb(most)}", (per_mb * most, 0.98), (-3, 0), **where, **UPRIGHT)


def _under(result: Tradeoff) -> str:
    said = result.sweep.budget.text
    return f" within {said}" if said else ""


def _short(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
