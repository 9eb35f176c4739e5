"""Tables and progress bars for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text, TextType

from plures.study import Comparison, Guidance, StudyProgress
from plures.study.fusing import WAYS, Fusion
from plures.study.reproduce import Row
from plures.study.worth import WAYS as WORTH_WAYS
from plures.study.worth import Worth

OTHER_COLUMNS, WIDE, BAR = 62, 100, 8


def leaderboard(result: Comparison, *, width: int = 80) -> Table:
    """The leaderboard, best method first; with room to spare a small bar shows the mean."""
    table = plain_table(f"Personal {result.metric} on test rows, over clients and seeds")
    # Numbers are never cut: if a line is too long, the method's name is.
    room = width - OTHER_COLUMNS - (BAR + 1 if width >= WIDE else 0)
    table.add_column("method", no_wrap=True, max_width=max(room, 15))
    for name in ("mean", "±", "worst\n10 %", "below\nalone", "unseen", "MB per\nclient", "s"):
        table.add_column(name, justify="right", no_wrap=True, min_width=6 if "MB" in name else 5)
    table.add_column("against\nthe best", min_width=8)
    board = result.leaderboard
    sound = board.filter(board["against_best"] != "diverged")["mean"].drop_nulls()
    top = max(sound, default=1.0) or 1.0
    drawable = width >= WIDE and all(value >= 0 for value in sound)
    said = partial(number, digits=result.digits)
    for row in board.iter_rows(named=True):
        beside = f" {bar(row['mean'], top)}" if drawable else ""
        table.add_row(
            Text(row["method"]),
            f"{said(row['mean'])}{beside}",
            said((row["high"] - row["low"]) / 2),
            said(row["worst_decile"]),
            percent(row["worse_than_alone"]),
            said(row["unseen"]),
            number(row["mb_per_client"], 2),
            number(row["seconds"], 1),
            row["against_best"],
        )
    return table


LEGEND = (
    "mean ± half of its 95 % interval (bootstrap over clients and seeds); worst 10 %: nine in ten clients do better; "
    "below alone: clients worse off than with local_only; unseen: mean over held-out clients"
)


def decisions_table(result: Guidance) -> Table:
    """How many clients decide for each option, and what that gains them over the global model."""
    seen = result.honest["seen"].sum()
    unseen = result.honest.height - seen
    honest = "" if result.threat is None else "honest "
    table = plain_table(
        f"Decisions of {seen} {honest}clients in training" + (f" and {unseen} unseen ones" if unseen else "")
    )
    table.add_column("decision", no_wrap=True)
    table.add_column("method", overflow="fold")
    for name in ("clients", "unseen", "gain on\nvalid rows", "gain on\ntest rows", "hurt"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.by_method.iter_rows(named=True):
        table.add_row(
            row["family"],
            Text(row["method"]),
            str(row["clients"]),
            str(row["unseen"]) if unseen else "-",
            number(row["valid_gain"]),
            number(row["test_gain"]),
            percent(row["hurt"]),
        )
    return table


DECISIONS_LEGEND = (
    "gain: how much lower the loss is than with the global model, mean over these clients; clients decide by valid rows "
    "alone; hurt: clients whose test loss rises"
)


def plain_table(title: TextType) -> Table:
    """An empty table in the house style: light rules, narrow gaps."""
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def fusion_table(fusion: Fusion) -> Table:
    """What fusing gives on test rows beside one model for all and a model each: mean, and clients better off."""
    higher = fusion.metric == "accuracy"
    table = plain_table(f"Test {fusion.metric} of {len(fusion.names)} clients")
    table.add_column("model")
    for name in ("mean", "worst\n10 %", "better\nfused"):
        table.add_column(name, justify="right")
    fused = fusion.scores["fused"].to_numpy()
    for way in WAYS:
        own = fusion.scores[way].to_numpy()
        gain = (fused - own if higher else own - fused) > 1e-9
        share = "" if way == "fused" else percent(float(gain.mean()))
        table.add_row(way, number(own.mean()), number(np.quantile(own, 0.1 if higher else 0.9)), share)
    return table


def worth_table(worth: Worth) -> Table:
    """Every way to train: its strength, predicted and measured losses, and how it stands against the better end."""
    table = plain_table(f"Alone, together, or in between: {len(worth.rows.names)} clients")
    table.add_column("model", no_wrap=True, min_width=10)
    heads = ("lam", "predicted\nexcess", "test\nloss", f"test\n{worth.metric}", f"against\n{worth.rival}")
    for name in (*heads, "95 %\ninterval"):
        table.add_column(name, justify="right", no_wrap=True)
    digits = 3 if worth.test[worth.rival].mean() < 10 else 2
    for way in WORTH_WAYS:
        gap = worth.against(way)
        table.add_row(
            way,
            _lams(worth.lams[way]),
            f"{worth.predicted_means[way]:.3g}" if way in worth.predicted_means else "",
            number(worth.test[way].mean(), digits),
            number(worth.scores[way].mean()),
            f"{gap.mean:+.{digits}f}" if way != worth.rival else "",
            f"{gap.low:+.{digits}f} {gap.high:+.{digits}f}" if way != worth.rival else "",
        )
    return table


WORTH_LEGEND = (
    "predicted excess: loss above that of the best model a client could have; against: difference of test losses, mean over "
    "clients, to the better of alone and global by valid rows, with its bootstrap interval over clients; auto comes from "
    "training rows, valid from valid rows; each: a lam for every client"
)


def worth_clients_table(worth: Worth, most: int = 4) -> Table:
    """Who gains most and least from lam, in test loss and as predicted."""
    table = plain_table(f"Who gains with lam = {worth.degree.lam:.3g}, in loss (above 0: better off)")
    table.add_column("client", overflow="fold")
    for name in (
        "rows",
        "over alone\ntest",
        "over alone\npredicted",
        "over global\ntest",
        "over global\npredicted",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    order = worth.table.sort("gain_over_alone", descending=True)
    rows = list(order.iter_rows(named=True))
    shown = rows if len(rows) <= 2 * most + 1 else [*rows[:most], None, *rows[-most:]]
    for row in shown:
        if row is None:
            table.add_row(f"... {len(rows) - 2 * most} more")
            continue
        gains = [row[f"{kind}gain_over_{other}"] for other in ("alone", "global") for kind in ("", "predicted_")]
        table.add_row(Text(row["client"]), str(row["rows"]), *(f"{gain:+.3g}" for gain in gains))
    return table


def _lams(lams: Any) -> str:
    """One strength, or the range of several; a wide range needs few digits."""
    low, high = float(lams.min()), float(lams.max())
    if low == high:
        return f"{low:.3g}"
    return f"{low:.1g}..{high:.1g}" if high > 100 * low else f"{low:.2g}..{high:.2g}"


def rows_table(rows: Sequence[Row]) -> Table:
    """A reproduction's rows."""
    table = plain_table("Ours beside what was published")
    for name in ("id", "what", "ours", "published", "bar", "met"):
        table.add_column(name)
    for row in rows:
        verdict = "" if row.met is None else "yes" if row.met else "NO"
        table.add_row(row.id, row.what, number(row.ours, 4), number(row.published, 4), row.bar or "", verdict)
    return table


@contextmanager
def study_bars(console: Console) -> Iterator[Any]:
    """A callback that shows a study's progress: rounds per second, megabytes, score and time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        whole = bars.add_task("study", total=None, note="")
        now = bars.add_task("run", total=1, note="")

        def tell(at: StudyProgress) -> None:
            run = at.run
            score = "" if run.score is None else f"{run.metric} {run.score:.3f}"
            note = f"{run.rounds_per_second:.1f} rounds/s  {run.num_bytes / 1e6:.1f} MB  {score}"
            bars.update(
                now,
                description=f"{at.method} seed {at.seed}",
                total=run.rounds,
                completed=run.round,
                note=note,
            )
            done = at.index * run.rounds + run.round
            bars.update(
                whole, total=at.total * run.rounds, completed=done, note=f"run {at.index + 1} of {at.total}"
            )

        yield tell


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many digits; a dash where there is none."""
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share in percent; a dash where there is none."""
    return "-" if value is None or value != value else f"{100 * value:.0f} %"


def bar(value: float | None, top: float, width: int = BAR) -> str:
    """A small bar for a value between 0 and ``top``."""
    full = 0 if value is None or value != value else round(width * min(max(value, 0.0) / top, 1.0))
    return "█" * full + "░" * (width - full)
