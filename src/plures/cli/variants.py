"""Several studies from one file, played one after another into one folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from plures.cli.data import say
from plures.cli.playing import play_study
from plures.cli.results import tell_variants
from plures.cli.studies import FREE
from plures.config import Source, Variant, make_variants, read_source
from plures.errors import BadFile, BadValue, UserError
from plures.study.fronts import counted
from plures.study.variants import is_varied, read_index, write_index

console = Console()
FILE = "study.toml"


def play_variants(source: Source, out: Path) -> None:
    """Run every study of a file with ``[vary]``, each into a folder of its own, and say what to take where.

    One that fails while it runs does not keep the others from running.
    """
    variants = _claimed(out, source, make_variants(source))
    said = ", ".join(f"{counted(len(_values(variants, name)), 'value')} of {name}" for name in variants[0].varied)
    say(f"{counted(len(variants), 'variant')}: {said}")
    failed, times = list[str](), list[float]()
    for number, one in enumerate(variants):
        left = _left(times, len(variants) - number)
        console.rule(Text(f"variant {number + 1} of {len(variants)}: {one.label}{left}"))
        began, before = time.monotonic(), _finished(out / one.folder)
        try:
            play_study(one.study, out / one.folder)
        except UserError as error:
            failed.append(one.label)
            say(f"{one.label} failed: {error}", style="red")
        if _finished(out / one.folder) > before:
            times.append(time.monotonic() - began)
    console.rule()
    tell_variants(out)
    if failed:
        raise UserError(f"{len(failed)} of {counted(len(variants), 'variant')} failed: {'; '.join(failed)}")


def _claimed(out: Path, source: Source, variants: list[Variant]) -> list[Variant]:
    """The variants with their folders, after making ``out`` these studies' own; one that holds others is refused."""
    if out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder")
    if (out / "study.json").exists():
        raise BadFile(f"{out} holds one study; use another folder for several")
    out.mkdir(parents=True, exist_ok=True)
    if is_varied(out):
        variants = _known(out, source, variants)
    write_index(out, [(one.label, one.folder, one.varied) for one in variants])
    scratch = out / f"{FILE}.tmp"
    scratch.write_text(source.text)
    scratch.replace(out / FILE)
    return variants


def _known(out: Path, source: Source, variants: Sequence[Variant]) -> list[Variant]:
    """The variants under the labels and folders that they have; the order of settings in the file may be another one."""
    if (out / FILE).exists():
        before, now = read_source(out / FILE).values, source.values
        other = [name for name in {**before, **now} if name not in FREE and before.get(name) != now.get(name)]
        if other:
            raise BadFile(f"{out} holds studies with other settings ({', '.join(other)}); use another folder")
    known = [(label, folder, varied) for label, (folder, varied) in read_index(out).items()]
    found = []
    for one in variants:
        place = next(((label, folder) for label, folder, varied in known if varied == dict(one.varied)), None)
        found.append(one if place is None else replace(one, label=place[0], folder=place[1]))
    return found


def _values(variants: Sequence[Variant], name: str) -> list[Any]:
    found: list[Any] = []
    for one in variants:
        if one.varied[name] not in found:
            found.append(one.varied[name])
    return found


def _finished(folder: Path) -> int:
    """How many runs of a study are finished."""
    return len(list(folder.glob("runs/*/*/done.json")))


def _left(times: Sequence[float], number: int) -> str:
    """How long so many variants will take, by those that were played."""
    if not times:
        return ""
    minutes = sum(times) / len(times) * number / 60
    return f" (about {minutes:.0f} min left)" if minutes >= 1 else " (less than a minute left)"
