"""A study read back from its folder: what can be shown is shown, and what is missing is said."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from plures._version import __version__
from plures.engine import Threat
from plures.errors import BadFile
from plures.study.comparison import Comparison, honest_of
from plures.study.folder import Kept, label_of, labeled, newcomers_of, read_kept, run_folder

INDEX = "variants.json"
"""In a folder that holds several studies from one file: which they are."""

Run = tuple[str, int]
"""(label of the method, seed)"""


@dataclass(frozen=True)
class Saved:
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


def read_saved(folder: str | Path) -> Saved:
    """The study in a folder that ``plures compare`` or ``plures run`` wrote, half written ones included."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BadFile(f"there is no folder {folder}; give one that plures compare or plures run wrote")
    check_single(folder)
    missing: list[str] = []
    study = _settings(folder, "study.json", missing)
    if study.get("command"):
        raise BadFile(f"{folder} holds results of plures {study['command']}, which have no report page")
    places = _places(folder, study)
    runs, abouts = _runs(places, missing)
    if not runs:
        more = f"; go on with: plures resume {folder}" if study else ""
        raise BadFile(
            f"{folder} holds no finished run{more}" if places else f"{folder} holds no study (no runs in it)"
        )
    whole = len(runs) == len(places)
    runs, left = _comparable(runs)
    missing += left
    if not whole and study:
        missing.append(f"finish the study with: plures resume {folder}")
    result = _comparison(runs, abouts, _settings(folder, "summary.json", []), study)
    missing += _older(abouts.values())
    curves = pl.concat([_curve(places[run], run, result) for run in runs])
    about = next(iter(abouts.values()))
    return Saved(
        folder=folder,
        result=result,
        curves=curves,
        study=study,
        data=_settings(folder, "data.json", []),
        about={name: about.get(name) for name in ("versions", "device", "platform")},
        missing=tuple(missing),
        command=_command(folder),
    )


def check_single(folder: Path) -> None:
    """Refuse a folder that holds several studies."""
    if (folder / INDEX).exists():
        names = sorted(one.name for one in folder.iterdir() if (one / "study.json").exists())
        raise BadFile(f"{folder} holds several studies; name one of them: {', '.join(names) or 'none has begun'}")


def _settings(folder: Path, name: str, missing: list[str]) -> dict[str, Any]:
    """A file of settings; an empty one where there is none, or where it is damaged."""
    try:
        found = json.loads((folder / name).read_text())
    except OSError:
        missing.append(f"there is no {name}: the settings of the study are unknown")
    except ValueError:
        missing.append(f"{name} is damaged: the settings of the study are unknown")
    else:
        if isinstance(found, dict):
            return found
        missing.append(f"{name} is damaged: the settings of the study are unknown")
    return {}


def _command(folder: Path) -> str:
    """What was typed; for a study from a file or from Python, how to run the file that lies beside the results."""
    file = folder / "command.txt"
    if file.exists():
        return file.read_text().strip()
    return "plures run study.toml" if (folder / "study.toml").exists() else ""


def _places(folder: Path, study: Mapping[str, Any]) -> dict[Run, Path]:
    """Where the runs of a study lie, or should lie: those it names first, in its order."""
    found = {}
    for place in sorted(folder.glob("runs/*/seed-*")):
        seed = place.name.removeprefix("seed-")
        if seed.isdigit() and place.is_dir():
            found[label_of(place.parent), int(seed)] = place
    if not found:
        return {}
    names = _asked(folder, study)
    seeds = [seed for seed in study.get("seeds") or () if isinstance(seed, int)]
    wanted = {(name, seed): run_folder(folder, name, seed) for name in names for seed in seeds}
    return {**wanted, **{run: place for run, place in found.items() if place not in wanted.values()}}


def _asked(folder: Path, study: Mapping[str, Any]) -> list[str]:
    """The methods a study names; where it left that to plures, those of the file that lies beside the results."""
    names = study.get("methods")
    if not names and (folder / "study.toml").exists():
        try:
            names = tomllib.loads((folder / "study.toml").read_text()).get("methods")
        except (OSError, ValueError):
            names = None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _runs(places: Mapping[Run, Path], missing: list[str]) -> tuple[dict[Run, Kept], dict[Run, dict[str, Any]]]:
    """(finished runs, what their records say of themselves); the others are said to be missing."""
    runs, abouts = {}, {}
    for (name, seed), place in places.items():
        if not (place / "done.json").exists():
            missing.append(f"{name}, seed {seed}: not {'finished' if place.exists() else 'started'}")
            continue
        try:
            runs[name, seed] = read_kept(place)
        except BadFile as error:
            missing.append(f"{name}, seed {seed}: {error}")
            continue
        abouts[name, seed] = _about(place)
    return runs, abouts


def _about(place: Path) -> dict[str, Any]:
    """What a record says of itself; nothing if it was written before records did."""
    try:
        found = json.loads(pl.read_parquet_metadata(place / "record.parquet").get("plures", "{}"))
    except (OSError, ValueError, pl.exceptions.PolarsError):
        return {}
    return found if isinstance(found, dict) else {}


def _comparable(runs: Mapping[Run, Kept]) -> tuple[dict[Run, Kept], list[str]]:
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
    left += [f"{name}, seed {seed}: left out, the other methods have not finished it" for name, seed in runs
            if name in kept and seed not in common]  # fmt: skip
    left += [
        f"{name}: left out, it has finished no seed that the others have" for name in names if name not in kept
    ]
    return {run: one for run, one in runs.items() if run[0] in kept and run[1] in common}, left


def _other_clients(runs: Mapping[Run, Kept]) -> list[str]:
    """Methods with a run whose training clients are not those of the first run."""
    clients = {run: tuple(one.clients.filter(pl.col("seen"))["uid"].sort()) for run, one in runs.items()}
    first = next(iter(clients.values()))
    return list(dict.fromkeys(name for (name, _), uids in clients.items() if uids != first))


def _comparison(
    runs: Mapping[Run, Kept],
    abouts: Mapping[Run, Mapping[str, Any]],
    summary: Mapping[str, Any],
    study: Mapping[str, Any],
) -> Comparison:
    clients = labeled({run: one.clients for run, one in runs.items()})
    about = {**next(iter(abouts.values())), **summary}
    metric = about.get("metric") or _metric_in(clients.columns)
    higher = about.get("higher_is_better", metric == "accuracy")
    seconds, told = dict[str, float](), dict[str, list[str]]()
    for (name, _), one in runs.items():
        seconds[name] = seconds.get(name, 0.0) + one.seconds
        told.setdefault(name, one.told)
    said = tuple(f"{name}: {line}" for name, lines in told.items() for line in lines)
    norms = {name: how for (name, _), one in abouts.items() if (how := one.get("norm"))}
    return Comparison(clients, metric, higher, seconds, _threat(clients, study), said, norms, newcomers_of(runs))


def _threat(clients: pl.DataFrame, study: Mapping[str, Any]) -> Threat | None:
    """Who lied, as the table of clients has it."""
    if "byzantine" not in clients.columns:
        return None
    once = clients.filter(pl.col("seen")).unique("uid")
    names = tuple(str(one).partition(":")[0].replace("-", "_") for one in study.get("attack") or ()) or (
        "an attack",
    )
    return Threat(names, int(once["byzantine"].fill_null(False).sum()), once.height)


def _metric_in(columns: Sequence[str]) -> str:
    """The metric that scores are in, from the names of columns: not the loss, if there is another one."""
    found = [one.removeprefix("personal_test_") for one in columns if one.startswith("personal_test_")]
    if not found:
        raise BadFile("the runs have no test scores; they were stopped early, or written by another program")
    return next((one for one in found if one != "loss"), "loss")


def _older(abouts: Any) -> list[str]:
    """Which other versions of plures wrote the runs."""
    wrote = {(one.get("versions") or {}).get("plures") for one in abouts} - {__version__}
    return [
        f"written by plures {one}, read by {__version__}"
        if one
        else "written by a version that did not say its own"
        for one in sorted(wrote, key=str)
    ]


NO_CURVE = {
    "method": pl.String,
    "seed": pl.Int64,
    "round": pl.Int64,
    "mb": pl.Float64,
    "mean": pl.Float64,
    "error": pl.Float64,
}


def _curve(place: Path, run: Run, result: Comparison) -> pl.DataFrame:
    """Mean valid scores of clients in training after every evaluation of a run; no row where its record is damaged."""
    name, seed = run
    mine = honest_of(result.clients).filter(pl.col("method") == name, pl.col("seed") == seed, pl.col("seen"))
    try:
        record = pl.read_parquet(place / "record.parquet")
        kept = (pl.col("kind") == "personal") & (pl.col("split") == "valid") & (pl.col("metric") == result.metric)
        scores = record.filter(kept & pl.col("uid").is_in(mine["uid"].cast(pl.Int32).implode()))
        value = pl.col("value").cast(pl.Float64)
        table = (
            scores.filter(value.is_finite())
            .group_by("round")
            .agg(value.mean().alias("mean"), (value.std() / value.len().sqrt()).alias("error"))
        )
        table = table.sort("round")
        table = table.with_columns(pl.Series("mb", _megabytes(place, table["round"], mine), pl.Float64))
    except (OSError, pl.exceptions.PolarsError):
        return pl.DataFrame(schema=NO_CURVE)
    labels = [pl.lit(name).alias("method"), pl.lit(seed, pl.Int64).alias("seed")]
    return table.select(*labels, pl.col("round").cast(pl.Int64), "mb", "mean", "error")


def _megabytes(place: Path, rounds: pl.Series, mine: pl.DataFrame) -> np.ndarray:
    """Megabytes per client up to each round; in proportion to rounds where they were not recorded."""
    try:
        info = pl.read_parquet(place / "info.parquet").filter(pl.col("name") == "mb_per_client")
    except (OSError, pl.exceptions.PolarsError):
        info = pl.DataFrame()
    if info.height:
        known = dict(zip(info["round"].to_list(), info["value"].to_list(), strict=True))
        return np.array([known.get(one, np.nan) for one in rounds.to_list()], float)
    total = float(np.asarray((mine["bytes_down"] + mine["bytes_up"]).mean(), float)) / 1e6
    return total * rounds.to_numpy() / max(int(rounds.max() or 1), 1)  # type: ignore[arg-type]
