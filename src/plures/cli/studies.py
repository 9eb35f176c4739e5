"""What commands that train several methods share: their options, and the study these stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from plures.cli.data import data_part, say, takes_data, taking
from plures.config import ALL, Study, make_study
from plures.data import Federation
from plures.errors import BadValue, UserError
from plures.report.terminal import study_bars
from plures.study.tuning import Tuned, tune
from plures.toml_lines import as_toml

console = Console()


def study_options(
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", help="A method, e.g. 'ditto:lam=0.5', or all; repeatable."),
    ] = None,
    data: Annotated[
        str, typer.Option("--data", help="A data set, 'cifar10|dirichlet:alpha=0.3', or a file or folder.")
    ] = "digits",
    model: Annotated[str | None, typer.Option(help="A model, e.g. 'mlp:hidden=64x32'.")] = None,
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 60,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.")] = 3,
    cohort: Annotated[str, typer.Option(help="'all', a number, or 'weighted:NUMBER'.")] = "all",
    epochs: Annotated[int, typer.Option(help="Local epochs per round.")] = 2,
    batch: Annotated[int, typer.Option(help="Local batch size; 0 is full batch.")] = 10,
    lr: Annotated[float, typer.Option(help="Local step size.")] = 0.1,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum or adam.")] = "sgd",
    norm: Annotated[
        str, typer.Option(help="Normalization layers: share, local, affine (statistics private), recalibrate.")
    ] = "share",
    eval_every: Annotated[int, typer.Option(help="Rounds between evaluations on valid rows.")] = 10,
    channel: Annotated[list[str] | None, typer.Option("--channel", help="E.g. 'drop_out:share=0.2'.")] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", help="Who lies, and how: 'sign-flip:0.2' is a fifth of the clients."),
    ] = None,
    executor: Annotated[str, typer.Option(help="auto, vectorized, chunked:N, one_by_one.")] = "auto",
) -> None:
    """What every command takes that trains methods; ``study_of`` reads it from the command's context."""


def takes_study(command: Callable[..., None]) -> Callable[..., None]:
    """The command with ``study_options`` and ``data_options``; an option of its own goes first."""
    return takes_data(taking(study_options, command))


def study_of(given: Mapping[str, Any]) -> Study:
    """The study that the options of a command stand for."""
    if given["seeds"] < 1:
        raise BadValue("seeds", given["seeds"], "1 or more")
    found: dict[str, Any] = {
        "data": data_part({**given, "name": given["data"]}).model_dump(),
        "plan": {name: given[name] for name in ("epochs", "batch", "lr", "optimizer")},
        "seeds": list(range(given["seeds"])),
        "channels": given["channel"] or [],
        "attack": given["attack"] or [],
        "track": given.get("track") or [],  # of commands that keep models and may be followed
        "keep_models": given.get("keep_models"),
        "together": given.get("together"),
        **{name: given[name] for name in ("model", "norm", "eval_every", "rounds", "cohort", "executor")},
    }
    if given["methods"]:
        found["methods"] = given["methods"]
    if given.get("tune"):
        found["tune"] = {"trials": given["tune"]}
    return make_study(found, where="the command line")


def named(study: Study, seen: Federation) -> Study:
    """The study with its methods named where they were ``all``; those that are left out are said with the reason."""
    names, left_out = study.chosen(seen)
    for name, why in left_out.items():
        say(f"left out: {name}: {why}", style="dim")
    return study.model_copy(update={"methods": names}) if ALL in (study.methods or ()) else study


TITLE = "# The study with every default filled in; `plures run` takes it.\n\n"


def keep_resolved(study: Study, seen: Federation, out: Path) -> None:
    """Write the study with every default filled in beside its results."""
    (out / "study.toml").write_text(TITLE + as_toml(study.resolved(seen)))


FREE = ("executor", "checkpoint_every", "keep_models", "together", "track")
"""Settings that change no result: a study may go on with others."""


def settled(values: Mapping[str, Any], seen: Federation | None) -> dict[str, Any]:
    """The settings of a study by which its results are told apart, with defaults filled in where clients are given."""
    found = dict(values)
    if seen is not None:
        with suppress(UserError):  # of another command, or for other data: it differs as it stands
            found = make_study(found).resolved(seen)
    return {name: value for name, value in found.items() if name not in FREE}


def tuned(study: Study, methods: tuple[str, ...], seen: Federation, out: Path) -> Tuned | None:
    """The methods of a study tuned with one budget, which is said with what was chosen; None if it does not ask for it."""
    if study.tune is None:
        return None
    with study_bars(console) as tell:
        found = tune(
            methods,
            seen,
            rounds=study.rounds,
            trials=study.tune.trials,
            strategy=study.tune.strategy,
            search=study.tune.search,
            seed=study.tune.seed,
            seeds=study.tune.seeds or study.seeds[:1],
            model=study.model,
            plan=study.plan.build(),
            norm=study.norm,
            out=out,
            progress=tell,
            cohort=study.cohort,
            channels=study.all_channels(seen),
            executor=study.executor,
            together=study.together,
        )
    for line in found.said:
        say(line)
    say(f"every trial: {out / 'tuning' / 'trials.parquet'}")
    return found
