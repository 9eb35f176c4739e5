"""What commands that train several methods share: their options, and the study these stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plures.cli.data import DataOption, Imports, add_options, data_part, takes_data
from plures.errors import BadValue

if TYPE_CHECKING:
    from plures.app import Study


def study_options(
    methods: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="A method, e.g. 'ditto:lam=0.5', or all; repeatable.")
    ] = None,
    data: DataOption = "digits",
    model: Annotated[str | None, typer.Option(help="A model, e.g. 'mlp:hidden=64x32'.")] = None,
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = 60,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.")] = 3,
    cohort: Annotated[str, typer.Option(help="'all', a number, or 'weighted:NUMBER'.")] = "all",
    epochs: Annotated[int, typer.Option(help="Local epochs per round.")] = 2,
    batch: Annotated[int, typer.Option(help="Local batch size; 0 is full batch.")] = 10,
    lr: Annotated[
        str, typer.Option(help="Local step size; auto finds it from the data before a comparison, else it is 0.1.")
    ] = "auto",
    optimizer: Annotated[str, typer.Option(help="sgd, momentum or adam.")] = "sgd",
    norm: Annotated[
        str, typer.Option(help="Normalization layers: share, local, affine (statistics private), recalibrate.")
    ] = "share",
    eval_every: Annotated[int, typer.Option(help="Rounds between evaluations on valid rows.")] = 10,
    channel: Annotated[list[str] | None, typer.Option("--channel", help="E.g. 'drop_out:share=0.2'.")] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", help="Who attacks, and how: 'sign-flip:0.2' is a fifth of the clients."),
    ] = None,
    executor: Annotated[str, typer.Option(help="auto, vectorized, chunked:N, one_by_one.")] = "auto",
    imports: Imports = None,
) -> None:
    """What every command takes that trains methods; ``study_of`` reads it from the command's context."""


def takes_study(command: Callable[..., None]) -> Callable[..., None]:
    """The command with ``study_options`` and ``data_options``; an option of its own goes first."""
    return takes_data(add_options(study_options, command))


def study_of(given: Mapping[str, Any]) -> Study:
    """The study that the options of a command stand for."""
    from plures.app import make_study

    if given["seeds"] < 1:
        raise BadValue("seeds", given["seeds"], "1 or more")
    found: dict[str, Any] = {
        "imports": given["imports"] or [],
        "data": data_part({**given, "name": given["data"]}).model_dump(),
        "plan": {name: given[name] for name in ("epochs", "batch", "lr", "optimizer")},
        "seeds": list(range(given["seeds"])),
        "channels": given["channel"] or [],
        "attack": given["attack"] or [],
        "track": given.get("track") or [],  # of commands that keep models and may be followed
        "keep_models": given.get("keep_models"),
        "references": given.get("references", True),
        **{name: given[name] for name in ("model", "norm", "eval_every", "rounds", "cohort", "executor")},
    }
    if given["methods"]:
        found["methods"] = given["methods"]
    if given.get("tune"):
        found["tune"] = {"trials": given["tune"]}
    return make_study(found, where="the command line")
