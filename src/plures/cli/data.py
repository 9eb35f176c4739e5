"""The commands about data: what there is, whether a file is sound, how clients differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from plures.cli.show import columns_table, data_tables, facts_table
from plures.config import DataPart, make_study
from plures.data import Federation, TableOptions, inspect_own, save
from plures.data.loading import known_set
from plures.data.measure import measured
from plures.data.stored import is_federation
from plures.errors import BadValue

data_app = typer.Typer(help="Data sets, worlds, partitioners, and your own files.", no_args_is_help=True)
console = Console()

Name = Annotated[str, typer.Argument(help="A data set, 'cifar10|dirichlet:alpha=0.3', or a file or folder.")]
Target = Annotated[str | None, typer.Option(help="Own table: the column to predict.")]
Client = Annotated[str | None, typer.Option(help="Own table: the column that says whose a row is.")]
Task = Annotated[str | None, typer.Option(help="Own data: classification or regression; else inferred.")]
Split = Annotated[str | None, typer.Option(help="Own table: a column with train, valid, test.")]
Time = Annotated[str | None, typer.Option(help="Own table: a column; a client's later rows are test.")]
Recording = Annotated[str | None, typer.Option(help="Own table: a column; whole recordings stay in one split.")]
Shares = Annotated[str | None, typer.Option(help="Own data: shares of train, valid, test, e.g. '0.6,0.2,0.2'.")]
Ignore = Annotated[list[str] | None, typer.Option(help="Own table: a column that is no input; repeatable.")]
Category = Annotated[list[str] | None, typer.Option(help="Own table: numbers that are categories; repeatable.")]
SplitSeed = Annotated[int | None, typer.Option(help="Own data: the seed of the split.")]
HoldOut = Annotated[
    str, typer.Option(help="Clients kept out of training: a number, a share, names 'a,b', 0, or auto.")
]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data sets' files (or set PLURES_DATA).")]


@data_app.command("list")
def data_list() -> None:
    """List data sets, worlds and partitioners."""
    for table in data_tables():
        console.print(table)


@data_app.command("check")
def data_check(
    path: Annotated[Path, typer.Argument(help="A table (CSV, Parquet), or a folder with a file per client.")],
    target: Target = None,
    client: Client = None,
    task: Task = None,
    split: Split = None,
    time: Time = None,
    recording: Recording = None,
    shares: Shares = None,
    ignore: Ignore = None,
    category: Category = None,
    split_seed: SplitSeed = None,
) -> None:
    """Read own data as a comparison would, and say everything that is wrong or odd about them."""
    if known_set(str(path)) is not None or is_federation(path):
        federation = DataPart(name=str(path)).spec.whole()
        console.print(f"{path}: sound; {federation.num_clients} clients", highlight=False)
        return
    options = table_options(target, client, task, split, time, recording, shares, ignore, category, split_seed)
    found = inspect_own(path, TableOptions(**options))
    console.print(columns_table(found))
    for note in found.notes:
        console.print(f"warning: {note}", style="yellow", highlight=False, soft_wrap=True)
    for error in found.errors:
        console.print(f"wrong: {error}", style="red", highlight=False, soft_wrap=True)
    if found.errors:
        raise typer.Exit(1)
    console.print(f"sound: {found.clients} clients, {found.rows} rows, {found.task} ({found.why})", highlight=False)


@data_app.command("describe")
def data_describe(
    name: Name,
    target: Target = None,
    client: Client = None,
    task: Task = None,
    split: Split = None,
    time: Time = None,
    recording: Recording = None,
    shares: Shares = None,
    ignore: Ignore = None,
    category: Category = None,
    split_seed: SplitSeed = None,
    data_dir: DataDir = None,
    picture: Annotated[Path | None, typer.Option(help="Where the picture goes (PNG).")] = None,
) -> None:
    """Say how clients differ: sizes, classes, label skew, feature shift, clients too small to split; draw it."""
    options = table_options(target, client, task, split, time, recording, shares, ignore, category, split_seed)
    federation = data_part(name, options, hold_out="auto", data_dir=data_dir).spec.whole()
    console.print(facts_table(federation, measured(federation)))
    tell_notes(federation)
    path = picture or Path("runs") / f"{federation.title.replace(' ', '-')}.png"
    if path.suffix != ".png":
        raise BadValue("picture", str(path), "a file that ends in .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    console.print(f"picture: {_drawn(federation, path)}", highlight=False)


@data_app.command("save")
def data_save(
    name: Name,
    to: Annotated[Path, typer.Argument(help="The folder to write.")],
    target: Target = None,
    client: Client = None,
    task: Task = None,
    split: Split = None,
    time: Time = None,
    recording: Recording = None,
    shares: Shares = None,
    ignore: Ignore = None,
    category: Category = None,
    split_seed: SplitSeed = None,
    hold_out: HoldOut = "auto",
    data_dir: DataDir = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a federation that is there.")] = False,
) -> None:
    """Write a federation as files (arrays and a manifest with hashes) that load at once, anywhere."""
    options = table_options(target, client, task, split, time, recording, shares, ignore, category, split_seed)
    federation = data_part(name, options, hold_out=hold_out, data_dir=data_dir).spec.whole()
    folder = save(federation, to, overwrite=overwrite)
    tell_notes(federation)
    console.print(f"wrote {folder}: {federation.num_clients} clients; use it with --data {folder}", highlight=False)


def table_options(*given: Any) -> dict[str, Any]:
    """The options of an own table that were set, by name."""
    names = ("target", "client", "task", "split", "time", "recording", "shares", "ignore", "categories", "seed")
    found = {name: value for name, value in zip(names, given, strict=True) if value not in (None, [])}
    if "shares" in found:
        found["shares"] = _numbers(found["shares"])
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def data_part(text: str, options: dict[str, Any], *, hold_out: str, data_dir: Path | None) -> DataPart:
    """The data section of a study from what the command line says."""
    if options and known_set(text) is not None:
        name = next(iter(options)).replace("_", "-")
        raise BadValue(
            f"--{name}", options[next(iter(options))], "left out: it is for own files, not for named data"
        )
    part = {
        "name": str(Path(text).absolute()) if is_path(text) else text,
        "options": options,
        "hold_out": hold_out_of(hold_out),
        "data_dir": None if data_dir is None else str(data_dir.absolute()),
    }
    return make_study({"data": part}, where="the command line").data


def is_path(text: str) -> bool:
    """Whether a text names something on the disk; a data set's name goes first."""
    return known_set(text) is None and Path(text.split("|")[0]).exists()


def hold_out_of(text: str) -> int | float | tuple[str, ...] | None:
    """A number, a share or names from text; "auto" leaves it to the data.

    >>> [hold_out_of(text) for text in ("auto", "8", "0.25", "hill,river")]
    [None, 8, 0.25, ('hill', 'river')]
    """
    if text == "auto":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise BadValue("shares", text, "three numbers such as 0.6,0.2,0.2") from error


def tell_notes(federation: Federation) -> None:
    """Print the warnings that the data carry."""
    for note in federation.notes:
        console.print(f"warning: {note}", style="yellow", highlight=False, soft_wrap=True)


def _drawn(federation: Federation, path: Path) -> Path:
    """The picture; matplotlib is loaded only here, so that other commands start fast."""
    from plures.report.federation import picture

    return picture(federation, path)
