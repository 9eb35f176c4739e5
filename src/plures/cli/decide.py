"""``plures decide``: for every client whether it stays global, clusters, personalizes or stays alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plures.cli.study_options import study_of, takes_study
from plures.cli.terminal import collect_warnings, fresh_folder, listener, say, show_advice, tell_notes


@takes_study
def decide_command(
    context: typer.Context,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on; losses are averaged over them.")] = 1,
    errors: Annotated[float, typer.Option(help="Standard errors that a gain on valid rows must exceed.")] = 1.0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results.")] = None,
) -> None:
    """Say for every client whether it stays global, clusters, personalizes or stays alone, with the evidence."""
    from plures.advise import default_options, guide
    from plures.app import claim, tell_forecasts
    from plures.wrap.norms import norm_said

    study, folder = study_of(context.params), out or fresh_folder("decide")
    prepared, known = study.prepare(), list[str]()
    if study.methods is None:
        study = study.model_copy(update={"methods": default_options(prepared.seen)})
        prepared = study.prepare(data=(prepared.seen, prepared.unseen))
    screen = listener(known)
    for name, why in prepared.left_out.items():
        say(f"left out: {name}: {why}", style="dim")
    claim(folder, {**prepared.settings, "methods": list(prepared.methods), "command": "decide", "errors": errors})
    tell_forecasts(prepared, screen)
    with collect_warnings() as notes, screen.progress() as tell:
        settings = {"unseen": prepared.unseen, "errors": errors, "progress": tell, **prepared.training}
        result = guide(prepared.methods, prepared.seen, **settings)
    show_advice(result, folder, *([] if study.norm == "share" else [norm_said(study.norm)]), beside=prepared.seen)
    tell_notes(prepared.seen, *(note for note in notes if note not in known))
