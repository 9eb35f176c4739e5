"""``plures export``: personal models out of a study's folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from plures.cli.data import console, say
from plures.config import Study, make_study
from plures.data import Federation
from plures.engine import Run, Settings
from plures.errors import BadFile, BadValue, UnknownChoice, Unsupported, UserError
from plures.registry import METHODS, Named
from plures.report.terminal import plain_table
from plures.study import build_method, build_model, default_model
from plures.study.folder import label_of, run_folder
from plures.study.keeping import done_of, has_models, kept_bytes, kept_run
from plures.study.saved import check_single
from plures.study.store import ABOUT, StoredModel, read_about, save_model
from plures.study.trials import CHOSEN, chosen_in
from plures.study.trials import FOLDER as TUNING

MODELS = "models"
LONGEST = 120  # bytes of a folder's name; file systems take 255, and paths have limits too


def export_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a study (plures compare, plures run).")],
    client: Annotated[
        list[str] | None, typer.Option("--client", help="A client's name or uid; repeatable.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every client.")] = False,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Default: the best of the leaderboard.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Default: the study's first.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Default: DIR/models/METHOD/seed-N.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List what can be exported, and what was.")] = False,
) -> None:
    """Write a client's model to OUT/CLIENT, where plures.load_model reads it, or list models."""
    study = _study(folder)
    if listing:
        list_models(folder)
        return
    if bool(client) == every:
        raise BadValue("client", client, "a client's name or uid, several of them, or --all instead")
    name, number = _chosen(folder, study, method, seed)
    run, about = open_run(folder, study, name, number)
    clients = run.runner.everyone.names if every else [_named(run, one) for one in client or ()]
    target = out or folder / MODELS / _folder_name(name) / f"seed-{number}"
    for one in clients:
        stored = save_model(run, one, target / _folder_name(one), **about)
        if not every:
            say(_said(stored, target / _folder_name(one)))
    if every:
        say(f"{len(clients)} models of {name}, seed {number}: {target}")


def open_run(folder: Path, study: Study, name: str, seed: int) -> tuple[Run, dict[str, Any]]:
    """A run of a study as it ended, and what its models are to say of themselves."""
    place = run_folder(folder, name, seed)
    done = done_of(place)
    try:
        seen, unseen = study.federations()
    except UserError as error:
        raise BadFile(
            f"a model is made from the kept state and the client's data, and these are gone: {error}"
        ) from error
    model = study.model or default_model(seen)
    text, lr = _text_of(folder, study, name)
    plan = replace(study.plan.build(), lr=lr)
    built = build_method(text, build_model(model, seen), plan=plan, facts=seen.known, norm=study.norm)
    tuned = None if study.tune is None else text
    run = kept_run(place, built, seen, unseen=unseen, settings=_settings(study, seen, seed), tuned=tuned)
    lineage = {"study": folder.resolve().name, "run": str(place.relative_to(folder)), "mark": done.get("mark")}
    return run, {"method": text, "model": model, "norm": study.norm, "lineage": lineage}


def _text_of(folder: Path, study: Study, name: str) -> tuple[str, float]:
    """What a method of a study stands for: its text, and the step size."""
    chosen = chosen_in(folder)
    if study.tune is not None and name not in chosen:
        file = folder / TUNING / CHOSEN
        raise BadFile(
            f"the study was tuned, and {file} does not say what {name} stands for; plures resume {folder}"
        )
    return chosen.get(name, (name, study.plan.lr))


def list_models(folder: Path) -> None:
    """Print which runs kept their models, and which models were exported."""
    kept = _table("Runs", "method", "seed", "models")
    for place in sorted(folder.glob("runs/*/seed-*")):
        state = "kept" if has_models(place) else "not kept" if (place / "done.json").exists() else "not finished"
        kept.add_row(label_of(place.parent), place.name.removeprefix("seed-"), state)
    console.print(kept)
    say(f"kept states: {kept_bytes(folder) / 1e6:.2f} MB")
    found = sorted((folder / MODELS).glob(f"*/*/*/{ABOUT}"))
    if not found:
        say(f"exported: none yet; plures export {folder} --client NAME")
        return
    table = _table("Exported", "client", "method", "seed", "parameters", "KB")
    damaged = []
    for file in found:
        try:
            table.add_row(*_listed(read_about(file.parent)))
        except BadFile as error:
            damaged.append(str(error))
    console.print(table)
    for line in damaged:
        say(line)


def _listed(about: Mapping[str, Any]) -> list[str]:
    """A model as a row of the list; what its file does not say is left empty."""
    numbers = (about.get("parameters"), about.get("bytes"))
    parameters, size = (one if isinstance(one, int) else None for one in numbers)
    said = [str(about.get(name) or "") for name in ("name", "method")]
    counts = ["" if parameters is None else f"{parameters:,}", "" if size is None else f"{size / 1e3:.1f}"]
    return [*said, str(about.get("seed", "")), *counts]


def tell_kept(folder: Path) -> None:
    """Say what kept models take on the disk, and how to get at them."""
    size = kept_bytes(folder)
    if size:
        say(f"models: {size / 1e6:.1f} MB of kept states; plures export {folder} --client NAME")


def _table(title: str, *columns: str) -> Table:
    table = plain_table(title)
    for name in columns:
        table.add_column(name, justify="right" if name in ("seed", "parameters", "KB") else "left")
    return table


def _study(folder: Path) -> Study:
    check_single(folder)
    file = folder / "study.json"
    if not file.exists():
        raise BadFile(f"{folder} holds no study (there is no {file.name} in it); give the folder of a comparison")
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise BadFile(f"{file} is damaged: {error}") from error
    if isinstance(found, dict) and "command" in found:
        raise BadFile(f"{folder} is of plures {found['command']}; models are exported from a comparison")
    return make_study(found, where=str(file))


def _chosen(folder: Path, study: Study, method: str | None, seed: int | None) -> tuple[str, int]:
    """The run that is meant: by default the first of the leaderboard with the first seed."""
    number = study.seeds[0] if seed is None else seed
    if number not in study.seeds:
        raise BadValue("seed", number, f"one of {', '.join(map(str, study.seeds))}")
    known = study.methods or [label_of(place) for place in folder.glob("runs/*")]
    if method is None:
        return _best(folder), number
    if method not in known:
        raise UnknownChoice("method of this study", method, known)
    return method, number


def _best(folder: Path) -> str:
    """The first of the leaderboard; not one that is told the planted groups, which no real client could be served with."""
    file = folder / "summary.json"
    try:
        board = [str(row["method"]) for row in json.loads(file.read_text())["leaderboard"]]
    except (OSError, ValueError, KeyError) as error:
        raise BadFile(
            f"{folder} has no leaderboard yet; say --method, or finish the study with plures resume"
        ) from error
    real = [name for name in board if "oracle" not in Named.parse(name.split("|")[0], METHODS).entry.tags]
    return (real or board)[0]


def _named(run: Run, client: str) -> str:
    """A client's name, given by its name or uid."""
    names = run.runner.everyone.names
    if client not in names and client.isdecimal() and int(client) < len(names):
        return names[int(client)]
    if client not in names and run.runner.method.transductive:
        raise Unsupported(f"'{client}' is no client in training, and this method serves only those")
    if client not in names:
        raise UnknownChoice("client", client, names)
    return client


def _settings(study: Study, seen: Federation, seed: int) -> Settings:
    return Settings(
        rounds=study.rounds,
        seed=seed,
        cohort=study.cohort,
        channels=study.all_channels(seen),
        executor=study.executor,
        eval_every=study.eval_every,
    )


def _said(stored: StoredModel, folder: Path) -> str:
    about = stored.about
    size = f"{about['parameters']:,} parameters, {about['bytes'] / 1e3:.1f} KB"
    return f"{about['name']}: {about['method']}, seed {about['seed']}, {size}: {folder}"


def _folder_name(text: str) -> str:
    """A text as the name of a folder; different texts have different ones.

    Letters and digits of any script are kept. A name that is longer than file systems take is cut, and ends in a hash.

    >>> _folder_name("Zürich/北")
    'Zürich%2F北'
    """
    name = "".join(one if one.isalnum() else quote(one, safe=" =,+") for one in text)
    if len(name.encode()) > LONGEST:
        start = name.encode()[:LONGEST].decode(errors="ignore")
        return f"{start}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return name if name.strip(".") else name.replace(".", "%2E")
