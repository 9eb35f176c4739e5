"""``plures worth``: should these clients federate, how much, and who gains."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from plures.cli.data import Name, data_part, file_name_of, say, table_options, takes_data, tell_notes
from plures.data.own.words import counted
from plures.report.terminal import WORTH_LEGEND, worth_clients_table, worth_table
from plures.solvers.degree import PlugIn
from plures.study.worth import How, Worth, save_worth, worth_of

console = Console()


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
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results.")] = None,
) -> None:
    """Should I federate? How clients differ against their noise, the strength that follows, who gains and who loses."""
    how = How(loss=loss, axes=axes, ridge=ridge, weighting=weighting, valid_share=valid_share, num_lams=lams)
    with console.status("data") as status:
        federation = data_part(context.params).spec.whole()
        worth = worth_of(federation, how, status.update)
    tell_notes(federation)
    console.print(worth_table(worth))
    console.print(WORTH_LEGEND, style="dim")
    console.print(worth_clients_table(worth))
    for line in [*worth.sentences, *_used(worth, context.params), *_asides(worth)]:
        say(line)
    folder = out or Path("runs") / f"worth-{file_name_of(name)}"
    save_worth(worth, folder)
    say(f"picture: {_drawn(worth, folder)}")
    say(f"every client: {folder / 'clients.csv'}")


MODELS = {
    "least_squares": "least_squares",
    "logistic": "logistic",
    "multinomial": "softmax",
    "squared_hinge": "squared_hinge",
}
"""The model of a method that has this loss."""


def _used(worth: Worth, given: Mapping[str, Any]) -> list[str]:
    """The command that uses lam, where columns are on its scale and a lam is advised."""
    model = MODELS.get(worth.clients.link.name)
    if worth.verdict != "yes" or not worth.rows.as_given or model is None:
        return []
    weighting = "" if worth.how.weighting == "clients" else ",weighting=examples"
    more = ", with the same options of the table" if table_options(given) else ""
    return [
        f"to use it: plures compare --data {shlex.quote(given['name'])} --model {model}:ridge={worth.how.ridge:g} "
        f"-m fedclup:lam={worth.lams[worth.way][0]:.3g}{weighting}{more}"
    ]


def _asides(worth: Worth) -> list[str]:
    """What one round alone would say, and who is left out or gave up training rows."""
    once = worth.one_round
    known = f"lam = {once.lam:.3g}" if isinstance(once, PlugIn) else f"no lam, since {once.split(';')[0]}"
    found = [f"from one round of local estimates: {known}"]
    if worth.held_out:
        found.append(
            f"{counted(worth.held_out, 'client')} without valid rows: "
            f"{100 * worth.how.valid_share:.0f} % of the training rows are held out for them"
        )
    if worth.rows.left_out:
        found.append(f"left out, for want of training or test rows: {', '.join(sorted(worth.rows.left_out))}")
    return found


def _drawn(worth: Worth, folder: Path) -> Path:
    """The picture; matplotlib is loaded only here, so that other commands start fast."""
    from plures.report.worth import picture

    return picture(worth, folder / "worth.png")
