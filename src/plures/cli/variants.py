"""Several studies from one file, played one after another into one folder."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from plures.cli.data import say
from plures.cli.playing import play_study
from plures.cli.results import tell_variants
from plures.cli.studies import FREE
from plures.config import Source, Variant, make_variants
from plures.errors import BadFile, BadValue
from plures.study.fronts import counted
from plures.study.variants import write_index
from plures.toml_lines import as_toml

console = Console()
FILE = "study.toml"
TITLE = "# Several studies; `plures run` takes it.\n\n"


def play_variants(source: Source, out: Path) -> None:
    """Run every study of a file with ``[vary]``, each into a folder of its own, and say what to take where."""
    variants = make_variants(source)
    _claim(out, source.values, variants)
    said = ", ".join(f"{counted(len(_values(variants, name)), 'value')} of {name}" for name in variants[0].varied)
    say(f"{counted(len(variants), 'variant')}: {said}")
    began = time.monotonic()
    for number, one in enumerate(variants):
        console.rule(f"variant {number + 1} of {len(variants)}: {one.label}{_left(began, number, len(variants))}")
        play_study(one.study, out / one.folder)
    console.rule()
    tell_variants(out)


def _claim(out: Path, values: Mapping[str, Any], variants: list[Variant]) -> None:
    """Make the folder these studies' own; one that holds others is refused."""
    if out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder")
    if (out / "study.json").exists():
        raise BadFile(f"{out} holds one study; use another folder for several")
    out.mkdir(parents=True, exist_ok=True)
    if (out / FILE).exists():
        before = tomllib.loads((out / FILE).read_text())
        other = [name for name in {**before, **values} if name not in FREE and before.get(name) != values.get(name)]
        if other:
            raise BadFile(f"{out} holds studies with other settings ({', '.join(other)}); use another folder")
    (out / FILE).write_text(TITLE + as_toml(values))
    write_index(out, [(one.label, one.folder, one.varied) for one in variants])


def _values(variants: list[Variant], name: str) -> list[Any]:
    found: list[Any] = []
    for one in variants:
        if one.varied[name] not in found:
            found.append(one.varied[name])
    return found


def _left(began: float, done: int, total: int) -> str:
    """How long the rest will take, by those that are done."""
    if not done:
        return ""
    minutes = (time.monotonic() - began) / done * (total - done) / 60
    return f" (about {minutes:.0f} min left)" if minutes >= 1 else " (less than a minute left)"
