"""The file of a study, and its mistakes with their lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from plures.app.toml import Place, line_of
from plures.errors import BadFile, UserError


@dataclass(frozen=True)
class Mistake:
    """What is wrong, and in which setting."""

    place: Place
    error: UserError


class Refused(BadFile):
    """A study that is refused: (line, text) of each mistake, line 0 where the file does not have the setting."""

    def __init__(self, where: str, said: Iterable[tuple[int, str]]) -> None:
        self.said = sorted(set(said))
        ordered = [(f"line {line}" if line else "by default", text) for line, text in self.said]
        if len(ordered) == 1:
            super().__init__(f"{where}, {ordered[0][0]}: {ordered[0][1]}")
            return
        lines = "".join(f"\n  {line}: {text}" for line, text in ordered)
        super().__init__(f"{where} has {len(ordered)} mistakes:{lines}")


@dataclass(frozen=True)
class StudySource:
    """Where a study was read: the file's name, its values as they stand there, and the line of each."""

    where: str
    values: Mapping[str, Any]
    lines: Mapping[Place, int]
    text: str = ""

    def line(self, mistake: Mistake) -> int:
        """The line of a mistake; 0 where the file does not have the setting."""
        return line_of(known_place(self.values, mistake.place), self.lines) or 0

    def refusal(self, mistakes: Iterable[Mistake]) -> Refused:
        """All mistakes in one error, in the order of their lines."""
        return Refused(self.where, ((self.line(one), str(one.error)) for one in mistakes))


def known_place(values: Mapping[str, Any], place: Place) -> Place:
    """A place as plain values have it, as far as it leads to something there."""
    inside: Any = values
    found: Place = ()
    for given in place:
        for step in _steps(inside, given):
            if not _has(inside, step):
                return found
            found, inside = (*found, step), inside[step]
    return found


def _steps(inside: Any, step: str | int) -> Place:
    """An entry may be given by its text, and a name with dots may be tables in tables."""
    if isinstance(inside, list) and isinstance(step, str) and step in inside:
        return (inside.index(step),)
    if isinstance(inside, Mapping) and isinstance(step, str) and step not in inside:
        return tuple(step.split("."))
    return (step,)


def _has(inside: Any, step: str | int) -> bool:
    if isinstance(inside, list):
        return isinstance(step, int) and step < len(inside)
    return isinstance(inside, Mapping) and step in inside


@dataclass
class Findings:
    """Mistakes as they are found."""

    mistakes: list[Mistake] = field(default_factory=list)

    def add(self, place: Place, error: UserError) -> None:
        """One mistake more; the same words are not said twice of one setting."""
        if (place, str(error)) not in [(one.place, str(one.error)) for one in self.mistakes]:
            self.mistakes.append(Mistake(place, error))

    def attempt(
        self, place: Place, build: Callable[[], Any], *, unless: tuple[type[UserError], ...] = (), label: str = ""
    ) -> Any:
        """What is built; None if that is refused, which is then a mistake here."""
        try:
            return build()
        except UserError as error:
            if not isinstance(error, unless):
                self.add(place, UserError(f"{label}: {error}") if label else error)
            return None

    def refuse(self, source: StudySource | None) -> NoReturn:
        """Raise all mistakes as one error: with lines where there is a file, else on one line."""
        if source is not None:
            raise source.refusal(self.mistakes)
        said = dict.fromkeys(str(one.error) for one in self.mistakes)
        if len(said) == 1:
            raise self.mistakes[0].error
        raise UserError("; ".join(said))


def place_in_data(error: UserError, given: Mapping[str, Any]) -> Place:
    """Which setting of the data an error is about, by the first of the names that its text begins with or quotes."""
    text = str(error)
    names = [("options", name) for name in given.get("options", {})]
    for way in (*names, ("hold_out",), ("hold_out_seed",), ("data_dir",)):
        if text.startswith(f"{way[-1]} must") or re.search(rf"'{re.escape(way[-1])}'", text):
            return ("data", *way)
    return ("data", "name")
