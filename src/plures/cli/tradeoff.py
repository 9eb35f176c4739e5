"""``plures tradeoff``: the degree of collaboration of a method swept, with what it costs and buys."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from plures.cli.data import numbers_of
from plures.cli.study_options import study_of, takes_study
from plures.cli.terminal import collect_warnings, fresh_folder, listener, show_advice, tell_notes
from plures.errors import BadValue


@takes_study
def tradeoff_command(
    context: typer.Context,
    option: Annotated[
        str | None, typer.Option(help="What is swept, e.g. lam or mapper.lam; else what the method declares.")
    ] = None,
    values: Annotated[
        str | None,
        typer.Option(
            help="Values of it, e.g. 0.01,0.1,1; else 9 of them from 1/256 to 256 times its default (whole numbers: from 1/8 "
            "to 8 times), or 11 from 0.001 to 100 where the default is auto or 0."
        ),
    ] = None,
    budget_mb: Annotated[float | None, typer.Option(help="The most megabytes per client.")] = None,
    budget_rounds: Annotated[int | None, typer.Option(help="The most rounds.")] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(help="Rounds between evaluations on valid rows; at most 20 evaluations by default."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results.")] = None,
) -> None:
    """Sweep a method's degree of collaboration: error, rounds, bytes and gradients; the best under a budget."""
    from plures.advise import run_tradeoff
    from plures.study.sweep import often

    wanted = "numbers such as 0.01,0.1,1 (auto is run anyway where it is taken)"
    numbers = None if values is None else numbers_of("values", values, wanted)
    if len(context.params["methods"] or ()) != 1:
        raise BadValue(
            "method", context.params["methods"] or [], "one method whose option is swept, such as -m ditto"
        )
    every = often(context.params["rounds"]) if eval_every is None else eval_every
    study, folder = study_of({**context.params, "eval_every": every}), out or fresh_folder("tradeoff")
    prepared, budget = study.prepare(), {"budget_mb": budget_mb, "budget_rounds": budget_rounds}
    how = {"option": option, "values": numbers, "asked": typed_options(context), **budget, **prepared.training}
    with collect_warnings() as notes:
        told: dict[str, Any] = {"listener": listener([]), "config": study.model_dump(mode="json")}
        found = run_tradeoff(context.params["methods"][0], prepared.seen, out=folder, **told, **how)
    show_advice(found, folder, norm=study.norm)
    tell_notes(found.federation, *notes)


OWN = ("methods", "rounds", "option", "values", "budget_mb", "budget_rounds", "eval_every", "out")
ALWAYS = ("data", "epochs", "batch", "lr", "optimizer")


def typed_options(context: typer.Context) -> str:
    """The options of the command but its own, as they are typed: data and plan, and what differs from its default."""
    words = []
    for one in context.command.params:
        given = context.params.get(one.name or "")
        if one.name in OWN or given in (None, [], ()) or (given == one.default and one.name not in ALWAYS):
            continue
        each = given if isinstance(given, list | tuple) else [given]
        words += [f"{one.opts[0]} {quote(str(value))}" for value in each]
    return " ".join(words)
