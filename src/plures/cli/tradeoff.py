"""``plures tradeoff``: the degree of collaboration of a method swept, with what it costs and buys."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plures.cli.data import numbers_of
from plures.cli.study_options import study_of, takes_study
from plures.cli.terminal import collect_warnings, console, fresh_folder, say, show_advice, tell_notes
from plures.errors import BadValue
from plures.wording import counted

if TYPE_CHECKING:
    from plures.app import Study
    from plures.study.grid import StudyProgress
    from plures.study.sweep import Sweep


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
    from plures.study.fronts import Budget
    from plures.study.sweep import plan_sweep

    wanted = "numbers such as 0.01,0.1,1 (auto is run anyway where it is taken)"
    numbers = None if values is None else numbers_of("values", values, wanted)
    study = _study(context.params)
    prepared, budget = study.prepare(), Budget(budget_mb, budget_rounds)
    assert study.methods is not None
    sweep = plan_sweep(
        study.methods[0], prepared.seen, option=option, values=numbers, budget=budget, **prepared.training
    )
    run_command(study, replace(sweep, asked=typed_options(context)), out, option)


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


def _study(given: Mapping[str, Any]) -> Study:
    """The study that the options stand for, of one method."""
    from plures.study.sweep import often

    if len(given["methods"] or ()) != 1:
        raise BadValue("method", given["methods"] or [], "one method whose option is swept, such as -m ditto")
    every = often(given["rounds"]) if given["eval_every"] is None else given["eval_every"]
    return study_of({**given, "eval_every": every})


def run_command(study: Study, sweep: Sweep, out: Path | None, option: str | None) -> None:
    """Run a sweep into a folder and show what it says."""
    from plures.advise import run_sweep
    from plures.app import claim
    from plures.report.terminal import study_bars
    from plures.study.disk.layout import count_finished
    from plures.wrap.norms import norm_said

    folder = out or fresh_folder("tradeoff")
    resolved = {**study.model_dump(mode="json"), "command": "tradeoff", "option": option}
    claim(folder, resolved)
    if kept := count_finished(folder):
        say(f"{counted(kept, 'finished run')} kept from before in {folder}")
    with collect_warnings() as notes, study_bars(console) as tell:
        result = run_sweep(sweep, out=folder, progress=with_estimate(tell, sweep, folder), config=resolved)
    more = [] if study.norm == "share" else [norm_said(study.norm)]
    show_advice(result, folder, *more, beside=sweep.federation)
    tell_notes(sweep.federation, *notes)


def with_estimate(
    tell: Callable[[StudyProgress], None], sweep: Sweep, folder: Path, clock: Callable[[], float] = time.monotonic
) -> Callable[[StudyProgress], None]:
    """The hook, which also says how long the sweep will still take when the first of its runs is over."""
    from plures.study.disk.layout import DONE, run_folder

    jobs = [run_folder(folder, label, seed) / DONE for label in sweep.built for seed in sweep.seeds]
    waiting = [index for index, file in enumerate(jobs) if not file.exists()]
    start, more = clock(), len(waiting) - 1

    def also(at: StudyProgress) -> None:
        tell(at)
        if more > 0 and at.index == waiting[0] and at.run.round == at.run.rounds:
            left = time_text(more * (clock() - start))
            console.print(f"about {left} left: {counted(more, 'more run')} like the first", soft_wrap=True)

    return also


def time_text(seconds: float) -> str:
    """A time in the unit in which it is read best.

    >>> time_text(7.4), time_text(300), time_text(9000)
    ('7 s', '5 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
