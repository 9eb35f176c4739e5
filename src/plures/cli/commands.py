"""The commands."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

from plures import reproduce  # noqa: F401  (registers reproductions)
from plures._version import __version__
from plures.cli.advise import advise_command
from plures.cli.data import data_app, say, tell_notes
from plures.cli.export import export_command, tell_kept
from plures.cli.fuse import fuse_command
from plures.cli.results import diff_command, keep_command, report_command, show_command, tell_answer, write_report
from plures.cli.show import entries_table, method_page, methods_table
from plures.cli.skeleton import write_skeleton
from plures.cli.studies import keep_resolved, named, settled, study_of, takes_study, tuned
from plures.cli.tradeoff import tradeoff_command
from plures.cli.worth import worth_command
from plures.config import Source, Study, make_study, read_source
from plures.data import Federation
from plures.errors import BadFile, BadValue, MethodWarning, UnknownChoice
from plures.norms import norm_said, norms_said
from plures.registry import CHANNELS, METHODS, MODELS, PERSONALIZERS, REPRODUCTIONS
from plures.report.terminal import DECISIONS_LEGEND, LEGEND, decisions_table, leaderboard, rows_table, study_bars
from plures.study import Comparison, Guidance, compare, default_methods, default_options, forecasts, guide
from plures.study.guidance import save_guidance
from plures.study.reproduce import all_met
from plures.study.reproduce import reproduce as play
from plures.study.saved import read_saved

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
    together: Annotated[
        bool | None, typer.Option(help="Play seeds side by side; by default on an accelerator.")
    ] = None,
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
    """Run a study described by a TOML file."""
    source = read_source(study)
    found = make_study(dict(source.values), source=source)
    play_study(found, out or fresh_folder(study.stem), source=source)


@app.command("resume")
def resume_command(folder: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Go on with a study where it stopped; finished runs are not run again."""
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


def read_json(file: Path) -> dict[str, Any]:
    """The settings in a file that a study left."""
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise BadFile(f"{file} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise BadFile(f"{file} is damaged: it should hold settings by name")
    return found


def claim(out: Path, resolved: dict[str, Any], seen: Federation | None = None) -> None:
    """Make the folder this study's own; one that holds another study is refused.

    With the clients ``seen`` settings that were left out count as what they come to on these. What changes no result counts
    for nothing.
    """
    if out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder")
    out.mkdir(parents=True, exist_ok=True)
    file = out / "study.json"
    if file.exists():
        before = {**Study().model_dump(mode="json"), **read_json(file)}  # a setting it did not know yet
        old, new = (settled(one, seen) for one in (before, resolved))
        other = [name for name in {**new, **old} if old.get(name) != new.get(name)]
        if other:
            raise BadFile(f"{out} holds a study with other settings ({', '.join(other)}); use another folder")
    file.write_text(json.dumps(resolved, indent=2))


def _settings(study: Study, seen: Federation) -> dict[str, Any]:
    """What a study says of how its methods are built and trained."""
    return {
        "model": study.model,
        "plan": study.plan.build(),
        "norm": study.norm,
        "rounds": study.rounds,
        "seeds": study.seeds,
        "cohort": study.cohort,
        "channels": study.all_channels(seen),
        "executor": study.executor,
        "eval_every": study.eval_every,
    }


@contextmanager
def noted() -> Iterator[list[str]]:
    """A list that holds, when the block is done, what methods said of their training, each thing once."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MethodWarning)
        yield found
    for one in caught:
        text = str(one.message)
        if not issubclass(one.category, MethodWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        elif text not in found:
            found.append(text)


def tell_forecasts(study: Study, methods: Sequence[str], seen: Federation) -> list[str]:
    """Say what methods cost and what is likely to go wrong; the warnings, which the runs will repeat."""
    found: list[str] = []
    ahead_of = forecasts(
        methods, seen, study.model, study.plan.build(), study.all_channels(seen), study.cohort, study.norm
    )
    for name, ahead in ahead_of.items():
        say(f"{name}: {ahead.cost}", style="dim")
        warned = [f"{name}: {warning}" for warning in ahead.warnings]
        for warning in warned:
            say(f"warning: {warning}", style="yellow")
        found += warned
    return found


def tell_threat(result: Comparison | Guidance) -> None:
    """Say who lied."""
    if result.threat is not None:
        say(result.threat.said)


def play_study(study: Study, out: Path, given: object = None, *, source: Source | None = None) -> None:
    """Run a study into a folder and print the leaderboard; ``given`` are the words of the command, if any.

    ``source`` is the file it was read from, if any: mistakes are shown with its lines.
    """
    seen, unseen = study.check(source)
    study = named(study, seen)
    resolved = study.model_dump(mode="json")
    kept = len(list(out.glob("runs/*/*/done.json")))
    claim(out, resolved, seen)
    keep_resolved(study, seen, out)
    keep_command(out, given)
    if kept:
        console.print(f"{kept} finished runs are kept from before in {out}", highlight=False)
    methods = study.methods or default_methods(seen)
    known = tell_forecasts(study, methods, seen)
    best = tuned(study, methods, seen, out)
    resolved = resolved if best is None else {**resolved, "tuned": best.chosen}
    with noted() as notes, study_bars(console) as tell:
        result = compare(
            methods if best is None else best.built,
            seen,
            unseen=unseen,
            out=out,
            progress=tell,
            config=resolved,
            checkpoint_every=study.checkpoint_every,
            keep_models=study.keep_models,
            together=study.together,
            track=study.track,
            **_settings(study, seen),
        )
    about = {**seen.describe(), "unseen_clients": unseen.num_clients if unseen else 0}
    (out / "data.json").write_text(json.dumps(about, indent=2))
    console.print(leaderboard(result, width=console.width))
    console.print(LEGEND, style="dim")
    if result.norms:
        say(norms_said(result.norms))
    for line in result.told:
        say(line)
    tell_threat(result)
    tell_notes(seen, *(note for note in notes if note not in known))
    note = f"{seen.num_clients} clients in training, {unseen.num_clients if unseen else 0} held out"
    console.print(f"{note}; every client: {out / 'clients.csv'}", highlight=False)
    console.print(f"picture: {draw(result, out)}", highlight=False)
    tell_kept(out)
    saved = read_saved(out)
    tell_answer(saved)
    say(f"page: {write_report(saved)}")


def play_decisions(study: Study, out: Path, *, errors: float) -> None:
    """Train what clients decide between, write the decisions into a folder and print what they are worth."""
    seen, unseen = study.check()
    methods = (study.methods and named(study, seen).methods) or default_options(seen)
    claim(out, {**study.model_dump(mode="json"), "methods": list(methods), "command": "decide", "errors": errors})
    known = tell_forecasts(study, methods, seen)
    with noted() as notes, study_bars(console) as tell:
        result = guide(
            methods,
            seen,
            unseen=unseen,
            errors=errors,
            progress=tell,
            **_settings(study, seen),
        )
    save_guidance(out, result)
    console.print(decisions_table(result))
    console.print(DECISIONS_LEGEND, style="dim")
    if study.norm != "share":
        say(norm_said(study.norm))
    for line in result.sentences:
        say(line)
    tell_threat(result)
    tell_notes(seen, *(note for note in notes if note not in known))
    say(f"every client: {out / 'decisions.csv'}")
    say(f"picture: {draw(result, out)}")


def draw(result: Comparison | Guidance, out: Path) -> Path:
    """The picture of a result; matplotlib is loaded only here, so that other commands start fast."""
    from plures.report.figures import decisions, overview

    if isinstance(result, Guidance):
        return decisions(result, out / "decisions.png")
    return overview(result, out / "overview.png")


def fresh_folder(name: str) -> Path:
    """A folder under runs/ that does not exist yet."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path, number = Path("runs") / f"{name}-{stamp}", 1
    while path.exists():
        path, number = Path("runs") / f"{name}-{stamp}-{number}", number + 1
    return path


def keep_compilations() -> None:
    """Keep compiled programs between commands, so that the second run starts at once."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    update: Any = jax.config.update
    update("jax_compilation_cache_dir", str(home / "plures" / "compiled"))
    update("jax_persistent_cache_min_compile_time_secs", 0.2)
