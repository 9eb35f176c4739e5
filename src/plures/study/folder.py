"""The folder of a study: what each run leaves there, and the tables of all of them."""

from __future__ import annotations

import json
import platform
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import jax
import numpy as np
import polars as pl

from plures._version import __version__
from plures.data import Federation
from plures.engine import Run, Settings, Threat, newcomers
from plures.engine.liars import attacks_in
from plures.errors import BadFile
from plures.norms import has_norm
from plures.study.comparison import Comparison
from plures.types import Method


@dataclass(frozen=True)
class Kept:
    """What a comparison needs of a run."""

    clients: pl.DataFrame
    newcomers: pl.DataFrame | None
    seconds: float
    told: list[str]


def kept_of(run: Run, *, with_newcomers: bool) -> Kept:
    """What a comparison needs of a finished run; what newcomers get costs one more evaluation."""
    return Kept(run.clients, newcomers(run) if with_newcomers else None, run.seconds, run.told)


def labeled(tables: Mapping[tuple[str, int], pl.DataFrame]) -> pl.DataFrame:
    """Tables of runs, by method and seed, under each other."""
    parts = [
        table.select(pl.lit(name).alias("method"), pl.lit(seed).alias("seed"), pl.all())
        for (name, seed), table in tables.items()
    ]
    return pl.concat(parts, how="diagonal_relaxed")


def newcomers_of(runs: Mapping[tuple[str, int], Kept]) -> pl.DataFrame | None:
    """What newcomers get from all runs that tell."""
    found = {run: one.newcomers for run, one in runs.items() if one.newcomers is not None}
    return labeled(found) if found else None


LONGEST = 200
"""Characters of a folder's name; file systems take 255."""


def run_folder(out: Path, method: str, seed: int) -> Path:
    """Where one run of a study is kept: different labels have different folders, whatever is in them and however long they are."""
    name = quote(method, safe="=,+")
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 9]}~{zlib.crc32(method.encode()):08x}"
    return out / "runs" / (name if name.strip(".") else name.replace(".", "%2E")) / f"seed-{seed}"


def label_of(folder: Path) -> str:
    """The label of the method that a folder of runs is named for; the beginning of it where it is long."""
    return unquote(folder.name)


def header(name: str, seed: int, method: Method, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a record says about itself: settings, seed, what is done with normalization layers, and versions."""
    versions = {"plures": __version__, "python": platform.python_version(), "jax": jax.__version__}
    device = f"{jax.default_backend()}:{jax.devices()[0].device_kind}"
    return {
        "method": name,
        "seed": seed,
        "metric": method.model.score,
        "higher_is_better": method.model.higher_is_better,
        "norm": method.norm if has_norm(method.model) else None,
        "config": dict(config or {}),
        "versions": {**versions, "numpy": np.__version__, "polars": pl.__version__},
        "platform": sys.platform,
        "device": device,
    }


def save_run(folder: Path, run: Run, kept: Kept, about: Mapping[str, Any], mark: str) -> None:
    """The record with its header, the diagnostics and the per-client tables of one run."""
    folder.mkdir(parents=True, exist_ok=True)
    marks = {"plures": json.dumps(about)}
    run.record.table().write_parquet(folder / "record.parquet", metadata=marks)
    run.record.info_table().write_parquet(folder / "info.parquet", metadata=marks)
    kept.clients.write_parquet(folder / "clients.parquet", metadata=marks)
    if kept.newcomers is not None:
        kept.newcomers.write_parquet(folder / "newcomers.parquet", metadata=marks)
    scratch = folder / "done.tmp"
    done = {"seconds": kept.seconds, "bytes": run.num_bytes, "told": kept.told, "mark": mark}
    scratch.write_text(json.dumps(done))
    scratch.replace(folder / "done.json")


def save_comparison(out: Path, result: Comparison) -> None:
    """The tables of the whole study."""
    out.mkdir(parents=True, exist_ok=True)
    result.clients.write_parquet(out / "clients.parquet")
    result.clients.write_csv(out / "clients.csv")
    result.leaderboard.write_csv(out / "leaderboard.csv")
    rows = result.leaderboard.to_dicts()
    about: dict[str, Any] = {
        "metric": result.metric,
        "higher_is_better": result.higher_is_better,
        "leaderboard": rows,
    }
    if result.norms:
        about["norm"] = dict(result.norms)
    if result.threat is not None:
        about["attack"] = about_threat(result.threat)
    (out / "summary.json").write_text(json.dumps(about, indent=2))


def about_threat(threat: Threat) -> dict[str, Any]:
    """Which attacks, and by how many, for a summary."""
    return {**threat._asdict(), "said": threat.said}


def mark_of(method: Method, federation: Federation, settings: Settings, tuned: str | None = None) -> str:
    """What a finished run was made with, as far as it can be told; ``tuned`` is the text that tuning chose."""
    plan = method.plan
    local = f"{plan.epochs} {plan.steps} {plan.batch} {plan.lr}"
    lies = "".join(f", {one.name} {one.share}" for one in attacks_in(settings.channels))
    norm = "" if method.norm == "share" else f", norm {method.norm}"
    said = f"rounds {settings.rounds}, cohort {settings.cohort}, plan {local}{norm}{lies}"
    return f"{said}{'' if tuned is None else tuned_mark(tuned)}, data {federation.fingerprint}"


def tuned_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts that tuning chose, by label, where the settings of a study have them: {"tuned": {label: (text, lr)}}."""
    found = config.get("tuned")
    return {name: str(text) for name, (text, _) in found.items()} if isinstance(found, Mapping) else {}


def tuned_mark(text: str) -> str:
    """How the text that tuning chose stands in a mark."""
    return f", tuned to {text}"


def finished(folder: Path, mark: str) -> Kept | None:
    """The result of a run that was kept; None if there is none, and one made with other settings is refused."""
    if not (folder / "done.json").exists():
        return None
    try:
        about = json.loads((folder / "done.json").read_text())
        before = str(about["mark"])
    except (ValueError, LookupError, TypeError):
        return None
    if before != mark and before.rpartition(", data ")[0] == mark.rpartition(", data ")[0]:
        raise BadFile(f"the data changed since the run in {folder} was made; use another folder")
    if before != mark:
        raise BadFile(f"{folder} holds a run with other settings ({about.get('mark')}); use another folder")
    try:
        return read_kept(folder)
    except BadFile:
        return None  # damaged: it is run again


COLUMNS = (
    "uid",
    "name",
    "seen",
    "train_rows",
    "valid_rows",
    "test_rows",
    "bytes_down",
    "bytes_up",
    "personal_test_loss",
)
"""What the per-client table of a run must have; "group" is empty where it has none."""


def read_kept(folder: Path) -> Kept:
    """What a finished run left in its folder."""
    try:
        about = json.loads((folder / "done.json").read_text())
        seconds, told = float(about["seconds"]), [str(line) for line in about.get("told", [])]
        clients = pl.read_parquet(folder / "clients.parquet")
        file = folder / "newcomers.parquet"
        brought = pl.read_parquet(file) if file.exists() else None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, pl.exceptions.PolarsError) as error:
        raise BadFile(f"its files are damaged ({(str(error).splitlines() or ['unreadable'])[0]})") from error
    lacking = [name for name in COLUMNS if name not in clients.columns]
    if lacking:
        raise BadFile(f"its table of clients has no {', '.join(lacking)}: another version wrote it")
    if "group" not in clients.columns:
        clients = clients.with_columns(pl.lit(None, pl.Int64).alias("group"))
    if brought is not None and not {"uid", "rows", "all"} <= set(brought.columns):
        brought = None
    return Kept(clients, brought, seconds, told)
