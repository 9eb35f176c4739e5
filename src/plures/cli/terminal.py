"""What all commands print with: one console, plain lines, warnings of methods, the progress of a study, and advice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from plures.advise import Advice
    from plures.app import Listener
    from plures.data import Federation

console = Console()


def say(text: str, style: str | None = None) -> None:
    """Print a line as it is: names of clients and columns may hold brackets and colons."""
    console.print(Text(text, style=style or ""), soft_wrap=True)


def tell_notes(federation: Federation | None, *more: str) -> None:
    """Print the warnings that the data carry, if any are at hand, and more."""
    for note in (*(federation.notes if federation else ()), *more):
        say(f"warning: {note}", style="yellow")


def listener(warned: list[str]) -> Listener:
    """A study's lines and progress bars on the terminal; what is warned of before it starts is added to a list."""
    from plures.app import Listener
    from plures.report.terminal import study_bars

    def tell(text: str, style: str) -> None:
        if text.startswith("warning: "):
            warned.append(text.removeprefix("warning: "))
        say(text, style)

    return Listener(say=tell, progress=partial(study_bars, console))


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """A list that holds, when the block is done, what methods said of their training, each thing once."""
    from plures.study.grid import record_warnings

    found: list[str] = []
    with record_warnings() as said:
        yield found
    found += dict.fromkeys(said)


def fresh_folder(name: str) -> Path:
    """A folder under runs/ that does not exist yet."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path, number = Path("runs") / f"{name}-{stamp}", 1
    while path.exists():
        path, number = Path("runs") / f"{name}-{stamp}-{number}", number + 1
    return path


EVERY = {
    "clients": "client",
    "decisions": "client",
    "path": "strength",
    "points": "point",
    "served": "client served",
    "values": "value",
}
"""What has a row in a table of this name."""


def show_advice(advice: Advice, folder: Path | None, *more: str, norm: str = "share") -> None:
    """Print the tables, the sentences, what ``more`` there is to say, and the files and pictures that a folder has, if any."""
    from plures.advise.advice_tables import advice_tables
    from plures.wrap.norms import norm_said

    for part in advice_tables(advice):
        console.print(part, style="dim" if isinstance(part, str) else "")
    other = [advice.otherwise] if advice.otherwise else []
    norms = [] if norm == "share" else [norm_said(norm)]
    for line in (*advice.sentences, *other, *advice.remarks, *more, *norms):
        say(line)
    if folder is not None:
        for name in advice.figures:
            say(f"picture: {folder / name}.png")
        words = [f"every {EVERY[name]}: {folder / name}.csv" for name in advice.tables]
        say("; ".join([*words, f"all of it: {folder / advice.SUMMARY}"]))


def own_mistake(error: BaseException) -> str:
    """An error in one line, with the innermost line of an imported file that it came through; empty if there is none."""
    from plures.registry import IMPORTED

    found = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(IMPORTED)
    ]
    return f"{in_one_line(error)} ({found[-1]})" if found else ""


def in_one_line(error: BaseException) -> str:
    """The kind of an error, and the first line of what it says.

    >>> in_one_line(KeyError("x"))
    "KeyError: 'x'"
    """
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
