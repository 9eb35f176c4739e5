"""What an examination ends with, whatever kind of files it began with: what was found, for a person to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from plures.data.federation import Examples, Federation, assemble
from plures.data.holdout import mark_held_out
from plures.data.tables.layout import TableLayout
from plures.data.tables.target import Labels
from plures.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its kind, how many values are missing, and a category's levels that get an input each."""

    name: str
    kind: str
    missing: int = 0
    levels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableSummary:
    """The whole table or folder; what an error kept from being found out is empty.

    ``why`` says how the task was chosen. ``class_names[c]`` is the class with the label c, and
    ``feature_names[j]`` what input j holds (empty for inputs with several axes, such as images). ``notes`` are
    the warnings that the federation carries; with ``errors`` there is no federation.
    """

    title: str
    rows: int = 0
    clients: int = 0
    unseen: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    task: str = ""
    why: str = ""
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


class Examination(NamedTuple):
    """The summary, the errors behind its texts and, without errors, how to make the federation."""

    summary: TableSummary
    errors: tuple[UserError, ...] = ()
    make: Callable[[], Federation] | None = None

    @staticmethod
    def of(summary: TableSummary, errors: list[UserError]) -> Examination:
        """The end of an examination that met errors."""
        return Examination(replace(summary, errors=tuple(str(error) for error in errors)), tuple(errors))


def with_labels(summary: TableSummary, labels: Labels | None) -> TableSummary:
    """The summary with task and classes, where these could be found out."""
    if labels is None:
        return summary
    return replace(summary, task=labels.task, why=labels.why, class_names=labels.class_names)


def with_layout(summary: TableSummary, layout: TableLayout) -> TableSummary:
    """The summary with clients and the notes on them."""
    unseen = tuple(name for name, held_out in zip(layout.names, layout.held_out, strict=True) if held_out)
    return replace(summary, clients=len(layout.names), unseen=unseen, notes=(*summary.notes, *layout.notes))


def federation_of(x: NDArray[Any], labels: Labels, layout: TableLayout, title: str) -> Federation:
    """The federation of inputs that are in the order of the layout."""
    made = assemble(
        Examples(x, labels.y[layout.rows], layout.owner, layout.codes),
        names=layout.names,
        in_place=True,
        task=labels.task,
        num_classes=len(labels.class_names),
        title=title,
        class_names=labels.class_names,
        unit=layout.unit,
        standardize_target=labels.task == "regression",
    )
    return mark_held_out(made, layout.held_out)
