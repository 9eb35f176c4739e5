"""What an examination ends with, whatever kind of files it began with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from plures.data.apart import set_apart
from plures.data.federation import Examples, Federation, assemble
from plures.data.own.layout import Layout
from plures.data.own.summary import Summary
from plures.data.own.target import Labels
from plures.errors import UserError


class Found(NamedTuple):
    """The summary, the errors behind its texts and, without errors, how to make the federation."""

    summary: Summary
    errors: tuple[UserError, ...] = ()
    make: Callable[[], Federation] | None = None

    @staticmethod
    def of(summary: Summary, errors: list[UserError]) -> Found:
        """The end of an examination that met errors."""
        return Found(replace(summary, errors=tuple(str(error) for error in errors)), tuple(errors))


def with_labels(summary: Summary, labels: Labels | None) -> Summary:
    """The summary with task and classes, where these could be found out."""
    if labels is None:
        return summary
    return replace(summary, task=labels.task, why=labels.why, class_names=labels.class_names)


def with_layout(summary: Summary, layout: Layout) -> Summary:
    """The summary with clients and the notes on them."""
    unseen = tuple(name for name, apart in zip(layout.names, layout.apart, strict=True) if apart)
    return replace(summary, clients=len(layout.names), unseen=unseen, notes=(*summary.notes, *layout.notes))


def federation_of(x: NDArray[Any], labels: Labels, layout: Layout, title: str) -> Federation:
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
    )
    return set_apart(made, layout.apart)
