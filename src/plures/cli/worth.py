"""``plures worth``: should these clients federate, how much, and who gains."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from plures.cli.data import Name, data_part, file_name_of, import_words, table_options, takes_data
from plures.cli.terminal import console, show_advice, tell_notes


@takes_data
def worth_command(
    context: typer.Context,
    name: Name,
    loss: Annotated[str, typer.Option(help="auto, or least_squares, logistic, multinomial, ...")] = "auto",
    axes: Annotated[int | None, typer.Option(help="Reduce the columns to so many principal axes.")] = None,
    ridge: Annotated[float, typer.Option(help="Ridge of every model.")] = 1e-2,
    weighting: Annotated[str, typer.Option(help="Whether clients count alike, or by examples.")] = "clients",
    valid_share: Annotated[
        float, typer.Option(help="Training rows held out by clients that have no valid rows.")
    ] = 0.2,
    lams: Annotated[int, typer.Option(help="Strengths on the path.")] = 31,
    limit: Annotated[float, typer.Option(help="Seconds after which nothing new is begun.")] = 60.0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results.")] = None,
) -> None:
    """Should I federate? How clients differ against their noise, the strength that follows, who gains and who loses."""
    from plures.advise import WorthOptions, estimate_worth

    options = WorthOptions(
        loss=loss, axes=axes, ridge=ridge, weighting=weighting, valid_share=valid_share, num_lams=lams, limit=limit
    )
    with console.status("data") as status:
        seen, unseen = data_part(context.params).spec.load()
        worth = estimate_worth(seen, options, status.update, unseen=unseen)
    tell_notes(seen)
    folder = out or Path("runs") / f"worth-{file_name_of(name)}"
    worth.save(folder)
    show_advice(worth, folder, *use_of(worth.use, context.params))


def use_of(use: tuple[str, str] | None, given: Mapping[str, Any]) -> list[str]:
    """The command that uses what is advised: a model and a method, if any."""
    if use is None:
        return []
    more = ", with the same options of the table" if table_options(given) else ""
    words = f"{shlex.join(['compare', *import_words(given)])} --data {shlex.quote(given['name'])}"
    return [f"to use it: plures {words} --model {use[0]} -m {use[1]}{more}"]
