"""``plures advise``: can personalization pay here, which family of methods fits, and which study tells."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from plures.cli.data import data_part, say, takes_data, tell_notes
from plures.config import DataPart, Study, make_study
from plures.errors import BadValue
from plures.report.advice import ADVICE_LEGEND, signs_table
from plures.study.advice import Advice, advise, save_advice
from plures.study.signs_words import sentences

console = Console()


@takes_data
def advise_command(
    context: typer.Context,
    data: Annotated[
        str, typer.Option("--data", help="A data set, 'cifar10|dirichlet:alpha=0.3', or a file or folder.")
    ] = "digits",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for study.toml, the clients' table and a picture.")
    ] = None,
) -> None:
    """Say in about a minute whether personalization can pay, which family of methods fits, and which study to run."""
    if out is not None and out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder")
    part = data_part({**context.params, "name": data})
    with console.status("data") as status:
        seen, _ = part.spec.load()
        found = advise(seen, tell=status.update)
    study = study_for(found, part)
    tell_notes(seen)
    console.print(signs_table(found))
    console.print(ADVICE_LEGEND, style="dim")
    for line in [*sentences(found), *(f"note: {note}" for note in found.rows.notes)]:
        say(line)
    say(f"to run: {command_of(study, context.params)}")
    if out is not None:
        _save(found, study, out)


def study_for(found: Advice, part: DataPart) -> Study:
    """The study that tells the families apart."""
    given: dict[str, Any] = {"data": part.model_dump(), "methods": found.methods}
    if found.model is not None:
        given["model"] = found.model
    return make_study(given, where="the advice")


OPTIONS = ("target", "client", "task", "split", "time", "recording", "shares", "ignore", "category", "split_seed")


def command_of(study: Study, given: Mapping[str, Any]) -> str:
    """The command line that runs the study, with the options that the data came with."""
    words = ["plures", "compare", "--data", given["data"]]
    for name in (*OPTIONS, "hold_out", "data_dir"):
        values = given[name] if isinstance(given[name], list | tuple) else [given[name]]
        if values not in ([None], ["auto"]):
            words += [word for value in values for word in (f"--{name.replace('_', '-')}", str(value))]
    if study.model is not None:
        words += ["--model", study.model]
    return shlex.join([*words, *(word for name in study.methods or () for word in ("-m", name))])


def _save(found: Advice, study: Study, out: Path) -> None:
    from plures.report.advice import picture

    save_advice(found, out)
    (out / "study.toml").write_text(toml_of(study))
    say(f"or: plures run {shlex.quote(str(out / 'study.toml'))}")
    say(f"picture: {picture(found, out / 'advice.png')}")
    say(f"every client: {out / 'clients.csv'}")


def toml_of(study: Study) -> str:
    """The study as a file that ``plures run`` takes: what is not as by default."""
    plain = study.model_dump(mode="json", exclude_defaults=True)
    data = {"name": study.data.name, **plain.pop("data", {})}
    options = data.pop("options", {})
    lines = [f"{name} = {_value(value)}" for name, value in plain.items()]
    for head, table in (("data", data), ("data.options", options)):
        if table:
            lines += ["", f"[{head}]", *(f"{name} = {_value(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """A string, number, truth value or list of them; TOML writes them as JSON does."""
    if isinstance(value, list | tuple):
        inner = [_value(one) for one in value]
        return (
            "[" + ", ".join(inner) + "]" if len(", ".join(inner)) < 80 else "[\n  " + ",\n  ".join(inner) + ",\n]"
        )
    return json.dumps(value, ensure_ascii=False)
