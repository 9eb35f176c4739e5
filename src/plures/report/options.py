"""What is known of registered entries without building any: their options with type, default and sentence, and their words.

Nothing here knows an entry by name. Whoever shows entries, in the terminal or on a page, reads it from here.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from typing import Any, NamedTuple

from plures.docstrings import prose
from plures.registry import Entry
from plures.types import Plan

JOINED = {"tuple[int": "ints joined by x", "tuple[float": "floats joined by x", "tuple[str": "texts joined by +"}
NOT_TYPED = {"in_place"}
"""Memory reuse is for whoever owns the data, not for a text."""


class Option(NamedTuple):
    """An option in words."""

    name: str
    kind: str
    default: str
    sentence: str


def option_rows(entry: Entry) -> list[Option]:
    """Every option that a text may set."""
    found = entry.sentences
    return [
        Option(
            name,
            kind_in_words(entry.hints.get(name, one.annotation)),
            default_in_words(one.default),
            found.get(name, ""),
        )
        for name, one in entry.options.items()
        if name not in NOT_TYPED
    ]


def needed(entry: Entry) -> list[str]:
    """The options without a default."""
    return [name for name, one in entry.options.items() if one.default is one.empty]


def kind_in_words(hint: Any) -> str:
    """A type in words, a tuple as it is typed.

    >>> kind_in_words(float | str | None)
    'float, str or None'
    >>> kind_in_words(tuple[int, ...])
    'ints joined by x'
    """
    if typing.get_origin(hint) is tuple:
        return next((words for start, words in JOINED.items() if str(hint).startswith(start)), str(hint))
    parts = typing.get_args(hint)
    if parts and hint not in parts and type(hint).__name__ in ("UnionType", "Union"):
        several = any(str(part).startswith("tuple[str") for part in parts)
        *first, last = [kind_in_words(part) for part in parts if not (several and part is str)]
        return f"{', '.join(first)} or {last}"
    if hint is type(None):
        return "None"
    return getattr(hint, "__name__", None) or re.sub(r"[\w.]+\.(\w+)", r"\1", str(hint))


def default_in_words(value: Any, missing: str = "(from the data)") -> str:
    """A default as it is typed, or what is said where there is none."""
    if value is inspect.Parameter.empty:
        return missing
    if isinstance(value, Plan):
        return f"epochs {value.epochs}, batch {value.batch}, lr {value.lr}, {value.optimizer.__name__}"
    if isinstance(value, tuple):
        return ("+" if all(isinstance(one, str) for one in value) else "x").join(map(str, value)) or "none"
    return getattr(value, "__name__", None) or str(value)


def line_kind(line: str) -> str:
    """Whether a line of a docstring is "nothing", "words" or a "formula": one that is indented or has wide gaps."""
    if not line:
        return "nothing"
    return "formula" if re.search(r"^\s|\S\s{2,}\S", line) else "words"


def formula_of(entry: Entry) -> str:
    """What an entry's file says of it."""
    return sys.modules[entry.factory.__module__].__doc__ or ""


def more_of(entry: Entry) -> str:
    """What the factory says beyond its first line and its options."""
    return prose(entry.factory)
