"""Whose a folder is: what it says that it holds, and a refusal to mix one study with another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from plures.app.reading import RETIRED, make_study
from plures.app.study import Study
from plures.data import Federation
from plures.errors import BadFile, BadValue, UserError
from plures.study.disk import layout
from plures.study.variants import is_varied

FREE = ("executor", "checkpoint_every", "keep_models", "references", "track", "imports", "import")
"""Settings that change no result: a study may go on with others. Imported files may lie elsewhere: runs know their programs."""

BEFORE = {"patience": 0}
"""What studies came to before they had a setting, where that is not its default."""

UNSAID = "python"
"""Where study.json says in words what was made in Python and no text can name."""

Settings = dict[str, Any]


def claim(out: Path, settings: Settings, seen: Federation | None = None, *, free: Sequence[str] = FREE) -> None:
    """Make the folder this study's own; one that holds another study is refused.

    With the clients ``seen`` settings that were left out count as what they come to on these. What is ``free`` counts for
    nothing.
    """
    if out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder")
    if is_varied(out):
        raise BadFile(f"{out} holds several studies; use another folder")
    file = out / layout.STUDY
    if file.exists():
        known = {**Study().model_dump(mode="json"), **BEFORE}  # a setting that the older one did not know yet
        before, now = ({**known, **_counting(one)} for one in (layout.read_json(file), settings))
        other = _differing(before, now, free)
        if other and seen is not None:
            other = _differing(_resolved({**before, "imports": now["imports"]}, seen), _resolved(now, seen), free)
        if other:
            raise BadFile(f"{out} holds a study with other settings ({', '.join(other)}); use another folder")
    layout.write_json(file, settings)


def _counting(settings: Settings) -> Settings:
    """The settings without those that are no longer there, and without an empty list of what was made in Python."""
    gone = (*RETIRED, *([] if settings.get(UNSAID) else [UNSAID]))
    return {name: value for name, value in settings.items() if name not in gone}


def _differing(before: Settings, now: Settings, free: Sequence[str]) -> list[str]:
    names = [name for name in {**now, **before} if name not in free]
    return [name for name in names if before.get(name) != now.get(name)]


def _resolved(settings: Settings, seen: Federation) -> Settings:
    """The settings with every default filled in; as they stand if they are of another command, or for other data."""
    with suppress(UserError):
        return make_study(settings).prepare(data=(seen, None)).resolved
    return settings


def read_settings(folder: Path, *, of: str = "run") -> tuple[Settings, dict[str, str]]:
    """(settings, what they do not say since it was made in Python) of the study in a folder."""
    file = folder / layout.STUDY
    if not file.exists():
        raise BadFile(f"{folder} holds no study (there is no {file.name} in it); give the folder of a {of}")
    found = layout.read_json(file)
    unsaid = found.pop(UNSAID, None)
    return found, {str(name): str(words) for name, words in unsaid.items()} if isinstance(unsaid, Mapping) else {}


def unnamable(folder: Path, unsaid: Mapping[str, str], how: str) -> BadFile:
    """The refusal of a study that cannot be made again from texts, and what to do."""
    words = "; ".join(f"{name}: {one}" for name, one in unsaid.items())
    return BadFile(f"{folder} was written from Python with what no text can name ({words}); {how}")


def study_in(folder: Path) -> Study:
    """The study in a folder; one that was made in Python, and that no text can name, is refused."""
    found, unsaid = read_settings(folder)
    found = found if "command" in found else {**BEFORE, **found}
    if unsaid:
        raise unnamable(folder, unsaid, "call plures.compare again with the same arguments")
    return make_study(found, where=str(folder / layout.STUDY))
