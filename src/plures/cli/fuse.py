"""``plures fuse``: the clients' linear models fused by convex clustering, with proof."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from plures.cli.data import Name, data_part, file_name_of, takes_data
from plures.cli.terminal import console, show_advice, tell_notes
from plures.errors import BadValue


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
