"""What was found in a table or folder, for a person to read before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its kind, how many values are missing, and a category's levels that get an input each."""

    name: str
    kind: str
    missing: int = 0
    levels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Summary:
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
