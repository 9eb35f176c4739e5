"""``plures tradeoff``: the degree of collaboration of a method swept, with what it costs and buys."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from plures.cli.data import say, tell_notes
from plures.cli.playing import claim, fresh_folder, noted
from plures.cli.studies import study_of, takes_study
from plures.config import Study
from plures.data import Federation
from plures.errors import BadValue
from plures.norms import norm_said
from plures.report.terminal import plain_table, study_bars
from plures.study.compare import StudyProgress
from plures.study.folder import run_folder
from plures.study.fronts import Budget, counted, unit_of
from plures.study.sweep import Sweep, often, plan_sweep
from plures.study.tradeoff import Tradeoff, play_sweep
from plures.study.tradeoff_words import LEGEND, ends_early, save_tradeoff, sentences, told, values_table

console = Console()


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
    swept = {"option": option, "values": None if values is None else numbers_of(values)}
    study = _study(context.params)
    seen, _ = study.check()
    sweep = _sweep(study, seen, swept, Budget(budget_mb, budget_rounds))
    play_tradeoff(study, replace(sweep, asked=asked_of(context)), out, swept)


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


OWN = ("methods", "rounds", "option", "values", "budget_mb", "budget_rounds", "eval_every", "out")
ALWAYS = ("data", "epochs", "batch", "lr", "optimizer")


def asked_of(context: typer.Context) -> str:
    """The options of the command but its own, as they are typed: data and plan, and what differs from its default."""
    words = []
    for one in context.command.params:
        given = context.params.get(one.name or "")
        if one.name in OWN or given in (None, [], ()) or (given == one.default and one.name not in ALWAYS):
            continue
        each = given if isinstance(given, list | tuple) else [given]
        words += [f"{one.opts[0]} {quote(str(value))}" for value in each]
    return " ".join(words)


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
        norm=study.norm,
        budget=budget,
        cohort=study.cohort,
        channels=study.all_channels(seen),
        executor=study.executor,
        eval_every=study.eval_every,
        **swept,
    )


def play_tradeoff(study: Study, sweep: Sweep, out: Path | None, swept: Mapping[str, Any]) -> None:
    """Run a sweep into a folder, print the table and the sentences, and draw it."""
    folder = out or fresh_folder("tradeoff")
    resolved = {**study.model_dump(mode="json"), "command": "tradeoff", "option": swept["option"]}
    claim(folder, resolved)
    tell_kept(folder)
    with noted() as notes, study_bars(console) as tell:
        result = play_sweep(sweep, out=folder, progress=with_estimate(tell, sweep, folder), config=resolved)
    files = save_tradeoff(result, folder)
    console.print(tradeoff_table(result))
    console.print(LEGEND, style="dim")
    for line in (*sentences(result), *told(result)):
        say(line)
    if study.norm != "share":
        say(norm_said(study.norm))
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
        say(f"{counted(kept, 'finished run')} kept from before in {folder}")


def with_estimate(
    tell: Callable[[StudyProgress], None],
    sweep: Sweep,
    folder: Path,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[StudyProgress], None]:
    """The hook, which also says how long the sweep will still take when the first of its runs is over."""
    jobs = [run_folder(folder, label, seed) / "done.json" for label in sweep.built for seed in sweep.seeds]
    waiting = [index for index, file in enumerate(jobs) if not file.exists()]
    start, more = clock(), len(waiting) - 1

    def also(at: StudyProgress) -> None:
        tell(at)
        if more > 0 and at.index == waiting[0] and at.run.round == at.run.rounds:
            left = said_time(more * (clock() - start))
            console.print(f"about {left} left: {counted(more, 'more run')} like the first", soft_wrap=True)

    return also


def said_time(seconds: float) -> str:
    """A time in the unit in which it is read best.

    >>> said_time(7.4), said_time(300), said_time(9000)
    ('7 s', '5 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def tradeoff_table(result: Tradeoff) -> Table:
    """A row per value: what it buys on test and valid rows, and what it costs."""
    scored = result.metric != "loss"
    rows = values_table(result).to_dicts()
    unit, per_mb = unit_of(max((row["mb_needed"] or 0.0 for row in rows), default=0.0))
    rounds = counted(result.sweep.rounds, "round")
    table = plain_table(Text(f"{result.sweep.degree.text}: {result.option} swept, {rounds}"))
    table.add_column(result.option, no_wrap=True)
    # Under a budget test rows are read later than the other columns are about.
    when = "test\n{}\nat end" if ends_early(result) else "test\n{}"
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        when.format("loss"): lambda row: _number(row["test_loss"]),
        "±": lambda row: _number((row["test_loss_high"] - row["test_loss_low"]) / 2),
        **({when.format(result.metric): lambda row: _number(row["test_score"])} if scored else {}),
        "valid\nloss": lambda row: _number(row["valid_loss"]),
        "rounds\nneeded": lambda row: _count(row["rounds_needed"]),
        f"{unit} per\nclient": lambda row: _number(row["mb_needed"] and row["mb_needed"] * per_mb),
        "grad-\nients": lambda row: _count(row["gradients_needed"], more=row["rounds_without_gradients"] > 0),
    }
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("mark", no_wrap=True, min_width=10)
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
    """Three digits or so, however small or large.

    >>> [_number(value) for value in (0.5, 12.345, 12345.6, 1.84e29, 1.2e-7)]
    ['0.500', '12.3', '12346', '1.8e29', '1.2e-7']
    """
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if value == 0 or 0.01 <= size < 10:
        return f"{value:.3f}"
    if 0.001 <= size < 1e5:
        return f"{value:.3g}" if size < 999 else f"{value:.0f}"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits}e{int(power)}"


def _count(value: float | None, *, more: bool = False) -> str:
    if value is None:
        return "-"
    return f"{f'{value:,.0f}' if value < 1e6 else _number(value)}{'+' if more else ''}"


def _drawn(result: Tradeoff, folder: Path) -> list[Path]:
    """The pictures; matplotlib is loaded only here, so that other commands start fast."""
    from plures.report.tradeoff import tradeoff_pictures

    return tradeoff_pictures(result, folder)
