"""One file for several studies: the settings it varies, data among them, and the study of every combination.

``[vary]`` has a list for each setting, named with dots where it is in a section: ``"plan.lr" = [0.03, 0.1]``. ``data`` may
be varied as a whole, with an inline table for each data set.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from plures.config.parts import flat
from plures.config.reading import make_study
from plures.config.source import Refused, Source, known_place
from plures.config.study import Study
from plures.errors import BadValue
from plures.toml_lines import Place, line_of, plain_text

VARY = "vary"


@dataclass(frozen=True)
class Variant:
    """One of the studies: what is varied in it, by the names of settings, and the folder for it among the others."""

    label: str
    folder: str
    varied: Mapping[str, Any]
    study: Study


def make_variants(source: Source) -> list[Variant]:
    """The studies of a file with a section ``[vary]``, each of them checked; one error lists every mistake."""
    axes = _axes(source)
    found, wrong = list[Variant](), dict[tuple[int, str], list[str]]()
    combined = list(itertools.product(*(range(len(values)) for values in axes.values())))
    for number, choice in enumerate(combined, start=1):
        varied = {name: axes[name][place] for name, place in zip(axes, choice, strict=True)}
        label = ", ".join(_said(name, value, axes[name]) for name, value in varied.items())
        mine = _chosen(source, axes, dict(zip(axes, choice, strict=True)))
        try:
            study = make_study(dict(mine.values), source=mine)
            study.check(mine)
        except Refused as error:
            for mistake in error.said:
                wrong.setdefault(mistake, []).append(label)
            continue
        found.append(Variant(label, _folder(number, len(combined), label), varied, study))
    if wrong:
        raise Refused(source.where, _told(source, wrong, len(combined)))
    return found


def _axes(source: Source) -> dict[str, list[Any]]:
    """The lists of values by the names of their settings; all that is wrong with them is said at once."""
    given = source.values[VARY]
    if not isinstance(given, Mapping) or not given:
        raise Refused(source.where, [(source.lines.get((VARY,), 0), "vary must be a section with lists of values")])
    axes, wrong = dict(flat(given)), dict[str, str]()
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            wrong[name] = str(BadValue(f"vary.{name}", values, "a list with at least one value"))
        elif any(one in values[:place] for place, one in enumerate(values)):
            wrong[name] = str(BadValue(f"vary.{name}", values, "a list without repeats"))
        elif name.partition(".")[0] == VARY:
            wrong[name] = "vary cannot be varied itself"
        elif outer := next((one for one in axes if name.startswith(f"{one}.")), None):
            wrong[name] = (
                f"vary has {outer} and {name}, which is a part of it; give the values of {name} in those of {outer}"
            )
    if wrong:
        lines = {name: line_of(known_place(source.values, (VARY, name)), source.lines) or 0 for name in wrong}
        raise Refused(source.where, [(lines[name], text) for name, text in wrong.items()])
    return axes


def _chosen(source: Source, axes: Mapping[str, Sequence[Any]], choice: Mapping[str, int]) -> Source:
    """The file as it would be with one value of every setting that is varied; a value has the line it stands on in its list."""
    values = deepcopy({name: value for name, value in source.values.items() if name != VARY})
    lines = dict(source.lines)
    for name, place in choice.items():
        path, listed = tuple(name.split(".")), known_place(source.values, (VARY, name))
        _put(values, path, deepcopy(axes[name][place]), source)
        lines = {at: line for at, line in lines.items() if at[: len(path)] != path}
        lines |= {(*path, *rest): line for rest, line in _under((*listed, place), source.lines)}
    return Source(source.where, values, lines)


def _put(values: dict[str, Any], path: Sequence[str], value: Any, source: Source) -> None:
    inside: Any = values
    for step in path[:-1]:
        inside = inside.setdefault(step, {})
        if not isinstance(inside, dict):
            line = source.lines.get((VARY,), 0)
            raise Refused(source.where, [(line, f"vary has {'.'.join(path)}, but {step} is not a section")])
    inside[path[-1]] = value


def _under(place: Place, lines: Mapping[Place, int]) -> Iterator[tuple[Place, int]]:
    """(what follows a place, line) of everything in it, and of itself."""
    for at, line in lines.items():
        if at[: len(place)] == place:
            yield at[len(place) :], line


def _told(source: Source, wrong: Mapping[tuple[int, str], Sequence[str]], total: int) -> Iterator[tuple[int, str]]:
    """Mistakes with their lines; one that only some variants have, and that stands elsewhere, is said with the first of them."""
    varied = {line for at, line in source.lines.items() if at[0] == VARY}
    for (line, text), labels in wrong.items():
        yield line, text if len(labels) == total or line in varied else f"{text} (with {labels[0]})"


def _said(name: str, value: Any, values: Sequence[Any]) -> str:
    """A setting and one of its values, in short; data go without the name of the setting."""
    same = [one for one in flat(value) if all(one in flat(other) for other in values)] if _tables(values) else []
    text = value_said(value, without=[part for part, _ in same])
    return text if name in ("data", "data.name") else f"{name}={text}"


def _tables(values: Sequence[Any]) -> bool:
    return all(isinstance(one, Mapping) for one in values)


def value_said(value: Any, without: Sequence[str] = ()) -> str:
    """A value in a few words; a data set as on the command line, some of its settings left out.

    >>> value_said({"name": "two_means", "options": {"rows": 40, "dim": 2}}, without=["options.dim"])
    'two_means:rows=40'
    >>> value_said([1, "a"]), value_said(True)
    ('1+a', 'true')
    """
    if isinstance(value, Mapping):
        told = [(name, one) for name, one in flat(value) if name != "name" and name not in without]
        parts = ",".join(f"{name.rpartition('.')[2]}={value_said(one)}" for name, one in told)
        return ":".join(text for text in (value_said(value.get("name", "")), parts) if text)
    if isinstance(value, list):
        return "+".join(map(value_said, value))
    return value if isinstance(value, str) else plain_text(value)


def _folder(number: int, total: int, label: str) -> str:
    """A short name that any disk takes; the number tells apart what is cut."""
    plain = re.sub(r"[^A-Za-z0-9._=+-]+", "-", label)[:60].strip("-.")
    return f"{number:0{len(str(total))}d}-{plain}"
