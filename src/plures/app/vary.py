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
from typing import Any, NamedTuple

from plures.app.mistakes import Refused, StudySource
from plures.app.reading import make_study
from plures.app.study import Study
from plures.app.toml import Place, line_of, plain_text
from plures.errors import BadValue
from plures.study.disk.layout import flat

VARY = "vary"


@dataclass(frozen=True)
class Variant:
    """One of the studies: what is varied in it, by the names of settings, and the folder for it among the others."""

    label: str
    folder: str
    varied: Mapping[str, Any]
    study: Study


class Axis(NamedTuple):
    """A setting that is varied: where its list stands in the file, and the values."""

    place: Place
    values: list[Any]


def make_variants(source: StudySource) -> list[Variant]:
    """The studies of a file with a section ``[vary]``, each of them checked; one error lists every mistake."""
    axes, faulty = _axes(source)
    found, wrong = list[Variant](), dict[tuple[int, str], list[str]]()
    combined = list(itertools.product(*(range(len(one.values)) for one in axes.values())))
    labels: dict[str, int] = {}
    for number, choice in enumerate(combined, start=1):
        chosen = dict(zip(axes, choice, strict=True))
        varied = {name: axes[name].values[place] for name, place in chosen.items()}
        label = ", ".join(_said(name, value, axes[name].values) for name, value in varied.items())
        label = f"{label} ({number})" if labels.setdefault(label, number) != number else label
        try:
            mine = _chosen(source, axes, chosen)
            study = make_study(dict(mine.values), source=mine)
            study.check(mine)
        except Refused as error:
            for mistake in error.said:
                wrong.setdefault(mistake, []).append(label)
            continue
        found.append(Variant(label, _folder(number, len(combined), label), varied, study))
    if wrong or faulty:
        raise Refused(source.where, [*faulty, *_told(source, wrong, len(combined))])
    return found


def _axes(source: StudySource) -> tuple[dict[str, Axis], list[tuple[int, str]]]:
    """What is varied, by the names of settings, and (line, text) of what is wrong with the others."""
    given = source.values.get(VARY)
    listed = list(leaves(given, (VARY,))) if isinstance(given, Mapping) else []
    if not listed:
        return {}, [(source.lines.get((VARY,), 0), "vary must be a section with lists of values")]
    axes, wrong = dict[str, Axis](), list[tuple[int, str]]()
    for place, values in listed:
        name = ".".join(map(str, place[1:]))
        problem = _problem(name, values, axes)
        if problem:
            wrong.append((line_of(place, source.lines) or 0, problem))
        else:
            axes[name] = Axis(place, values)
    return axes, wrong


def leaves(given: Mapping[str, Any], place: Place) -> Iterator[tuple[Place, Any]]:
    """(place, value) of everything in tables and in tables in them."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*place, name))
        else:
            yield (*place, name), value


def _problem(name: str, values: Any, others: Mapping[str, Axis]) -> str:
    """What is wrong with a setting that is varied beside others; empty where nothing is."""
    if not isinstance(values, list) or not values:
        return str(BadValue(f"vary.{name}", values, "a list with at least one value"))
    if any(one in values[:place] for place, one in enumerate(values)):
        return str(BadValue(f"vary.{name}", values, "a list without repeats"))
    if name.partition(".")[0] == VARY:
        return "vary cannot be varied itself"
    if name in others:
        return f"vary has {name} twice, with and without quotes"
    for one in others:
        outer, inner = sorted((one, name), key=len)
        if inner.startswith(f"{outer}."):
            return f"vary has {outer} and {inner}, which is a part of it; give the values of {inner} in those of {outer}"
    return ""


def _chosen(source: StudySource, axes: Mapping[str, Axis], choice: Mapping[str, int]) -> StudySource:
    """The file as it would be with one value of every setting that is varied; a value has the line it stands on in its list."""
    values = deepcopy({name: value for name, value in source.values.items() if name != VARY})
    lines = dict(source.lines)
    for name, number in choice.items():
        axis = axes[name]
        try:
            path = _put(values, name.split("."), deepcopy(axis.values[number]))
        except BadValue as error:
            raise Refused(source.where, [(line_of(axis.place, source.lines) or 0, str(error))]) from error
        lines |= {(*path, *rest): line for rest, line in _under((*axis.place, number), source.lines)}
    return StudySource(source.where, values, lines)


def _put(values: dict[str, Any], steps: Sequence[str], value: Any) -> Place:
    """Put a value where its name leads; returns the way to it. A name with dots may stand there in quotes."""
    inside: Any = values
    for number, step in enumerate(steps[:-1]):
        quoted = ".".join(steps[number:])
        if quoted in inside:
            inside[quoted] = value
            return (*steps[:number], quoted)
        inside = inside.setdefault(step, {})
        if not isinstance(inside, dict):
            raise BadValue(f"vary.{'.'.join(steps)}", value, f"left out: {step} is not a section")
    inside[steps[-1]] = value
    return tuple(steps)


def _under(place: Place, lines: Mapping[Place, int]) -> Iterator[tuple[Place, int]]:
    """(what follows a place, line) of everything in it, and of itself."""
    for at, line in lines.items():
        if at[: len(place)] == place:
            yield at[len(place) :], line


def _told(
    source: StudySource, wrong: Mapping[tuple[int, str], Sequence[str]], total: int
) -> Iterator[tuple[int, str]]:
    """Mistakes with their lines; one that only some variants have, and that stands elsewhere, is said with the first of them."""
    varied = {line for at, line in source.lines.items() if at[0] == VARY}
    for (line, text), labels in wrong.items():
        yield line, text if len(labels) == total or line in varied else f"{text} (with {labels[0]})"


def _said(name: str, value: Any, values: Sequence[Any]) -> str:
    """A setting and one of its values, in short; data go without the name of the setting."""
    tables = [list(flat(one)) for one in values if isinstance(one, Mapping)]
    shared = flat(value) if len(tables) == len(values) else ()
    text = value_said(
        value, without=[part for part, one in shared if all((part, one) in other for other in tables)]
    )
    return text if name in ("data", "data.name") else f"{name}={text}"


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
