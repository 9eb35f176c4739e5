"""Playing a study into its folder: what is said before, while and after it runs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from plures.cli.data import say, tell_notes
from plures.cli.export import tell_kept
from plures.cli.results import keep_command, tell_answer, write_report
from plures.cli.studies import keep_resolved, named, settled, tuned
from plures.config import Source, Study
from plures.data import Federation
from plures.errors import BadFile, BadValue, MethodWarning
from plures.norms import norm_said, norms_said
from plures.report.terminal import DECISIONS_LEGEND, LEGEND, decisions_table, leaderboard, study_bars
from plures.study import Comparison, Guidance, compare, default_methods, default_options, forecasts, guide
from plures.study.guidance import save_guidance
from plures.study.saved import Saved, read_saved
from plures.study.variants import is_varied

console = Console()


def read_json(file: Path) -> dict[str, Any]:
    """The settings in a file that a study left."""
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise BadFile(f"{file} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise BadFile(f"{file} is damaged: it should hold settings by name")
    return found


def claim(out: Path, resolved: dict[str, Any], seen: Federation | None = None) -> None:
    """Make the folder this study's own; one that holds another study is refused.

    With the clients ``seen`` settings that were left out count as what they come to on these. What changes no result counts
    for nothing.
    """
    if out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder")
    if is_varied(out):
        raise BadFile(f"{out} holds several studies; use another folder")
    out.mkdir(parents=True, exist_ok=True)
    file = out / "study.json"
    if file.exists():
        before = {**Study().model_dump(mode="json"), **read_json(file)}  # a setting it did not know yet
        old, new = (settled(one, seen) for one in (before, resolved))
        other = [name for name in {**new, **old} if old.get(name) != new.get(name)]
        if other:
            raise BadFile(f"{out} holds a study with other settings ({', '.join(other)}); use another folder")
    file.write_text(json.dumps(resolved, indent=2))


def _settings(study: Study, seen: Federation) -> dict[str, Any]:
    """What a study says of how its methods are built and trained."""
    return {
        "model": study.model,
        "plan": study.plan.build(),
        "norm": study.norm,
        "rounds": study.rounds,
        "seeds": study.seeds,
        "cohort": study.cohort,
        "channels": study.all_channels(seen),
        "executor": study.executor,
        "eval_every": study.eval_every,
    }


@contextmanager
def noted() -> Iterator[list[str]]:
    """A list that holds, when the block is done, what methods said of their training, each thing once."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MethodWarning)
        yield found
    for one in caught:
        text = str(one.message)
        if not issubclass(one.category, MethodWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        elif text not in found:
            found.append(text)


def tell_forecasts(study: Study, methods: Sequence[str], seen: Federation) -> list[str]:
    """Say what methods cost and what is likely to go wrong; the warnings, which the runs will repeat."""
    found: list[str] = []
    ahead_of = forecasts(
        methods, seen, study.model, study.plan.build(), study.all_channels(seen), study.cohort, study.norm
    )
    for name, ahead in ahead_of.items():
        say(f"{name}: {ahead.cost}", style="dim")
        warned = [f"{name}: {warning}" for warning in ahead.warnings]
        for warning in warned:
            say(f"warning: {warning}", style="yellow")
        found += warned
    return found


def tell_threat(result: Comparison | Guidance) -> None:
    """Say who lied."""
    if result.threat is not None:
        say(result.threat.said)


def play_study(study: Study, out: Path, given: object = None, *, source: Source | None = None) -> Saved:
    """Run a study into a folder and print the leaderboard; ``given`` are the words of the command, if any.

    ``source`` is the file it was read from, if any: mistakes are shown with its lines.
    """
    seen, unseen = study.check(source)
    study = named(study, seen)
    resolved = study.model_dump(mode="json")
    kept = len(list(out.glob("runs/*/*/done.json")))
    claim(out, resolved, seen)
    keep_resolved(study, seen, out)
    keep_command(out, given)
    if kept:
        console.print(f"{kept} finished runs are kept from before in {out}", highlight=False)
    methods = study.methods or default_methods(seen)
    known = tell_forecasts(study, methods, seen)
    best = tuned(study, methods, seen, out)
    resolved = resolved if best is None else {**resolved, "tuned": best.chosen}
    with noted() as notes, study_bars(console) as tell:
        result = compare(
            methods if best is None else best.built,
            seen,
            unseen=unseen,
            out=out,
            progress=tell,
            config=resolved,
            checkpoint_every=study.checkpoint_every,
            keep_models=study.keep_models,
            together=study.together,
            track=study.track,
            **_settings(study, seen),
        )
    about = {**seen.describe(), "unseen_clients": unseen.num_clients if unseen else 0}
    (out / "data.json").write_text(json.dumps(about, indent=2))
    console.print(leaderboard(result, width=console.width))
    console.print(LEGEND, style="dim")
    if result.norms:
        say(norms_said(result.norms))
    for line in result.told:
        say(line)
    tell_threat(result)
    tell_notes(seen, *(note for note in notes if note not in known))
    note = f"{seen.num_clients} clients in training, {unseen.num_clients if unseen else 0} held out"
    console.print(f"{note}; every client: {out / 'clients.csv'}", highlight=False)
    console.print(f"picture: {draw(result, out)}", highlight=False)
    tell_kept(out)
    saved = read_saved(out)
    tell_answer(saved)
    say(f"page: {write_report(saved)}")
    return saved


def play_decisions(study: Study, out: Path, *, errors: float) -> None:
    """Train what clients decide between, write the decisions into a folder and print what they are worth."""
    seen, unseen = study.check()
    methods = (study.methods and named(study, seen).methods) or default_options(seen)
    claim(out, {**study.model_dump(mode="json"), "methods": list(methods), "command": "decide", "errors": errors})
    known = tell_forecasts(study, methods, seen)
    with noted() as notes, study_bars(console) as tell:
        result = guide(
            methods,
            seen,
            unseen=unseen,
            errors=errors,
            progress=tell,
            **_settings(study, seen),
        )
    save_guidance(out, result)
    console.print(decisions_table(result))
    console.print(DECISIONS_LEGEND, style="dim")
    if study.norm != "share":
        say(norm_said(study.norm))
    for line in result.sentences:
        say(line)
    tell_threat(result)
    tell_notes(seen, *(note for note in notes if note not in known))
    say(f"every client: {out / 'decisions.csv'}")
    say(f"picture: {draw(result, out)}")


def draw(result: Comparison | Guidance, out: Path) -> Path:
    """The picture of a result; matplotlib is loaded only here, so that other commands start fast."""
    from plures.report.figures import decisions, overview

    if isinstance(result, Guidance):
        return decisions(result, out / "decisions.png")
    return overview(result, out / "overview.png")


def fresh_folder(name: str) -> Path:
    """A folder under runs/ that does not exist yet."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path, number = Path("runs") / f"{name}-{stamp}", 1
    while path.exists():
        path, number = Path("runs") / f"{name}-{stamp}-{number}", number + 1
    return path
