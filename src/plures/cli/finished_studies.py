"""Commands that read a study back: its page, one of its clients, and two studies side by side."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plures.cli.terminal import console, say
from plures.errors import BadValue

if TYPE_CHECKING:
    from plures.study.comparison import Comparison
    from plures.study.disk.results import SavedStudy
    from plures.study.variants import Variants


Folder = Annotated[Path, typer.Argument(help="A folder that plures compare or plures run wrote.")]


def report_command(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file; report.html in the folder by default.")
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write the report page of a study: one HTML file with everything in it."""
    from plures.app import open_study
    from plures.report.variants import write_variants
    from plures.study.variants import is_varied, open_variants

    if out is not None and out.is_dir():
        raise BadValue("out", str(out), "a file, such as report.html")
    if is_varied(folder):
        found = open_variants(folder)
        path = write_variants(found, out)
        print_variants(found, path)
    else:
        study = open_study(folder)
        path = study.report(out)
        print_recommendation(study.saved)
        say(f"page: {path}")
    if browse:
        webbrowser.open(path.resolve().as_uri())


def show_command(
    folder: Folder,
    client: Annotated[str | None, typer.Option(help="A client by uid or name; none shows the leaderboard.")] = None,
) -> None:
    """Show a study's leaderboard, or what one client gets from every method."""
    from plures.report.study_tables import CLIENT_LEGEND, client_table
    from plures.report.variants import write_variants
    from plures.study.disk.results import read_results
    from plures.study.variants import is_varied, open_variants

    if client is None and is_varied(folder):
        found = open_variants(folder)
        print_variants(found, write_variants(found))
        return
    saved = read_results(folder)
    if client is None:
        print_leaderboard(saved.result)
        print_recommendation(saved)
        return
    console.print(client_table(saved.result, client))
    console.print(CLIENT_LEGEND, style="dim")
    tell_missing(saved)


def diff_command(
    here: Annotated[Path, typer.Argument(help="The folder of a study.")],
    there: Annotated[Path, typer.Argument(help="The folder of another one.")],
) -> None:
    """Compare two studies: settings that differ, and methods paired over the clients that both have."""
    from plures.report.study_tables import difference_table, settings_table
    from plures.study.difference import differ
    from plures.study.disk.results import read_results

    one, other = read_results(here), read_results(there)
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


def print_variants(found: Variants, page: Path) -> None:
    """Print what to take in each of several studies, and where their page is."""
    from plures.report.variants import variants_table

    console.print(variants_table(found))
    for sentence in found.sentences:
        say(sentence)
    tell_missing(found)
    say(f"page: {page}")


def print_leaderboard(result: Comparison) -> None:
    """Print the table of methods, and what its columns mean."""
    from plures.report.terminal import LEGEND, leaderboard

    console.print(leaderboard(result, width=console.width))
    console.print(LEGEND, style="dim")


def print_recommendation(saved: SavedStudy) -> None:
    """Say what to take, and what could not be read."""
    from plures.study.recommendation import recommend

    for sentence in recommend(saved.result).sentences:
        say(sentence)
    tell_missing(saved)


def tell_missing(saved: SavedStudy | Variants) -> None:
    """Say what could not be read."""
    for line in saved.missing:
        say(f"note: {line}", style="yellow")
