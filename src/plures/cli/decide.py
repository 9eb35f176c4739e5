"""``plures decide``: for every client whether it stays global, clusters, personalizes or stays alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plures.cli.study_options import study_of, takes_study
from plures.cli.terminal import collect_warnings, fresh_folder, listener, show_advice, tell_notes


@takes_study
def decide_command(
    context: typer.Context,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on; losses are averaged over them.")] = 1,
    errors: Annotated[float, typer.Option(help="Standard errors that a gain on valid rows must exceed.")] = 1.0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results.")] = None,
) -> None:
    """Say for every client whether it stays global, clusters, personalizes or stays alone, with the evidence."""
    from plures.advise import decide_study

    study, folder, known = study_of(context.params), out or fresh_folder("decide"), list[str]()
    with collect_warnings() as notes:
        found = decide_study(study, folder, listener(known), errors=errors)
    show_advice(found, folder, norm=study.norm)
    tell_notes(found.federation, *(note for note in notes if note not in known))
