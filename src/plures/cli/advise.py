"""Advice, a command for each question.

plures advise    can personalization pay here, which family of methods fits, and which study tells
plures worth     should these clients federate, how much, and who gains
plures decide    for every client: does it stay global, cluster, personalize or stay alone
plures fuse      the clients' linear models fused by convex clustering, with proof
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from plures.cli.data import (
    RENAMED,
    TABLE,
    DataOption,
    Name,
    data_part,
    file_name_of,
    import_words,
    table_options,
    takes_data,
)
from plures.cli.study_options import study_of, takes_study
from plures.cli.terminal import collect_warnings, console, fresh_folder, listener, say, show_advice, tell_notes
from plures.errors import BadValue

if TYPE_CHECKING:
    from plures.app import Study


@takes_data
def advise_command(
    context: typer.Context,
    data: DataOption = "digits",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for study.toml, the clients' table and a picture.")
    ] = None,
) -> None:
    """Say in about a minute whether personalization can pay, which family of methods fits, and which study to run."""
    from plures.advise import advise
    from plures.app import Study
    from plures.study.disk.layout import RESOLVED

    if out is not None and out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder")
    part = data_part({**context.params, "name": data})
    study = Study(imports=context.params["imports"] or (), data=part)
    with console.status("data") as status:
        seen, _ = study.federations()
        found = advise(seen, study=study, tell=status.update)
    tell_notes(seen)
    if out is not None:
        found.save(out)
    assert found.study is not None
    show_advice(found, out, f"to begin with: {found.first}", f"to run: {command_of(found.study, context.params)}")
    if out is not None:
        say(f"or: plures run {shlex.quote(str(out / RESOLVED))}")


def command_of(study: Study, given: Mapping[str, Any]) -> str:
    """The command line that runs the study, with the options that the data came with."""
    words = ["plures", "compare", *import_words(given), "--data", given["data"]]
    for name in (*TABLE, *RENAMED, "hold_out", "data_dir"):
        values = given[name] if isinstance(given[name], list | tuple) else [given[name]]
        if values not in ([None], ["auto"]):
            words += [word for value in values for word in (f"--{name.replace('_', '-')}", str(value))]
    if study.model is not None:
        words += ["--model", study.model]
    return shlex.join([*words, *(word for name in study.methods or () for word in ("-m", name))])


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


@takes_study
def decide_command(
    context: typer.Context,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on; losses are averaged over them.")] = 1,
    errors: Annotated[float, typer.Option(help="Standard errors that a gain on valid rows must exceed.")] = 1.0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results.")] = None,
) -> None:
    """Say for every client whether it stays global, clusters, personalizes or stays alone, with the evidence."""
    from plures.advise import decide_study

    study, folder, known = study_of(context.params), out or fresh_folder("decide"), list[str]()
    with collect_warnings() as notes:
        found = decide_study(study, folder, listener(known), errors=errors)
    show_advice(found, folder, norm=study.norm)
    tell_notes(found.federation, *(note for note in notes if note not in known))


def strength(text: str) -> float | str:
    """A strength from the command line: "auto" or a number."""
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise BadValue("lam", text, '"auto" or a positive number') from None


@takes_data
def fuse_command(
    context: typer.Context,
    name: Name,
    lam: Annotated[str, typer.Option(help='Strength of the penalty, or "auto".')] = "auto",
    scaling: Annotated[str, typer.Option(help="Unit of --lam: t (alpha over alpha_hat), alpha, ...")] = "t",
    select: Annotated[str, typer.Option(help="How auto chooses: bic, plateau or hold-out.")] = "bic",
    loss: Annotated[
        str, typer.Option(help="auto, or logistic, squared_hinge, multinomial, least_squares, huber, poisson.")
    ] = "auto",
    graph: Annotated[str, typer.Option(help="knn, complete or mixture.")] = "knn",
    neighbors: Annotated[int, typer.Option(help="Neighbors of each client on the knn graph.")] = 5,
    axes: Annotated[int | None, typer.Option(help="Reduce the columns to so many principal axes.")] = None,
    ridge: Annotated[float, typer.Option(help="Ridge of every model.")] = 1e-2,
    lams: Annotated[int, typer.Option(help="Strengths on the path.")] = 30,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results.")] = None,
) -> None:
    """Fuse the clients' linear models: clusters of clients found and proved, along a path of strengths."""
    from plures.advise import fuse_clients, task_loss
    from plures.solvers import ConvexClustering

    federation = data_part(context.params).spec.whole()
    how = ConvexClustering(
        loss=task_loss(federation) if loss == "auto" else loss,
        lam=strength(lam),
        scaling=scaling,
        select=select,
        graph=graph,
        num_neighbors=neighbors,
        ridge=ridge,
        num_lams=lams,
    )
    tell_notes(federation)
    with Progress(console=console, transient=True) as bars:
        task = bars.add_task("path", total=None)
        fused = fuse_clients(
            federation, how, axes=axes, tell=lambda done, total: bars.update(task, completed=done, total=total)
        )
    folder = out or Path("runs") / f"fuse-{file_name_of(name)}"
    fused.save(folder)
    show_advice(fused, folder)
