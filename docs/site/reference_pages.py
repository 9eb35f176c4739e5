"""Pages that list models, data, channels and the settings of a run with all their options, made from the registry."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import NamedTuple

from method_pages import as_markdown, linked, option_table

from plures.data import TableOptions
from plures.docstrings import argument_sentences
from plures.engine import Settings
from plures.registry import CHANNELS, DATASETS, MODELS, PARTITIONERS, WORLDS, Entry, Registry
from plures.report.options import Option, default_in_words, kind_in_words, more_of, option_rows
from plures.types import Plan


class Kind(NamedTuple):
    """A page of one registry: its title, what it says first, and the entries."""

    title: str
    intro: str
    entries: Registry


KINDS = {
    "models.md": Kind("Models", "A model is a name and its options: `--model mlp:hidden=64x32`.", MODELS),
    "data-sets.md": Kind("Data sets", "By name: `--data digits`, `--data har:inputs=raw`.", DATASETS),
    "worlds.md": Kind(
        "Worlds", "Synthetic federations whose answers are known, by name: `--data linear_clusters`.", WORLDS
    ),
    "partitioners.md": Kind(
        "Partitioners",
        "They make other clients from the same rows, or change rows, and follow after a bar: "
        "`'cifar10|dirichlet:alpha=0.3|rotation_groups'`.",
        PARTITIONERS,
    ),
    "channels.md": Kind(
        "Channels and attacks", "What may happen to uploads on their way: `--channel clip:norm=1.0`.", CHANNELS
    ),
}
VALUES = {
    "Local optimization (Plan)": Plan,
    "A run (Settings)": Settings,
    "A table of your own (TableOptions)": TableOptions,
}


def reference_pages() -> dict[str, str]:
    """Every page by its place on the site."""
    pages = {f"reference/{name}": page_of(kind) for name, kind in KINDS.items()}
    return {**pages, "reference/settings.md": settings_page()}


def page_of(kind: Kind) -> str:
    """All entries of a registry with their options."""
    return "\n\n".join([f"# {kind.title}", kind.intro, *map(section_of, kind.entries.values())]) + "\n"


def section_of(entry: Entry) -> str:
    """An entry: what it is, its paper, its options."""
    first = (inspect.getdoc(entry.factory) or "").partition("\n")[0]
    parts = [f"## {entry.name}", f"**{entry.title}.** {as_markdown(first)}"]
    parts += [as_markdown(more_of(entry))] if more_of(entry) else []
    parts += [f"Paper: {linked(entry.paper)}"] if entry.paper else []
    options = option_rows(entry)
    return "\n\n".join([*parts, option_table(options) if options else "It has no options."])


def settings_page() -> str:
    """The values that a user fills in."""
    parts = [f"## {title}\n\n{option_table(field_rows(value))}" for title, value in VALUES.items()]
    return "\n\n".join(["# Settings", *parts]) + "\n"


def field_rows(value: type) -> list[Option]:
    """Every field of a value that users fill in."""
    hints, found = typing.get_type_hints(value), argument_sentences(value)
    rows = []
    for one in dataclasses.fields(value):
        default = inspect.Parameter.empty if one.default is dataclasses.MISSING else one.default
        said = default_in_words(default, "(needed)")
        rows.append(Option(one.name, kind_in_words(hints[one.name]), said, found[one.name]))
    return rows
