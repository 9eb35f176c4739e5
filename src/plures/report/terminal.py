"""Tables and progress bars for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text, TextType

if TYPE_CHECKING:
    from plures.study import Comparison, StudyProgress

OTHER_COLUMNS, WIDE, BAR, MARK = 63, 100, 8, "▸"

WHOLE: dict[str, Any] = {"no_wrap": True}
FOLDED: dict[str, Any] = {"overflow": "fold"}
NUMBER: dict[str, Any] = {"justify": "right", "no_wrap": True}
"""Options of columns: a text that is not cut, one that goes on in the next line, a number."""


def leaderboard(result: Comparison, *, width: int = 80) -> Table:
    """The leaderboard, best method first, then what is not federated; with room to spare a small bar shows the mean."""
    from plures.study.comparison import UNSOUND
    from plures.study.recommendation import recommend

    # Numbers are never cut: if a line is too long, the method's name is.
    room = width - OTHER_COLUMNS - (BAR + 1 if width >= WIDE else 0)
    numbers = ("mean", "±", "worst\n10 %", "below\nalone", "unseen", "MB per\nclient", "steps")
    columns: dict[str, dict[str, Any]] = {
        "method": {**WHOLE, "max_width": max(room, 15)},
        **{name: {**NUMBER, "min_width": 6 if "MB" in name else 5} for name in numbers},
        "against\nthe best": {"min_width": 8},
    }
    board, advice = result.leaderboard, recommend(result).advice
    sound = board.filter(~board["against_best"].is_in(UNSOUND))["mean"].drop_nulls()
    top = max(sound, default=1.0) or 1.0
    drawable = width >= WIDE and all(value >= 0 for value in sound)
    said = partial(number, digits=result.digits)
    rows: list[tuple[Any, ...]] = [
        (
            Text(f"{MARK} {row['method']}" if row["method"] == advice else row["method"]),
            said(row["mean"]) + (f" {bar(row['mean'], top)}" if drawable else ""),
            said((row["high"] - row["low"]) / 2),
            said(row["worst_decile"]),
            percent(row["worse_than_alone"]),
            said(row["unseen"]),
            number(row["mb_per_client"], 2),
            number(row["steps_per_client"], 0),
            row["against_best"],
        )
        for row in board.iter_rows(named=True)
    ]
    rows += [(Text(name, "dim"), said(mean), *["-"] * 6, "ref.") for name, mean in result.reference_means.items()]
    return plain_table(f"Personal {result.metric} on test rows, over clients and seeds", columns, rows)


LEGEND = (
    f"{MARK} recommended, by valid rows; mean ± half of its 95 % interval (bootstrap over clients and seeds); worst 10 %: nine in ten clients do better; "
    "below alone: clients worse off than with local_only; unseen: mean over held-out clients; steps: gradient steps per client; "
    "ref.: a reference that is not federated"
)


def plain_table(
    title: TextType,
    columns: Mapping[str, Mapping[str, Any]] | Sequence[str] = (),
    rows: Iterable[Iterable[Any]] = (),
) -> Table:
    """A table in the house style, light rules and narrow gaps: columns by name, with their options, and a cell of each row."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    options = columns if isinstance(columns, Mapping) else {name: {} for name in columns}
    for name, own in options.items():
        table.add_column(name, **own)
    for row in rows:
        table.add_row(*row)
    return table


@contextmanager
def study_bars(console: Console) -> Iterator[Any]:
    """A callback that shows a study's progress: rounds per second, megabytes, score and time left."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (
        "{task.description}",
        BarColumn(24),
        MofNCompleteColumn(),
        "{task.fields[note]}",
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        whole = bars.add_task("study", total=None, note="")
        now = bars.add_task("run", total=1, note="")

        def tell(at: StudyProgress) -> None:
            run = at.run
            score = "" if run.score is None else f"{run.metric} {run.score:.3f}"
            note = f"{run.rounds_per_second:.1f} rounds/s  {run.num_bytes / 1e6:.1f} MB  {score}"
            name, done = f"{at.method} seed {at.seed}", at.index * run.rounds + run.round
            bars.update(now, description=name, total=run.rounds, completed=run.round, note=note)
            note = f"run {at.index + 1} of {at.total}"
            bars.update(whole, total=at.total * run.rounds, completed=done, note=note)

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
