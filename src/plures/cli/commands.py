"""The commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plures._version import __version__
from plures.cli.advise import advise_command, decide_command, fuse_command, worth_command
from plures.cli.contract import contract_command
from plures.cli.data import Imports, data_app, import_files
from plures.cli.export import export_command
from plures.cli.finished_studies import diff_command, report_command, show_command
from plures.cli.registry_tables import entries_table, entry_page, method_page, methods_table
from plures.cli.reproduce import reproduce_command
from plures.cli.run_studies import print_all, print_study
from plures.cli.skeleton import write_skeleton
from plures.cli.study_options import study_of, takes_study
from plures.cli.terminal import console, fresh_folder
from plures.cli.tradeoff import tradeoff_command
from plures.errors import UnknownChoice

if TYPE_CHECKING:
    from plures.registry import Registry


app = typer.Typer(
    help="Personalized federated learning: a model for each of many clients, compared fairly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")

Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.")]


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Set up what every command shares."""
    if version:
        print(__version__)
        raise typer.Exit
    keep_compilations()


@app.command("compare")
@takes_study
def compare_command(
    context: typer.Context,
    keep_models: Annotated[
        bool | None, typer.Option(help="Keep what plures export needs; by default up to 256 MB a run.")
    ] = None,
    references: Annotated[
        bool,
        typer.Option(help="Score predictors that are not federated beside the study: trivial, linear, boosting."),
    ] = True,
    track: Annotated[
        list[str] | None, typer.Option("--track", help="'tensorboard:FOLDER' or 'mlflow[:URI]'; repeatable.")
    ] = None,
    tune: Annotated[int, typer.Option(help="Tune every method on valid rows first, with so many trials each.")] = 0,
    out: Out = None,
) -> None:
    """Compare methods on a federation: leaderboard, per-client table, run folder."""
    print_study(study_of(context.params), out or fresh_folder("compare"), context.find_root().obj or ())


OTHERS = (
    contract_command, decide_command, diff_command, export_command, advise_command, fuse_command, report_command,
    reproduce_command, show_command, tradeoff_command, worth_command,
)  # fmt: skip
for command in OTHERS:
    app.command(command.__name__.removesuffix("_command"))(command)


@app.command("run")
def run_command(study: Annotated[Path, typer.Argument(help="A study in TOML.")], out: Out = None) -> None:
    """Run a study described by a TOML file, or several: with a section \\[vary], one for each of its combinations."""
    from plures.app import VARY, make_study, read_source

    source = read_source(study)
    folder = out or fresh_folder(study.stem)
    if VARY in source.values:
        print_all(source, folder)
        return
    print_study(make_study(dict(source.values), source=source), folder, source=source)


@app.command("resume")
def resume_command(folder: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Go on with a study where it stopped; finished runs are not run again."""
    from plures.app import read_source
    from plures.app.ownership import study_in
    from plures.study.disk.layout import RESOLVED
    from plures.study.variants import is_varied

    if is_varied(folder):
        print_all(read_source(folder / RESOLVED), folder)
    else:
        print_study(study_in(folder), folder)


@app.command("methods")
def methods_command(
    name: Annotated[str | None, typer.Argument(help="A method or personalizer.")] = None, imports: Imports = None
) -> None:
    """List methods and personalizers, or show one: formula, options, traffic, limits."""
    from plures.registry import METHODS, PERSONALIZERS

    import_files(imports)
    if name is None:
        console.print(methods_table())
        return
    if name not in METHODS and name not in PERSONALIZERS:
        raise UnknownChoice("method or personalizer", name, [*METHODS, *PERSONALIZERS])
    entry = PERSONALIZERS[name] if name in PERSONALIZERS else METHODS[name]
    for block in method_page(entry):
        console.print(block)


@app.command("models")
def models_command(
    name: Annotated[str | None, typer.Argument(help="A model.")] = None, imports: Imports = None
) -> None:
    """List models, or show one with its options."""
    from plures.registry import MODELS

    import_files(imports)
    _print_entries("Models", MODELS, name)


@app.command("channels")
def channels_command(
    name: Annotated[str | None, typer.Argument(help="A channel or attack.")] = None, imports: Imports = None
) -> None:
    """List channels, what may happen to uploads on the way, or show one with its options."""
    from plures.registry import CHANNELS

    import_files(imports)
    _print_entries("Channels", CHANNELS, name)


def _print_entries(title: str, registry: Registry, name: str | None) -> None:
    for block in [entries_table(title, registry)] if name is None else entry_page(registry[name]):
        console.print(block)


@app.command("new-method")
def new_method(
    name: Annotated[str, typer.Argument(help="A new name, in snake_case.")],
    to: Annotated[
        Path | None, typer.Option(help="Folder; the current one, or the methods of a checkout of plures.")
    ] = None,
) -> None:
    """Write the skeleton of a new method: a file that already passes the contract suite."""
    path = write_skeleton(name, to)
    try_it = f"plures contract {path}\n      plures compare --import {path} -m {name} -m fedavg"
    inside = "make traffic and make quick METHOD=" + name
    console.print(f"wrote {path}\nnext: edit it, then {inside if to is None else try_it}", highlight=False)


def keep_compilations() -> None:
    """Keep compiled programs between commands, so that the second run starts at once; nothing is imported for it."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    settings = {
        "jax_compilation_cache_dir": str(home / "plures" / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    for name, value in settings.items():
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, value)
        else:
            os.environ.setdefault(name.upper(), str(value))
