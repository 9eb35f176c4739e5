"""The results of a study on disk: its tables are written, and read back; what can be shown is shown, what is missing is said."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from plures._version import __version__
from plures.engine import AttackSummary
from plures.errors import BadFile
from plures.study.comparison import Comparison, honest_of
from plures.study.disk import layout
from plures.study.disk.references import read_references
from plures.study.disk.runs import RunTables, read_tables, stack_tables, told_by
from plures.study.recommendation import recommend

RunName = tuple[str, int]
"""(label of the method, seed)"""


@dataclass(frozen=True)
class SavedStudy:
    """A study's folder. ``curves`` has a row per (method, seed, round): megabytes per client so far, the mean valid score
    of clients in training and its standard error. ``missing`` says, a line each, what cannot be shown."""

    folder: Path
    result: Comparison
    curves: pl.DataFrame
    study: Mapping[str, Any]
    data: Mapping[str, Any]
    about: Mapping[str, Any]  # versions, device
    missing: tuple[str, ...]
    command: str

    @property
    def seeds(self) -> list[int]:
        """The seeds that are compared."""
        return self.result.clients["seed"].unique().sort().to_list()


def save_comparison(out: Path, result: Comparison) -> None:
    """The tables of the whole study."""
    out.mkdir(parents=True, exist_ok=True)
    result.clients.write_parquet(out / layout.CLIENTS)
    result.clients.write_csv(out / layout.CLIENTS_CSV)
    result.leaderboard.write_csv(out / layout.LEADERBOARD)
    about: dict[str, Any] = {
        "metric": result.metric,
        "higher_is_better": result.higher_is_better,
        "leaderboard": result.leaderboard.to_dicts(),
        "recommendation": recommend(result)._asdict(),
    }
    if result.norms:
        about["norm"] = dict(result.norms)
    if result.attackers is not None:
        about["attack"] = about_attackers(result.attackers)
    layout.write_json(out / layout.SUMMARY, about)


def about_attackers(attackers: AttackSummary) -> dict[str, Any]:
    """Which attacks, and by how many, for a summary."""
    return {**attackers._asdict(), "said": attackers.said}


def saved_study(result: Comparison, folder: Path) -> SavedStudy:
    """A comparison that was just made into a folder, with what else lies there; nothing is computed again."""
    names = [(str(name), int(seed)) for name, seed in result.clients.select("method", "seed").unique().iter_rows()]
    runs = {
        run: layout.run_folder(folder, *run)
        for run in sorted(names, key=lambda run: (result.methods.index(run[0]), run[1]))
    }
    return _saved(folder, result, runs, _settings(folder, layout.STUDY, []), [])


def read_results(folder: str | Path) -> SavedStudy:
    """The study in a folder that ``plures compare`` or ``plures run`` wrote, half written ones included."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BadFile(f"there is no folder {folder}; give one that plures compare or plures run wrote")
    check_single(folder)
    missing: list[str] = []
    study = _settings(folder, layout.STUDY, missing)
    if study.get("command"):
        raise BadFile(f"{folder} holds results of plures {study['command']}, which have no report page")
    places = _places(folder, study)
    runs = _runs(places, missing)
    if not runs:
        more = f"; go on with: plures resume {folder}" if study else ""
        raise BadFile(f"{folder} holds no {f'finished run{more}' if places else 'study (no runs in it)'}")
    whole = len(runs) == len(places)
    runs, left = _comparable(runs)
    missing += left
    if not whole and study:
        missing.append(f"finish the study with: plures resume {folder}")
    headers = {run: _header(places[run]) for run in runs}
    result = _comparison(runs, headers, _settings(folder, layout.SUMMARY, []), study)
    result = replace(result, references=read_references(folder))
    return _saved(folder, result, {run: places[run] for run in runs}, study, missing)


def _saved(
    folder: Path, result: Comparison, runs: Mapping[RunName, Path], study: Mapping[str, Any], missing: list[str]
) -> SavedStudy:
    headers = [_header(place) for place in runs.values()]
    return SavedStudy(
        folder=folder,
        result=result,
        curves=pl.concat([_curve(place, run, result) for run, place in runs.items()]),
        study=study,
        data=_settings(folder, layout.DATA, []),
        about={name: headers[0].get(name) for name in ("versions", "device", "platform")},
        missing=(*missing, *_older(headers)),
        command=_command(folder),
    )


def check_single(folder: Path) -> None:
    """Refuse a folder that holds several studies."""
    if (folder / layout.VARIANTS).exists():
        names = sorted(one.name for one in folder.iterdir() if (one / layout.STUDY).exists())
        raise BadFile(f"{folder} holds several studies; name one of them: {', '.join(names) or 'none has begun'}")


def _settings(folder: Path, name: str, missing: list[str]) -> dict[str, Any]:
    """A file of settings; an empty one where there is none, or where it is damaged."""
    try:
        return layout.read_json(folder / name)
    except BadFile:
        wrong = f"{name} is damaged" if (folder / name).exists() else f"there is no {name}"
        missing.append(f"{wrong}: the settings of the study are unknown")
        return {}


def _command(folder: Path) -> str:
    """What was typed; for a study from a file or from Python, how to run the file that lies beside the results."""
    file = folder / layout.COMMAND
    if file.exists():
        return file.read_text().strip()
    return f"plures run {layout.RESOLVED}" if (folder / layout.RESOLVED).exists() else ""


def _places(folder: Path, study: Mapping[str, Any]) -> dict[RunName, Path]:
    """Where the runs of a study lie, or should lie: those it names first, in its order."""
    found = {}
    for place in sorted(folder.glob(f"{layout.RUNS}/*/seed-*")):
        seed = place.name.removeprefix("seed-")
        if seed.isdigit() and place.is_dir():
            found[layout.label_of(place.parent), int(seed)] = place
    if not found:
        return {}
    names = _asked(folder, study)
    seeds = [seed for seed in study.get("seeds") or () if isinstance(seed, int)]
    wanted = {(name, seed): layout.run_folder(folder, name, seed) for name in names for seed in seeds}
    return {**wanted, **{run: place for run, place in found.items() if place not in wanted.values()}}


def _asked(folder: Path, study: Mapping[str, Any]) -> list[str]:
    """The methods a study names; where it left that to plures, those of the file that lies beside the results."""
    names = study.get("methods")
    if not names and (folder / layout.RESOLVED).exists():
        try:
            names = tomllib.loads((folder / layout.RESOLVED).read_text()).get("methods")
        except (OSError, ValueError):
            names = None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _runs(places: Mapping[RunName, Path], missing: list[str]) -> dict[RunName, RunTables]:
    """Finished runs; the others are said to be missing."""
    runs = {}
    for (name, seed), place in places.items():
        if not (place / layout.DONE).exists():
            missing.append(f"{name}, seed {seed}: not {'finished' if place.exists() else 'started'}")
            continue
        try:
            runs[name, seed] = read_tables(place)
        except BadFile as error:
            missing.append(f"{name}, seed {seed}: {error}")
    return runs


def _header(place: Path) -> dict[str, Any]:
    """What a record says of itself; nothing if it was written before records did."""
    try:
        found = json.loads(pl.read_parquet_metadata(place / layout.RECORD).get(layout.HEADER, "{}"))
    except (OSError, ValueError, pl.exceptions.PolarsError):
        return {}
    return found if isinstance(found, dict) else {}


def _comparable(runs: Mapping[RunName, RunTables]) -> tuple[dict[RunName, RunTables], list[str]]:
    """Runs of seeds that all methods have finished; methods with the fewest seeds go first where there are none."""
    names = list(dict.fromkeys(name for name, _ in runs))
    seeds = {name: {seed for other, seed in runs if other == name} for name in names}
    kept = sorted(names, key=lambda name: -len(seeds[name]))
    while not set.intersection(*(seeds[name] for name in kept)):
        kept.pop()
    common = set.intersection(*(seeds[name] for name in kept))
    others = _other_clients({run: one for run, one in runs.items() if run[0] in kept and run[1] in common})
    runs = {run: one for run, one in runs.items() if run[0] not in others}
    left = [f"{name}: left out, it has other clients than the rest" for name in others]
    kept = [name for name in kept if name not in others]
    rest = [f"{name}, seed {seed}" for name, seed in runs if name in kept and seed not in common]
    left += [f"{run}: left out, the other methods have not finished it" for run in rest]
    gone = [name for name in names if name not in kept]
    left += [f"{name}: left out, it has finished no seed that the others have" for name in gone]
    return {run: one for run, one in runs.items() if run[0] in kept and run[1] in common}, left


def _other_clients(runs: Mapping[RunName, RunTables]) -> list[str]:
    """Methods with a run whose training clients are not those of the first run."""
    clients = {run: tuple(one.clients.filter(pl.col("seen"))["uid"].sort()) for run, one in runs.items()}
    first = next(iter(clients.values()))
    return list(dict.fromkeys(name for (name, _), uids in clients.items() if uids != first))


def _comparison(
    runs: Mapping[RunName, RunTables],
    headers: Mapping[RunName, Mapping[str, Any]],
    summary: Mapping[str, Any],
    study: Mapping[str, Any],
) -> Comparison:
    clients = stack_tables({run: one.clients for run, one in runs.items()})
    about = {**next(iter(headers.values())), **summary}
    metric = about.get("metric") or layout.metric_in(clients.columns)
    higher = about.get("higher_is_better", metric == "accuracy")
    norms = {name: how for (name, _), one in headers.items() if (how := one.get("norm"))}
    return Comparison(clients, metric, higher, attackers=_attackers(clients, study), norms=norms, **told_by(runs))


def _attackers(clients: pl.DataFrame, study: Mapping[str, Any]) -> AttackSummary | None:
    """Who attacked, as the table of clients has it."""
    if layout.ATTACKER not in clients.columns:
        return None
    once = clients.filter(pl.col("seen")).unique("uid")
    names = tuple(str(one).partition(":")[0].replace("-", "_") for one in study.get("attack") or ())
    return AttackSummary(names or ("an attack",), int(once[layout.ATTACKER].fill_null(False).sum()), once.height)


def _older(headers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which other versions of plures wrote the runs."""
    wrote = {(one.get("versions") or {}).get("plures") for one in headers} - {__version__}
    unknown = "written by a version that did not say its own"
    said = f"written by plures {{}}, read by {__version__}"
    return [said.format(one) if one else unknown for one in sorted(wrote, key=str)]


NO_CURVE = {"method": pl.String, "seed": pl.Int64, "round": pl.Int64} | dict.fromkeys(
    ("mb", "mean", "error"), pl.Float64
)


def _curve(place: Path, run: RunName, result: Comparison) -> pl.DataFrame:
    """Mean valid scores of clients in training after every evaluation of a run; no row where its record is damaged."""
    name, seed = run
    mine = honest_of(result.clients).filter(pl.col("method") == name, pl.col("seed") == seed, pl.col("seen"))
    try:
        record = pl.read_parquet(place / layout.RECORD)
        kept = (pl.col("kind") == "personal") & (pl.col("split") == "valid") & (pl.col("metric") == result.metric)
        scores = record.filter(kept & pl.col("uid").is_in(mine["uid"].cast(pl.Int32).implode()))
        value = pl.col("value").cast(pl.Float64)
        spread = (value.std() / value.len().sqrt()).alias("error")
        table = (
            scores.filter(value.is_finite()).group_by("round").agg(value.mean().alias("mean"), spread).sort("round")
        )
        table = table.with_columns(pl.Series("mb", _megabytes(place, table["round"], mine), pl.Float64))
    except (OSError, pl.exceptions.PolarsError):
        return pl.DataFrame(schema=NO_CURVE)
    labels = [pl.lit(name).alias("method"), pl.lit(seed, pl.Int64).alias("seed")]
    return table.select(*labels, pl.col("round").cast(pl.Int64), "mb", "mean", "error")


def _megabytes(place: Path, rounds: pl.Series, mine: pl.DataFrame) -> np.ndarray:
    """Megabytes per client up to each round; in proportion to rounds where they were not recorded."""
    try:
        info = pl.read_parquet(place / layout.INFO).filter(pl.col("name") == "mb_per_client")
    except (OSError, pl.exceptions.PolarsError):
        info = pl.DataFrame()
    if info.height:
        known = dict(zip(info["round"].to_list(), info["value"].to_list(), strict=True))
        return np.array([known.get(one, np.nan) for one in rounds.to_list()], float)
    total = float(np.asarray((mine["bytes_down"] + mine["bytes_up"]).mean(), float)) / 1e6
    return total * rounds.to_numpy() / max(int(rounds.max() or 1), 1)  # type: ignore[arg-type]
