"""``plures compare``, ``run`` and ``resume``: one study or several run, and what each came to is printed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from plures.cli.export import tell_states
from plures.cli.finished_studies import print_leaderboard, print_recommendation, print_variants
from plures.cli.terminal import collect_warnings, console, listener, say, tell_notes
from plures.errors import UserError
from plures.wording import counted

if TYPE_CHECKING:
    from plures.app import Study, StudyFolder, StudySource, Variant
    from plures.app.several import VariantRun
    from plures.study.variants import Variants


def print_study(
    study: Study, out: Path, words: Sequence[str] = (), *, source: StudySource | None = None
) -> StudyFolder:
    """Run a study into a folder and print what it came to; ``words`` are those of the command, if any.

    ``source`` is the file it was read from, if any: mistakes are shown with its lines.
    """
    from plures.app import run_study
    from plures.study.disk import layout
    from plures.study.shortfalls import shortfalls
    from plures.wrap.norms import norms_said

    known = list[str]()
    with collect_warnings() as notes:
        done = run_study(study, out, listener(known), source=source, command=command_text(words))
    result = done.comparison
    print_leaderboard(result)
    if result.norms:
        say(norms_said(result.norms))
    for line in (*result.told, *(one.said for one in shortfalls(result))):
        say(line)
    if result.attackers is not None:
        say(result.attackers.said)
    seen, unseen = done.given.federation, done.given.unseen
    assert seen is not None
    tell_notes(seen, *(note for note in notes if note not in known))
    note = f"{seen.num_clients} clients in training, {unseen.num_clients if unseen else 0} held out"
    console.print(f"{note}; every client: {out / layout.CLIENTS_CSV}", highlight=False)
    console.print(f"picture: {out / layout.OVERVIEW}", highlight=False)
    tell_states(out)
    print_recommendation(done.saved)
    say(f"page: {out / layout.PAGE}")
    return done


def command_text(words: Sequence[str]) -> str:
    """What was typed, without the folder; empty if nothing was.

    >>> command_text(("compare", "--out", "here", "-m", "fedavg"))
    'plures compare -m fedavg'
    """
    kept, rest = list[str](), iter(words)
    for word in rest:
        if word == "--out":
            next(rest, None)
        elif not word.startswith("--out="):
            kept.append(word)
    return f"plures {shlex.join(kept)}" if kept else ""


def print_all(source: StudySource, out: Path) -> None:
    """Run every study of a file with ``[vary]``, each into a folder of its own, and say what to take where."""
    from plures.app.several import run_variants

    run_variants(source, out, run=_run, begin=_begin, end=_end)


def _run(one: Variant, folder: Path) -> None:
    try:
        print_study(one.study, folder)
    except UserError as error:
        say(f"{one.label} failed: {error}", style="red")
        raise


def _begin(now: VariantRun) -> None:
    one, total = now.variants[now.index], len(now.variants)
    if not now.index:
        values = {name: {repr(other.varied[name]) for other in now.variants} for name in one.varied}
        said = ", ".join(f"{counted(len(each), 'value')} of {name}" for name, each in values.items())
        say(f"{counted(total, 'variant')}: {said}")
    console.rule(Text(f"variant {now.index + 1} of {total}: {one.label}{_left(now.times, total - now.index)}"))


def _end(found: Variants, page: Path) -> None:
    console.rule()
    print_variants(found, page)


def _left(times: Sequence[float], number: int) -> str:
    """How long so many variants will take, by those that were run."""
    if not times:
        return ""
    minutes = sum(times) / len(times) * number / 60
    return f" (about {minutes:.0f} min left)" if minutes >= 1 else " (less than a minute left)"
