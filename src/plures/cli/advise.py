"""``plures advise``: can personalization pay here, which family of methods fits, and which study tells."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plures.cli.data import RENAMED, TABLE, DataOption, data_part, import_words, takes_data
from plures.cli.terminal import console, say, show_advice, tell_notes
from plures.errors import BadValue

if TYPE_CHECKING:
    from plures.advise import FamilyAdvice
    from plures.app import DataPart, Study


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
    from plures.study.disk.layout import RESOLVED

    if out is not None and out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder")
    part = data_part({**context.params, "name": data})
    with console.status("data") as status:
        seen, _ = part.spec.load()
        found = advise(seen, tell=status.update)
    study = study_for(found, part, context.params["imports"] or ())
    tell_notes(seen)
    show_advice(found, out, f"to begin with: {found.first}", f"to run: {command_of(study, context.params)}")
    if out is not None:
        (out / RESOLVED).write_text(toml_of(study))
        say(f"or: plures run {shlex.quote(str(out / RESOLVED))}")


def study_for(found: FamilyAdvice, part: DataPart, imports: Sequence[str] = ()) -> Study:
    """The study that tells the families apart."""
    from plures.app import make_study

    given: dict[str, Any] = {"imports": imports, "data": part.model_dump(), "methods": found.methods}
    if found.model is not None:
        given["model"] = found.model
    return make_study(given, where="the advice")


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


def toml_of(study: Study) -> str:
    """The study as a file that ``plures run`` takes: what is not as by default."""
    from plures.app.toml import as_toml

    plain = study.model_dump(mode="json", exclude_defaults=True)
    return as_toml({**plain, "data": {"name": study.data.name, **plain.get("data", {})}})
