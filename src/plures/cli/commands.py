"""The commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

from plures import reproduce  # noqa: F401  (registers reproductions)
from plures._version import __version__
from plures.cli.advise import advise_command
from plures.cli.data import data_app
from plures.cli.export import export_command
from plures.cli.fuse import fuse_command
from plures.cli.playing import fresh_folder, play_decisions, play_study, read_json
from plures.cli.results import diff_command, report_command, show_command
from plures.cli.show import entries_table, method_page, methods_table
from plures.cli.skeleton import write_skeleton
from plures.cli.studies import study_of, takes_study
from plures.cli.tradeoff import tradeoff_command
from plures.cli.variants import FILE, play_variants
from plures.cli.worth import worth_command
from plures.config import VARY, make_study, read_source
from plures.errors import BadFile, UnknownChoice
from plures.registry import CHANNELS, METHODS, MODELS, PERSONALIZERS, REPRODUCTIONS
from plures.report.terminal import rows_table
from plures.study.reproduce import all_met
from plures.study.reproduce import reproduce as play
from plures.study.variants import is_varied

app = typer.Typer(
    help="Personalized federated learning: a model for each of many clients, compared fairly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
console = Console()

Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.")]


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
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
    track: Annotated[
        list[str] | None, typer.Option("--track", help="'tensorboard:FOLDER' or 'mlflow[:URI]'; repeatable.")
    ] = None,
    together: Annotated[bool | None, typer.Option(help="Play seeds, and trials of tuning, side by side.")] = None,
    tune: Annotated[int, typer.Option(help="Tune every method on valid rows first, with so many trials each.")] = 0,
    out: Out = None,
) -> None:
    """Compare methods on a federation: leaderboard, per-client table, run folder."""
    play_study(study_of(context.params), out or fresh_folder("compare"), context.find_root().obj)


@app.command("decide")
@takes_study
def decide_command(
    context: typer.Context,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on; losses are averaged over them.")] = 1,
    errors: Annotated[float, typer.Option(help="Standard errors that a gain on valid rows must exceed.")] = 1.0,
    out: Out = None,
) -> None:
    """Say for every client whether it stays global, clusters, personalizes or stays alone, with the evidence."""
    play_decisions(study_of(context.params), out or fresh_folder("decide"), errors=errors)


app.command("diff")(diff_command)
app.command("export")(export_command)
app.command("advise")(advise_command)
app.command("fuse")(fuse_command)
app.command("report")(report_command)
app.command("show")(show_command)
app.command("tradeoff")(tradeoff_command)
app.command("worth")(worth_command)


@app.command("run")
def run_command(study: Annotated[Path, typer.Argument(help="A study in TOML.")], out: Out = None) -> None:
    """Run a study described by a TOML file, or several: with a section [vary], one for each of its combinations."""
    source = read_source(study)
    folder = out or fresh_folder(study.stem)
    if VARY in source.values:
        play_variants(source, folder)
        return
    play_study(make_study(dict(source.values), source=source), folder, source=source)


@app.command("resume")
def resume_command(folder: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Go on with a study where it stopped; finished runs are not run again."""
    if is_varied(folder):
        play_variants(read_source(folder / FILE), folder)
        return
    file = folder / "study.json"
    if not file.exists():
        raise BadFile(f"{folder} holds no study (there is no {file.name} in it); give the folder of a run")
    play_study(make_study(read_json(file), where=str(file)), folder)


@app.command("methods")
def methods_command(
    name: Annotated[str | None, typer.Argument(help="A method or personalizer.")] = None,
) -> None:
    """List methods and personalizers, or show one: formula, options, traffic, limits."""
    if name is None:
        console.print(methods_table())
        return
    if name not in METHODS and name not in PERSONALIZERS:
        raise UnknownChoice("method or personalizer", name, [*METHODS, *PERSONALIZERS])
    entry = PERSONALIZERS[name] if name in PERSONALIZERS else METHODS[name]
    for block in method_page(entry):
        console.print(block)


@app.command("models")
def models_command() -> None:
    """List models."""
    console.print(entries_table("Models", MODELS))


@app.command("channels")
def channels_command() -> None:
    """List channels: what may happen to uploads on the way."""
    console.print(entries_table("Channels", CHANNELS))


@app.command("new-method")
def new_method(
    name: Annotated[str, typer.Argument(help="A new name, in snake_case.")],
    to: Annotated[Path | None, typer.Option(help="Folder; the package's methods by default.")] = None,
) -> None:
    """Write the skeleton of a new method: a file that already passes the contract suite."""
    path = write_skeleton(name, to)
    console.print(f"wrote {path}\nnext: edit it, then `make traffic` and `make test`", highlight=False)


@app.command("reproduce")
def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="Which one; none lists them.")] = None,
    scale: Annotated[str, typer.Option(help="small or full.")] = "small",
    out: Out = None,
) -> None:
    """Repeat a published or closed-form result; exits 0 only if every bar is met."""
    if name is None:
        for entry in REPRODUCTIONS.values():
            console.print(f"{entry.name:24} {entry.summary}", highlight=False)
        return
    folder = out or fresh_folder(name)
    rows = play(name, scale=scale, out=folder, tell=lambda text: console.print(text, highlight=False))
    console.print(rows_table(rows))
    console.print(f"wrote {folder / 'summary.json'}", highlight=False)
    if not all_met(rows):
        raise typer.Exit(1)


def keep_compilations() -> None:
    """Keep compiled programs between commands, so that the second run starts at once."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    update: Any = jax.config.update
    update("jax_compilation_cache_dir", str(home / "plures" / "compiled"))
    update("jax_persistent_cache_min_compile_time_secs", 0.2)
