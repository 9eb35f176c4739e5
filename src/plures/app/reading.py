"""Studies from files and from plain values."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from plures.app.check import inspect
from plures.app.mistakes import Findings, Mistake, StudySource, known_place
from plures.app.study import InvalidStudy, Study
from plures.app.toml import Place, lines_of
from plures.errors import BadFile, BadValue, UnknownChoice

RETIRED = {"together"}  # played seeds side by side
IMPORTS = {"import", "imports"}


def read_study(path: Path) -> Study:
    """The study a TOML file describes."""
    source = read_source(path)
    return make_study(dict(source.values), source=source)


def read_source(path: Path) -> StudySource:
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
    text = _find_imports(found, text, path.parent)
    return StudySource(str(path), found, lines_of(text), text)


def _find_imports(found: dict[str, Any], text: str, folder: Path) -> str:
    """Makes the imported files that lie by the study's file absolute; the text with these paths. Others are left alone."""
    for name in IMPORTS & found.keys():
        files = [found[name]] if isinstance(found[name], str) else found[name]
        if not isinstance(files, list):
            continue
        near = {
            one: str((folder / one).resolve()) for one in files if isinstance(one, str) and (folder / one).is_file()
        }
        found[name] = [near.get(one, one) if isinstance(one, str) else one for one in files]
        for one, whole in near.items():
            for quote in "\"'":  # the text is kept with several studies, in another folder
                text = text.replace(f"{quote}{one}{quote}", json.dumps(whole, ensure_ascii=False))
    return text


def make_study(found: dict[str, Any], *, where: str = "the study", source: StudySource | None = None) -> Study:
    """A study from plain values; every mistake is named.

    With a ``source`` they are those of a file, and what is wrong in other ways with the rest of it is named too.
    """
    found = _without_retired(found)
    try:
        return Study(**found)
    except InvalidStudy as error:
        mistakes = _mistakes(error.found)
        if source is None:
            said = dict.fromkeys(str(one.error) for one in mistakes)
            raise BadFile(f"{where}: " + "; ".join(said)) from error
        raise source.refusal([*mistakes, *_others(found, [one.place for one in mistakes])]) from error


def _without_retired(found: dict[str, Any]) -> dict[str, Any]:
    """The settings without those of earlier versions that change no result; what is ignored is said."""
    for name in (one for one in RETIRED & found.keys() if found[one] is not None):
        print(f"{name} is no longer a setting and is ignored", file=sys.stderr)
    return {name: value for name, value in found.items() if name not in RETIRED}


def _others(found: Mapping[str, Any], faulty: list[Place]) -> list[Mistake]:
    """What else is wrong, with the faulty settings left out."""
    findings, rest = Findings(), _without(found, faulty)
    try:
        study = Study(**rest)
    except InvalidStudy as error:  # a list that lost all its entries
        study = Study(**_without(rest, [one["loc"] for one in error.found.errors()]))
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
