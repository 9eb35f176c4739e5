"""The commands about data: what there is, whether a file is sound, how clients differ."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plures.cli.registry_tables import columns_table, data_pages, data_tables, facts_table
from plures.cli.terminal import console, say, tell_notes
from plures.errors import BadValue

if TYPE_CHECKING:
    from plures.app import DataPart


data_app = typer.Typer(help="Data sets, worlds, partitioners, and your own files.", no_args_is_help=True)

WHICH = "A data set, 'cifar10|dirichlet:alpha=0.3', or a file or folder."
Name = Annotated[str, typer.Argument(help=WHICH)]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", help="A Python file with methods, models or data of your own; repeatable."),
]
DataOption = Annotated[str, typer.Option("--data", help=WHICH)]


def data_options(
    target: Annotated[str | None, typer.Option(help="Own table: the column to predict.")] = None,
    client: Annotated[str | None, typer.Option(help="Own table: the column that says whose a row is.")] = None,
    task: Annotated[str | None, typer.Option(help="Own data: classification or regression; else inferred.")] = None,
    split: Annotated[str | None, typer.Option(help="Own table: a column with train, valid, test.")] = None,
    time: Annotated[str | None, typer.Option(help="Own table: a column; a client's later rows are test.")] = None,
    recording: Annotated[
        str | None, typer.Option(help="Own table: a column; whole recordings stay in one split.")
    ] = None,
    shares: Annotated[
        str | None, typer.Option(help="Own data: shares of train, valid, test, e.g. '0.6,0.2,0.2'.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Own table: a column that is no input; repeatable.")
    ] = None,
    category: Annotated[
        list[str] | None, typer.Option(help="Own table: numbers that are categories; repeatable.")
    ] = None,
    tails: Annotated[
        str | None, typer.Option(help="Own data: 'keep' leaves inputs beyond 5 deviations; else tamed.")
    ] = None,
    split_seed: Annotated[int | None, typer.Option(help="Own data: the seed of the split.")] = None,
    hold_out: Annotated[
        str, typer.Option(help="Clients kept out of training: a number, a share, names 'a,b', 0, or auto.")
    ] = "auto",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the data sets' files (or set PLURES_DATA).")
    ] = None,
    imports: Imports = None,
) -> None:
    """What every command about data takes; ``data_part`` reads it from the command's context."""


def import_files(paths: Sequence[str] | None) -> None:
    """Import the files of ``--import``, before what they register is asked for."""
    from plures.registry import import_file

    for path in paths or ():
        import_file(Path(path))


def import_words(given: Mapping[str, Any]) -> list[str]:
    """The words of ``--import`` that a command was called with, for one that is printed."""
    return [word for path in given["imports"] or () for word in ("--import", path)]


def add_options(options: Callable[..., None], command: Callable[..., None]) -> Callable[..., None]:
    """The command with further options among its own; it finds them in its context."""
    own = inspect.signature(command, eval_str=True)
    added = inspect.signature(options, eval_str=True).parameters

    @wraps(command)
    def run(**given: Any) -> None:
        command(**{name: value for name, value in given.items() if name in own.parameters})

    every = {**own.parameters, **{name: one for name, one in added.items() if name not in own.parameters}}
    run.__signature__ = own.replace(parameters=list(every.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: one.annotation for name, one in every.items()}
    return run


def takes_data(command: Callable[..., None]) -> Callable[..., None]:
    """The command with ``data_options`` among its own."""
    return add_options(data_options, command)


@data_app.command("list")
def data_list(
    name: Annotated[str | None, typer.Argument(help="A data set, world or partitioner.")] = None,
    imports: Imports = None,
) -> None:
    """List data sets, worlds and partitioners, or show one with its options."""
    import_files(imports)
    for block in data_tables() if name is None else data_pages(name):
        console.print(block)


@data_app.command("check")
@takes_data
def data_check(context: typer.Context, name: Name) -> None:
    """Read data as a comparison would, and say everything that is wrong or odd about them."""
    part = data_part(context.params)
    if is_own(part.name):
        tell_columns(part)
    federation = part.spec.whole()
    if not federation.count[:, 2].any():
        say("wrong: no client has test rows, so methods cannot be compared", style="red")
        raise typer.Exit(1)
    if not is_own(part.name):
        tell_notes(federation)
    rows = int(federation.count.sum())
    held_out = 0 if federation.held_out is None else int(federation.held_out.sum())
    say(f"sound: {federation.num_clients} clients ({held_out} held out), {rows:,} rows, {federation.task}")


def tell_columns(part: DataPart) -> None:
    """What every column of an own table is taken for, and all that is wrong; ends the command if anything is."""
    from plures.data import TableOptions, inspect_own
    from plures.data.loading import split_text

    spec = part.spec
    options = TableOptions(**spec.options, hold_out=spec.wanted, hold_out_seed=spec.seed)
    found = inspect_own(split_text(spec.text)[0], options)
    console.print(columns_table(found))
    for note in found.notes:
        say(f"warning: {note}", style="yellow")
    for error in found.errors:
        say(f"wrong: {error}", style="red")
    if found.errors:
        raise typer.Exit(1)
    say(f"task: {found.task} ({found.why}); --task says otherwise")


@data_app.command("describe")
@takes_data
def data_describe(
    context: typer.Context,
    name: Name,
    picture: Annotated[Path | None, typer.Option(help="Where the picture goes (PNG); else under runs/.")] = None,
) -> None:
    """Say how clients differ: sizes, classes, label skew, feature shift, clients too small to split; draw it."""
    from plures.data.measure import measure_differences
    from plures.report.federation import (
        picture as draw_federation,
    )  # matplotlib: only here, so that others start fast

    part = data_part(context.params)
    path = picture or Path("runs") / f"{file_name_of(name)}.png"
    if path.suffix != ".png" or path.parent.is_file():
        raise BadValue("picture", str(path), "a file that ends in .png, in a folder")
    federation = part.spec.whole()
    console.print(facts_table(federation, measure_differences(federation)))
    tell_notes(federation)
    path.parent.mkdir(parents=True, exist_ok=True)
    say(f"picture: {draw_federation(federation, path)}")


@data_app.command("save")
@takes_data
def data_save(
    context: typer.Context,
    name: Name,
    to: Annotated[Path, typer.Argument(help="The folder to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a federation that is there.")] = False,
) -> None:
    """Write a federation as files (arrays and a manifest with hashes) that load at once, anywhere."""
    from plures.data import save

    federation = data_part(context.params).spec.whole()
    folder = save(federation, to, overwrite=overwrite)
    tell_notes(federation)
    say(f"wrote {folder}: {federation.num_clients} clients; use it with --data {folder}")


TABLE = ("target", "client", "task", "split", "time", "recording", "shares", "ignore", "tails")
UNSET: tuple[Any, ...] = (None, [], ())
RENAMED = {"category": "categories", "split_seed": "seed"}


def data_part(given: Mapping[str, Any]) -> DataPart:
    """The data section of a study from the options of a command."""
    from plures.app import make_study

    import_files(given["imports"])
    text, options = given["name"], table_options(given)
    if options and not is_own(text):
        said = next(word for word in (*TABLE, *RENAMED) if given[word] not in UNSET)
        raise BadValue(f"--{said.replace('_', '-')}", given[said], "left out: it is for own files")
    folder = given["data_dir"]
    part = {
        "name": str(Path(text).absolute()) if is_path(text) else text,
        "options": options,
        "hold_out": hold_out_of(given["hold_out"]),
        "data_dir": None if folder is None else str(folder.absolute()),
    }
    return make_study({"data": part}, where="the command line").data


def table_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an own table that were set, by the names a table has for them."""
    names = {**{name: name for name in TABLE}, **RENAMED}
    found = {own: given[name] for name, own in names.items() if given[name] not in UNSET}
    if "shares" in found:
        found["shares"] = numbers_of("shares", found["shares"], "three numbers such as 0.6,0.2,0.2")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def is_own(text: str) -> bool:
    """Whether a text stands for a table or a folder of the user's, not for a named set or a saved federation."""
    from plures.data.disk import is_federation
    from plures.data.loading import registered_data

    return registered_data(text) is None and not is_federation(text)


def file_name_of(text: str) -> str:
    """A text as part of a file's name: 'digits|iid' and 'digits|zipf' get different ones.

    >>> file_name_of("digits:num_clients=9|iid"), file_name_of("data/visits.csv")
    ('digits-num_clients-9-iid', 'visits')
    """
    short = Path(text).stem if is_own(text) and "|" not in text else text
    return re.sub(r"[^\w.]+", "-", short).strip("-.") or "data"


def is_path(text: str) -> bool:
    """Whether a text names something on the disk; a data set's name goes first."""
    from plures.data.loading import registered_data

    return registered_data(text) is None and (Path(text).exists() or Path(text.split("|")[0]).exists())


def hold_out_of(text: str) -> int | float | tuple[str, ...] | None:
    """A number, a share or names from text; "auto" leaves it to the data.

    >>> [hold_out_of(text) for text in ("auto", "8", "0.25", "hill,river")]
    [None, 8, 0.25, ('hill', 'river')]
    """
    if text == "auto":
        return None
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers_of(name: str, text: str, wanted: str) -> tuple[float, ...]:
    """Numbers from the command line, of the option of that name.

    >>> numbers_of("values", "0.01, 0.1,1", "numbers")
    (0.01, 0.1, 1.0)
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadValue(name, text, wanted) from None
