"""TOML as text: the line every key and entry stands on, and settings written as TOML.

``tomllib`` reads values and forgets where they stood; a mistake in a setting should be shown with its line. No well-kept library
tells it: tomlkit has no lines (an open request since 2019), and spanned-toml is a copy of tomli with one release. So a text that
tomllib has found to be valid is scanned once more, for lines alone.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Place: TypeAlias = tuple[str | int, ...]
"""The way to a value: keys of tables and numbers of entries, as in ("tune", "search", "lr", 0)."""

BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
SPACE = re.compile(r"[ \t]*")
KEY = re.compile(r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^"'=\]\n])+""")
SCALAR = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'" r"|[^,\]}#\n]+", re.DOTALL
)
BARE = re.compile(r"[A-Za-z0-9_-]+")
WIDTH = 100


def lines_of(text: str) -> dict[Place, int]:
    """The line (from 1 on) of every table, key and entry of a text that is valid TOML.

    >>> lines_of('rounds = 3\\n[plan]\\nlr = 0.1')
    {('rounds',): 1, ('plan',): 2, ('plan', 'lr'): 3}
    """
    return _Scanner(text).scan()


def line_of(place: Place, lines: Mapping[Place, int]) -> int | None:
    """The line of a place, or of the innermost thing around it that has one."""
    around = (place[:length] for length in range(len(place), 0, -1))
    return next((lines[one] for one in around if one in lines), None)


class _Scanner:
    """Goes through a text once; ``at`` is where it stands."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: dict[Place, int] = {}
        self.implied: set[Place] = set()  # tables that so far only headers of tables in them speak of
        self.entries: dict[Place, int] = {}  # of arrays of tables: how many there are so far

    def scan(self) -> dict[Place, int]:
        table: Place = ()
        self.skip(BLANK)
        while self.at < len(self.text):
            table = self.header() if self.peek() == "[" else self.pair(table)
            self.skip(BLANK)
        return self.lines

    def header(self) -> Place:
        """The table that ``[a.b]`` or ``[[a.b]]`` begins; what is in an array of tables belongs to its last entry."""
        start = self.at
        listed = self.text.startswith("[[", start)
        self.at += 2 if listed else 1
        *outer, last = self.key()
        self.at += 2 if listed else 1
        place: Place = ()
        for step in outer:
            place = self.entered((*place, step))
            if place not in self.lines:
                self.implied.add(place)
            self.note(place, start)
        place = (*place, last)
        if place in self.implied:  # its own header says better where it is
            self.implied.remove(place)
            del self.lines[place]
        self.note(place, start)
        if listed:
            self.entries[place] = self.entries.get(place, 0) + 1
            place = self.entered(place)
            self.note(place, start)
        return place

    def entered(self, place: Place) -> Place:
        """The last entry of an array of tables, or the place itself."""
        return (*place, self.entries[place] - 1) if place in self.entries else place

    def pair(self, table: Place) -> Place:
        """Takes in ``key = value``; returns the table it is in."""
        start, place = self.at, table
        for step in self.key():
            place = (*place, step)
            self.note(place, start)
        self.at += 1  # the sign =
        self.skip(SPACE)
        self.value(place)
        return table

    def key(self) -> list[str]:
        """The steps of a key with dots; quotes and escapes are left to tomllib."""
        found = self.skip(KEY)
        inside: Any = tomllib.loads(f"{found.strip()} = 0")
        steps = []
        while isinstance(inside, dict):
            step, inside = next(iter(inside.items()))
            steps.append(step)
        return steps

    def value(self, place: Place) -> None:
        opening = self.peek()
        if opening not in "[{":
            self.skip(SCALAR)
            return
        for number, _ in enumerate(self.items("]" if opening == "[" else "}")):
            if opening == "{":
                self.pair(place)
            else:
                self.note((*place, number), self.at)
                self.value((*place, number))

    def items(self, closing: str) -> Iterator[None]:
        """Stops at every item between brackets, until the closing one is passed."""
        self.at += 1
        self.skip(BLANK)
        while self.peek() != closing:
            yield
            self.skip(BLANK)
            self.at += self.peek() == ","
            self.skip(BLANK)
        self.at += 1

    def note(self, place: Place, at: int) -> None:
        self.lines.setdefault(place, self.text.count("\n", 0, at) + 1)

    def peek(self) -> str:
        return self.text[self.at]

    def skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        assert found is not None, f"no TOML at {self.at}"
        self.at = found.end()
        return found[0]


def as_toml(values: Mapping[str, Any]) -> str:
    """Settings as TOML: plain ones first, then a section for each table; what is None or empty is left out.

    >>> print(as_toml({"plan": {"lr": 0.1, "steps": None}, "methods": ("fedavg", "ditto")}), end="")
    methods = ["fedavg", "ditto"]
    <BLANKLINE>
    [plan]
    lr = 0.1
    """
    return "\n".join(block for block in _sections((), values) if block)


def _sections(place: tuple[str, ...], values: Mapping[str, Any]) -> Iterator[str]:
    plain = {name: value for name, value in values.items() if value is not None and not isinstance(value, Mapping)}
    lines = [f"{_key(name)} = {plain_text(value)}" for name, value in plain.items()]
    if lines and place:
        lines = [f"[{'.'.join(map(_key, place))}]", *lines]
    yield "".join(f"{line}\n" for line in lines)
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _sections((*place, name), value)


def _key(name: str) -> str:
    return name if BARE.fullmatch(name) else _text(name)


def _text(value: str) -> str:
    # JSON's escapes are TOML's too, but for one character that JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def plain_text(value: Any) -> str:
    """A value as it stands in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {plain_text(one)}" for name, one in value.items()) + " }"
    if isinstance(value, Sequence):
        items = [plain_text(one) for one in value]
        short = f"[{', '.join(items)}]"
        return short if len(short) <= WIDTH else "[\n" + "".join(f"    {one},\n" for one in items) + "]"
    return repr(value)
