"""Commands that read a study back: its page, one of its clients, and two studies side by side."""

from __future__ import annotations

import shlex
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from plures.cli.data import say
from plures.errors import BadValue
from plures.report.page import NAME, write_page
from plures.report.results import CLIENT_LEGEND, client_table, difference_table, settings_table
from plures.report.terminal import LEGEND, leaderboard
from plures.report.variants import variants_table, write_variants_page
from plures.study.differing import differ
from plures.study.headline import answer
from plures.study.saved import Saved, read_saved
from plures.study.variants import is_varied, read_variants

console = Console()
Folder = Annotated[Path, typer.Argument(help="A folder that plures compare or plures run wrote.")]


def report_command(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file; report.html in the folder by default.")
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write the report page of a study: one HTML file with everything in it."""
    if out is not None and out.is_dir():
        raise BadValue("out", str(out), "a file, such as report.html")
    if is_varied(folder):
        path = tell_variants(folder, out)
    else:
        saved = read_saved(folder)
        path = write_report(saved, out)
        tell_answer(saved)
        say(f"page: {path}")
    if browse:
        webbrowser.open(path.resolve().as_uri())


def show_command(
    folder: Folder,
    client: Annotated[str | None, typer.Option(help="A client by uid or name; none shows the leaderboard.")] = None,
) -> None:
    """Show a study's leaderboard, or what one client gets from every method."""
    if client is None and is_varied(folder):
        tell_variants(folder)
        return
    saved = read_saved(folder)
    if client is None:
        console.print(leaderboard(saved.result, width=console.width))
        console.print(LEGEND, style="dim")
        tell_answer(saved)
        return
    console.print(client_table(saved.result, client))
    console.print(CLIENT_LEGEND, style="dim")
    tell_missing(saved)


def diff_command(
    here: Annotated[Path, typer.Argument(help="The folder of a study.")],
    there: Annotated[Path, typer.Argument(help="The folder of another one.")],
) -> None:
    """Compare two studies: settings that differ, and methods paired over the clients that both have."""
    one, other = read_saved(here), read_saved(there)
    found = differ(one, other)
    if found.settings:
        console.print(settings_table(found))
    console.print(difference_table(found))
    for folder, only in ((here, found.only_here), (there, found.only_there)):
        if only:
            say(f"only in {folder}: {', '.join(only)}")
    if found.same:
        say("every client scores the same in both")
    for saved in (one, other):
        tell_missing(saved)


def tell_variants(folder: Path, out: Path | None = None) -> Path:
    """Print what to take in each of several studies, and write their table and their page."""
    found = read_variants(folder)
    for one in found.studies.values():
        if not (one.folder / NAME).exists():
            write_report(one)
    found.table.write_csv(folder / "variants.csv")
    found.table.write_parquet(folder / "variants.parquet")
    console.print(variants_table(found))
    for sentence in found.sentences:
        say(sentence)
    for line in found.missing:
        say(f"note: {line}", style="yellow")
    path = write_variants_page(found, out)
    say(f"page: {path}")
    return path


def keep_command(out: Path, given: object) -> None:
    """Write how the study was asked for beside its results, unless it says so already; the folder is left out."""
    file = out / "command.txt"
    if file.exists() or not isinstance(given, tuple):
        return
    kept, words = list[str](), iter(given)
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith("--out="):
            kept.append(word)
    file.write_text(f"plures {shlex.join(kept)}\n")


def write_report(saved: Saved, out: Path | None = None) -> Path:
    """The page of a study."""
    return write_page(saved, out)


def tell_answer(saved: Saved) -> None:
    """Say what to take, and what could not be read."""
    for sentence in answer(saved.result).sentences:
        if sentence:
            say(sentence)
    tell_missing(saved)


def tell_missing(saved: Saved) -> None:
    """Say what could not be read."""
    for line in saved.missing:
        say(f"note: {line}", style="yellow")
