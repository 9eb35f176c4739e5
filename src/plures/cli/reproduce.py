"""``plures reproduce``: the papers that stand beside the package in its repository."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from plures.cli.terminal import console, fresh_folder
from plures.errors import BadFile

ENTRY = Path("papers") / "common" / "reproduce.py"
"""What tells the folder of the papers from another of the same name."""


def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="Which one; none lists them.")] = None,
    scale: Annotated[str, typer.Option(help="small or full.")] = "small",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results.")] = None,
) -> None:
    """Repeat a published or closed-form result; exits 0 only if every bar is met."""
    from plures.study.disk.layout import SUMMARY

    papers = import_papers()
    if name is None:
        for entry in papers.REPRODUCTIONS.values():
            console.print(f"{entry.name:24} {entry.summary}", highlight=False)
        return
    folder = out or fresh_folder(name)
    rows = papers.reproduce(name, scale=scale, out=folder, tell=lambda text: console.print(text, highlight=False))
    console.print(papers.rows_table(rows))
    console.print(f"wrote {folder / SUMMARY}", highlight=False)
    if not papers.all_met(rows):
        raise typer.Exit(1)


def import_papers() -> Any:
    """The module ``papers.common.reproduce``, with all papers registered."""
    root = find_papers()
    if root is None:
        raise BadFile(
            "the papers are not part of the installed package; clone the repository of plures "
            "and run `plures reproduce` inside it"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    from papers.common import registry, reproduce

    registry.import_papers()
    return reproduce


def find_papers() -> Path | None:
    """The folder that holds papers/: the current one, one above it, or the repository of an editable install."""
    import plures

    here = Path.cwd()
    repository = Path(plures.__file__).parents[2]
    return next((folder for folder in (here, *here.parents, repository) if (folder / ENTRY).exists()), None)
