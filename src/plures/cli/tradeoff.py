"""``plures tradeoff``: the degree of collaboration of a method swept, with what it costs and buys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from plures.cli.data import say, tell_notes
from plures.cli.studies import study_of, takes_study
from plures.config import Study
from plures.data import Federation
from plures.errors import BadValue
from plures.report.terminal import plain_table, study_bars
from plures.study.fronts import Budget, unit_of
from plures.study.sweep import Sweep, often, plan_sweep
from plures.study.tradeoff import Tradeoff, play_sweep
from plures.study.tradeoff_words import LEGEND, save_tradeoff, sentences, told, values_table

console = Console()


@takes_study
def tradeoff_command(
    context: typer.Context,
    option: Annotated[
        str | None, typer.Option(help="What is swept, e.g. lam or mapper.lam; else what the method declares.")
    ] = None,
    values: Annotated[
        str | None, typer.Option(help="Values of it, e.g. 0.01,0.1,1; else around its default.")
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
    swept = {"option": option, "values": None if values is None else numbers_of(values)}
    study = _study(context.params)
    seen, _ = study.check()
    sweep = _sweep(study, seen, swept, Budget(budget_mb, budget_rounds))
    play_tradeoff(study, sweep, out, swept)


def numbers_of(text: str) -> list[float]:
    """Numbers from the command line.

    >>> numbers_of("0.01, 0.1,1")
    [0.01, 0.1, 1.0]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BadValue(
            "values", text, "numbers such as 0.01,0.1,1 (auto is run anyway where it is taken)"
        ) from None


def _study(given: Mapping[str, Any]) -> Study:
    """The study that the options stand for, of one method."""
    if len(given["methods"] or ()) != 1:
        raise BadValue("method", given["methods"] or [], "one method whose option is swept, such as -m ditto")
    every = given["eval_every"]
    if every is None:
        every = often(given["rounds"])
    return study_of({**given, "eval_every": every})


def _sweep(study: Study, seen: Federation, swept: Mapping[str, Any], budget: Budget) -> Sweep:
    """Everything checked before the first run."""
    assert study.methods is not None
    return plan_sweep(
        study.methods[0],
        seen,
        rounds=study.rounds,
        seeds=study.seeds,
        model=study.model,
        plan=study.plan.build(),
        budget=budget,
        cohort=study.cohort,
        channels=study.all_channels(seen),
        executor=study.executor,
        eval_every=study.eval_every,
        **swept,
    )


def play_tradeoff(study: Study, sweep: Sweep, out: Path | None, swept: Mapping[str, Any]) -> None:
    """Run a sweep into a folder, print the table and the sentences, and draw it."""
    # These stand beside the commands, which are built from this one.
    from plures.cli.commands import claim, fresh_folder, noted

    folder = out or fresh_folder("tradeoff")
    resolved = {**study.model_dump(mode="json"), "command": "tradeoff", "option": swept["option"]}
    claim(folder, resolved)
    tell_kept(folder)
    with noted() as notes, study_bars(console) as tell:
        result = play_sweep(sweep, out=folder, progress=tell, config=resolved)
    files = save_tradeoff(result, folder)
    console.print(tradeoff_table(result))
    console.print(LEGEND, style="dim")
    for line in (*sentences(result), *told(result)):
        say(line)
    if result.threat is not None:
        say(result.threat.said)
    tell_notes(sweep.federation, *notes)
    for picture in _drawn(result, folder):
        say(f"picture: {picture}")
    say(f"every point: {files[0]}; every value: {files[1]}; all of it: {files[2]}")


def tell_kept(folder: Path) -> None:
    """Say how many runs are there already."""
    kept = len(list(folder.glob("runs/*/*/done.json")))
    if kept:
        say(f"{kept} finished runs are kept from before in {folder}")


def tradeoff_table(result: Tradeoff) -> Table:
    """A row per value: what it buys on test and valid rows, and what it costs."""
    scored = result.metric != "loss"
    rows = values_table(result).to_dicts()
    unit, per_mb = unit_of(max((row["mb_needed"] or 0.0 for row in rows), default=0.0))
    table = plain_table(Text(f"{result.sweep.degree.text}: {result.option} swept, {result.sweep.rounds} rounds"))
    table.add_column(result.option, no_wrap=True)
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "test\nloss": lambda row: _number(row["test_loss"]),
        "±": lambda row: _number((row["test_loss_high"] - row["test_loss_low"]) / 2),
        **({f"test\n{result.metric}": lambda row: _number(row["test_score"])} if scored else {}),
        "valid\nloss": lambda row: _number(row["valid_loss"]),
        "rounds\nneeded": lambda row: _count(row["rounds_needed"]),
        f"{unit} per\nclient": lambda row: _number(row["mb_needed"] and row["mb_needed"] * per_mb),
        "grad-\nients": lambda row: _count(row["gradients_needed"], more=row["rounds_without_gradients"] > 0),
    }
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("mark")
    for number, row in enumerate(rows):
        last = number + 1 < len(rows) and rows[number + 1]["kind"] != row["kind"]
        table.add_row(
            Text(row["value"]), *(said(row) for said in columns.values()), _mark(row["mark"]), end_section=last
        )
    return table


def _mark(words: str) -> str:
    """Marks short enough for a terminal."""
    return words.replace("within noise", "near").replace(",", "")


def _number(value: float | None) -> str:
    """Three digits or so, however small."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.3f}" if value == 0 or 0.01 <= abs(value) < 10 else f"{value:.3g}"


def _count(value: float | None, *, more: bool = False) -> str:
    return "-" if value is None else f"{value:,.0f}{'+' if more else ''}"


def _drawn(result: Tradeoff, folder: Path) -> list[Path]:
    """The pictures; matplotlib is loaded only here, so that other commands start fast."""
    from plures.report.tradeoff import tradeoff_pictures

    return tradeoff_pictures(result, folder)
