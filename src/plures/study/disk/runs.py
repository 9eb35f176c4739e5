"""One run of a study on disk: its record, its tables, and what it was made with."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl

from plures._version import __version__
from plures.data import Federation
from plures.engine import Run, Settings, newcomers
from plures.engine.attackers import attacks_in
from plures.engine.identity import Identity
from plures.errors import BadFile
from plures.method import Method
from plures.models.norm_layers import has_norm
from plures.study.disk import layout

IDENTITY = "identity"


@dataclass(frozen=True)
class RunTables:
    """What a comparison needs of a run."""

    clients: pl.DataFrame
    newcomers: pl.DataFrame | None
    seconds: float
    told: list[str]


def tables_of(run: Run, *, with_newcomers: bool) -> RunTables:
    """What a comparison needs of a finished run; what newcomers get costs one more evaluation."""
    brought = newcomers(run) if with_newcomers else None
    return RunTables(run.clients, brought, run.seconds, list(run.report.findings))


def stack_tables(tables: Mapping[tuple[str, int], pl.DataFrame]) -> pl.DataFrame:
    """Tables of runs, by method and seed, under each other."""
    parts = [
        table.select(pl.lit(name).alias("method"), pl.lit(seed).alias("seed"), pl.all())
        for (name, seed), table in tables.items()
    ]
    return pl.concat(parts, how="diagonal_relaxed")


def told_by(
    runs: Mapping[tuple[str, int], RunTables], more: Mapping[str, list[str]] | None = None
) -> dict[str, Any]:
    """Of all runs: seconds by method, what was told of its first seed and what ``more`` there is, what newcomers get."""
    told, seconds = dict[str, list[str]](), dict[str, float]()
    for (label, _), one in runs.items():
        told.setdefault(label, one.told + (more or {}).get(label, []))
        seconds[label] = seconds.get(label, 0.0) + one.seconds
    lines = tuple(f"{label}: {line}" for label, lines in told.items() for line in lines)
    brought = {run: one.newcomers for run, one in runs.items() if one.newcomers is not None}
    return {"seconds": seconds, "told": lines, "newcomers": stack_tables(brought) if brought else None}


def header(name: str, seed: int, method: Method, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a record says about itself: settings, seed, what is done with normalization layers, and versions."""
    versions = {"plures": __version__, "python": platform.python_version(), "jax": jax.__version__}
    device = f"{jax.default_backend()}:{jax.devices()[0].device_kind}"
    return {
        "method": name,
        "seed": seed,
        "metric": method.model.score,
        "higher_is_better": method.model.higher_is_better,
        "norm": method.traits.norm if has_norm(method.model) else None,
        "config": dict(config or {}),
        "versions": {**versions, "numpy": np.__version__, "polars": pl.__version__},
        "platform": sys.platform,
        "device": device,
    }


def save_run(folder: Path, run: Run, tables: RunTables, about: Mapping[str, Any], identity: Identity) -> None:
    """The record with its header, the diagnostics and the per-client tables of one run."""
    folder.mkdir(parents=True, exist_ok=True)
    marks = {layout.HEADER: json.dumps(about)}
    run.record.table().write_parquet(folder / layout.RECORD, metadata=marks)
    run.record.info_table().write_parquet(folder / layout.INFO, metadata=marks)
    tables.clients.write_parquet(folder / layout.CLIENTS, metadata=marks)
    if tables.newcomers is not None:
        tables.newcomers.write_parquet(folder / layout.NEWCOMERS, metadata=marks)
    done = {"seconds": tables.seconds, "bytes": run.num_bytes, "told": tables.told, IDENTITY: dict(identity.parts)}
    layout.write_json(folder / layout.DONE, done)


OF_DATA = ("data", "groups", "clients")
"""The parts of an identity that are of the data."""


def check_made(folder: Path, about: Mapping[str, Any], identity: Identity, mark: str | None) -> None:
    """Refuse a finished run that was made with other settings or other data.

    ``mark`` is what version 0.1 would have written, where the settings of the study in the folder vouch for the rest.
    """
    if IDENTITY in about:
        settings, data = differences(identity, about[IDENTITY])
    elif mark is None:
        raise BadFile(
            f"{folder} was written by version 0.1, which did not note method and model; use another folder"
        )
    else:
        (before, data_before), (now, data_now) = (one.rsplit(", data ", 1) for one in (str(about["mark"]), mark))
        settings = None if before == now else about["mark"]
        data = None if data_before == data_now else data_before
    refuse_other(settings, data, f"{folder} holds a run", f"the run in {folder} was made")


def differences(identity: Identity, before: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The first setting, and the first part at all, in which what was kept differs; None where there is none."""
    return identity.difference(before, but=OF_DATA), identity.difference(before)


def refuse_other(settings: str | None, data: str | None, held: str, made: str) -> None:
    """Refuse what was kept with other settings or of other data."""
    if settings is not None:
        raise BadFile(f"{held} with other settings ({settings}); use another folder")
    if data is not None:
        raise BadFile(f"the data changed since {made}; use another folder")


def old_mark(method: Method, federation: Federation, settings: Settings, tuned: str | None = None) -> str:
    """What version 0.1 wrote of how a run was made; ``tuned`` is the text that tuning chose."""
    plan = method.plan
    local = f"{plan.epochs} {plan.steps} {plan.batch} {plan.lr}"
    attacks = "".join(f", {one.name} {one.share}" for one in attacks_in(settings.channels))
    norm = "" if method.traits.norm == "share" else f", norm {method.traits.norm}"
    said = f"rounds {settings.rounds}, cohort {settings.cohort}, plan {local}{norm}{attacks}"
    return f"{said}{'' if tuned is None else f', tuned to {tuned}'}, data {federation.fingerprint}"


def read_finished(folder: Path, identity: Identity, mark: str | None = None) -> RunTables | None:
    """The result of a run that was kept; None if there is none or it is damaged; one made otherwise is refused."""
    try:
        about = layout.read_json(folder / layout.DONE)
    except BadFile:
        return None
    if not isinstance(about.get(IDENTITY), dict) and ", data " not in str(about.get("mark")):
        return None
    check_made(folder, about, identity, mark)
    try:
        return read_tables(folder)
    except BadFile:
        return None  # it is run again


def read_tables(folder: Path) -> RunTables:
    """What a finished run left in its folder."""
    try:
        about = json.loads((folder / layout.DONE).read_text())
        seconds, told = float(about["seconds"]), [str(line) for line in about.get("told", [])]
        clients = pl.read_parquet(folder / layout.CLIENTS).rename(layout.RENAMED, strict=False)
        file = folder / layout.NEWCOMERS
        brought = pl.read_parquet(file) if file.exists() else None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, pl.exceptions.PolarsError) as error:
        raise BadFile(f"its files are damaged ({(str(error).splitlines() or ['unreadable'])[0]})") from error
    lacking = [name for name in layout.REQUIRED if name not in clients.columns]
    if lacking:
        raise BadFile(f"its table of clients has no {', '.join(lacking)}: another version wrote it")
    if "group" not in clients.columns:
        clients = clients.with_columns(pl.lit(None, pl.Int64).alias("group"))
    if brought is not None and not {"uid", "rows", "all"} <= set(brought.columns):
        brought = None
    return RunTables(clients, brought, seconds, told)
