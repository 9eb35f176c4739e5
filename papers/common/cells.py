"""Cells of a long experiment in a file: one JSON line each, added as they are played, here or elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from plures.errors import BadFile


class Named(Protocol):
    """A cell: a dataclass that knows what no two of them share."""

    @property
    def name(self) -> Any:
        """What the cell is called."""


C = TypeVar("C", bound=Named)


def save_cells(file: Path, cells: Iterable[Any]) -> None:
    """Add cells to a file, one JSON line each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        for one in cells:
            lines.write(json.dumps(asdict(one)) + "\n")


def read_cells(file: Path, make: Callable[[Mapping[str, Any]], C]) -> list[C]:
    """The cells of a file, made from their rows; of those that were played more than once, the last."""
    if not file.exists():
        return []
    found = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            one = make(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise BadFile(f"{file}, line {number}, is no cell: {error}") from error
        found[one.name] = one
    return list(found.values())
