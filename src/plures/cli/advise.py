"""``plures advise``: can personalization pay here, which family of methods fits, and which study tells."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plures.cli.data import RENAMED, TABLE, DataOption, data_part, import_words, takes_data
from plures.cli.terminal import console, say, show_advice, tell_notes
from plures.errors import BadValue

if TYPE_CHECKING:
    from plures.app import Study


@takes_data
def advise_command(
    context: typer.Context,
    data: DataOption = "digits",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for study.toml, the clients' table and a picture.")
    ] = None,
) -> None:
    """Say in about a minute whether personalization can pay, which family of methods fits, and which study to run."""
    from plures.advise import advise
    from plures.app import Study

    if out is not None and out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder")
    part = data_part({**context.params, "name": data})
    study = Study(imports=context.params["imports"] or (), data=part)
    with console.status("data") as status:
        seen, _ = study.federations()
        found = advise(seen, study=study, tell=status.update)
    tell_notes(seen)
    if out is not None:
        found.save(out)
    assert found.study is not None
    show_advice(found, out, f"to begin with: {found.first}", f"to run: {command_of(found.study, context.params)}")
    if out is not None:
        say(f"or: plures run {shlex.quote(str(out / found.STUDY))}")


def command_of(study: Study, given: Mapping[str, Any]) -> str:
    """The command line that runs the study, with the options that the data came with."""
    words = ["plures", "compare", *import_words(given), "--data", given["data"]]
    for name in (*TABLE, *RENAMED, "hold_out", "data_dir"):
        values = given[name] if isinstance(given[name], list | tuple) else [given[name]]
        if values not in ([None], ["auto"]):
            words += [word for value in values for word in (f"--{name.replace('_', '-')}", str(value))]
    if study.model is not None:
        words += ["--model", study.model]
    return shlex.join([*words, *(word for name in study.methods or () for word in ("-m", name))])
