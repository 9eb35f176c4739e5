"""Studies from files and from plain values."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from plures.config.check import inspect
from plures.config.source import Findings, Mistake, Source, known_place
from plures.config.study import Study
from plures.errors import BadFile, BadValue, UnknownChoice
from plures.toml_lines import Place, lines_of


def read_study(path: Path) -> Study:
    """The study a TOML file describes."""
    source = read_source(path)
    return make_study(dict(source.values), source=source)


def read_source(path: Path) -> Source:
    """The values of a TOML file, and their lines."""
    if not path.exists():
        raise BadFile(f"there is no file {path}; give the path of a study in TOML")
    try:
        text = path.read_text()
        found = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise BadFile(f"{path} is not valid TOML: {error}") from error
    return Source(str(path), found, lines_of(text), text)


def make_study(found: dict[str, Any], *, where: str = "the study", source: Source | None = None) -> Study:
    """A study from plain values; every mistake is named.

    With a ``source`` they are those of a file, and what is wrong in other ways with the rest of it is named too.
    """
    try:
        return Study.model_validate(found)
    except ValidationError as error:
        mistakes = _mistakes(error)
        if source is None:
            said = dict.fromkeys(str(one.error) for one in mistakes)
            raise BadFile(f"{where}: " + "; ".join(said)) from error
        raise source.refusal([*mistakes, *_others(found, [one.place for one in mistakes])]) from error


def _others(found: Mapping[str, Any], faulty: list[Place]) -> list[Mistake]:
    """What else is wrong, with the faulty settings left out."""
    findings, rest = Findings(), _without(found, faulty)
    try:
        study = Study.model_validate(rest)
    except ValidationError as error:  # a list that lost all its entries
        study = Study.model_validate(_without(rest, [one["loc"] for one in error.errors()]))
    unknown = any(place[0] == "data" and place[1:2] in ((), ("name",), ("options",)) for place in faulty)
    inspect(study, findings, loads=not unknown, sure=False)
    return findings.mistakes


def _without(found: Mapping[str, Any], faulty: Iterable[Place]) -> dict[str, Any]:
    """The values without those at some places; later entries of a list go first, so that numbers stay right."""
    rest: dict[str, Any] = deepcopy(dict(found))
    known = {known_place(found, one) for one in faulty} - {()}
    for place in sorted(known, key=_order, reverse=True):
        inside: Any = rest
        for step in place[:-1]:
            inside = inside[step]
        del inside[place[-1]]
    return rest


def _order(place: Place) -> list[tuple[int, str]]:
    return [(step, "") if isinstance(step, int) else (-1, step) for step in place]


def _mistakes(error: ValidationError) -> list[Mistake]:
    """What pydantic objects to; several objections to one value are one mistake."""
    wanted: dict[Place, list[str]] = {}
    given: dict[Place, Any] = {}
    found = []
    for one in error.errors():
        place = one["loc"]
        if one["type"] == "extra_forbidden":
            found.append(Mistake(place, UnknownChoice("setting", str(place[-1]), _fields_at(place[:-1]))))
        else:
            wanted.setdefault(place, []).append(_wanted(one))
            given[place] = one["input"]
    values = [
        Mistake(place, BadValue(".".join(map(str, place)), given[place], " or ".join(said)))
        for place, said in wanted.items()
    ]
    return [*found, *values]


def _wanted(mistake: Any) -> str:
    if mistake["type"] == "too_short":
        return "a list with at least one entry"
    if mistake["type"] in ("model_type", "dict_type"):
        return "a section"
    said = mistake["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    said = said.replace("a valid tuple", "a list")
    return str(said[0].lower() + said[1:])


def _fields_at(place: Place) -> list[str]:
    part: Any = Study
    for step in place:
        kind = part.model_fields[step].annotation
        part = next(one for one in (kind, *get_args(kind)) if hasattr(one, "model_fields"))
    return list(part.model_fields)
