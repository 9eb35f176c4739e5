"""Methods x seeds on one federation: a per-client table, a leaderboard, a folder with all of it."""

from __future__ import annotations

import json
import platform
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax
import numpy as np
import polars as pl

from plures._version import __version__
from plures.data import Federation
from plures.engine import Progress, Run, Settings, Threat, prepare
from plures.engine.liars import attacks_in, bound, byzantine, check_liars, forecast_of, threat_of
from plures.errors import BadData, BadFile, BadValue, MethodWarning
from plures.norms import has_norm
from plures.study.spec import build_method, build_model, default_model
from plures.study.statistics import bootstrap, over_seeds, share_worse, worst_decile
from plures.types import Channel, Forecast, Method, Model, Plan

ALONE = "local_only"


def default_methods(federation: Federation) -> tuple[str, ...]:
    """What is compared unless methods are named; the oracle only where groups are planted."""
    found = ("local_only", "fedavg", "fedavg|finetune", "ditto")
    return (*found, "oracle") if federation.num_groups else found


@dataclass(frozen=True)
class StudyProgress:
    """How far a study is: which run of how many, and how far that one is."""

    method: str
    seed: int
    index: int
    total: int
    run: Progress


@dataclass(frozen=True)
class Comparison:
    """The result: ``clients`` has a row per (method, seed, client).

    Under attack, liars have rows there too, and everything else is about the honest clients.
    """

    clients: pl.DataFrame
    metric: str
    higher_is_better: bool
    seconds: Mapping[str, float]
    threat: Threat | None = None
    told: tuple[str, ...] = ()  # by methods, of their first seed
    norms: Mapping[str, str] = field(
        default_factory=dict
    )  # policies for normalization layers; {} for a model without

    @property
    def honest(self) -> pl.DataFrame:
        """The rows of clients that do not lie."""
        return honest_of(self.clients)

    @property
    def leaderboard(self) -> pl.DataFrame:
        """A row per method, the best first."""
        rows = [self._row(name) for name in self.clients["method"].unique(maintain_order=True)]
        table = pl.DataFrame(rows, infer_schema_length=None)
        table = table.sort("diverged", "mean", descending=[False, self.higher_is_better], nulls_last=True)
        return self._with_verdict(table)

    def scores(self, method: str, *, seen: bool = True) -> np.ndarray:
        """(seeds, clients) final personal scores of a method on test rows."""
        mine = self.honest.filter((pl.col("method") == method) & (pl.col("seen") == seen))
        wide = mine.sort("seed", "uid").select("seed", f"personal_test_{self.metric}")
        parts = [one[f"personal_test_{self.metric}"] for _, one in wide.group_by(["seed"], maintain_order=True)]
        return np.array([part.cast(pl.Float64).fill_null(np.nan).to_numpy() for part in parts])

    def _row(self, name: str) -> dict[str, Any]:
        values, better = self.scores(name), self.higher_is_better
        interval = bootstrap(values)
        mine = self.honest.filter((pl.col("method") == name) & pl.col("seen"))
        size = (mine["bytes_down"] + mine["bytes_up"]).mean()
        others = self.scores(name, seen=False)
        alone = self.scores(ALONE) if ALONE in self.clients["method"].unique() else None
        return {
            "method": name,
            "mean": interval.mean,
            "low": interval.low,
            "high": interval.high,
            "worst_decile": worst_decile(over_seeds(values), higher_is_better=better),
            "worse_than_alone": None
            if alone is None
            else share_worse(over_seeds(values), over_seeds(alone), higher_is_better=better),
            "unseen": float(np.nanmean(others)) if others.size and np.isfinite(others).any() else None,
            "mb_per_client": float(np.asarray(size, float)) / 1e6,
            "seconds": self.seconds.get(name),
            "diverged": self.diverged(name),
        }

    def diverged(self, method: str) -> bool:
        """Whether some client with test rows got a model whose loss is not a finite number."""
        mine = self.honest.filter((pl.col("method") == method) & (pl.col("test_rows") > 0))
        loss = mine["personal_test_loss"].cast(pl.Float64).fill_null(np.nan)
        return not bool(loss.is_finite().all())

    def _with_verdict(self, table: pl.DataFrame) -> pl.DataFrame:
        """Paired with the best method over the same clients and seeds: a clear gap, or within noise."""
        best = table["method"][0]
        words = []
        for name in table["method"]:
            gap = bootstrap(self.scores(name) - self.scores(best))
            words.append("best" if name == best else "behind" if gap.excludes_zero else "within noise")
        words = ["diverged" if gone else word for word, gone in zip(words, table["diverged"], strict=True)]
        return table.with_columns(pl.Series("against_best", words)).drop("diverged")


def honest_of(clients: pl.DataFrame) -> pl.DataFrame:
    """The rows of clients that do not lie; all where there is no attack."""
    return clients.filter(~pl.col("byzantine")) if "byzantine" in clients.columns else clients


def compare(
    methods: Sequence[str] | Mapping[str, Method],
    federation: Federation,
    *,
    rounds: int,
    unseen: Federation | None = None,
    model: str | Model | None = None,
    plan: Plan = Plan(),
    norm: str = "share",
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path | None = None,
    progress: Callable[[StudyProgress], None] | None = None,
    config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Comparison:
    """Run every method with every seed; ``settings`` are those of a run, ``norm`` a policy for normalization layers.

    Methods are named as on the command line, or given as {label: Method}; then ``model`` is theirs.
    Every method is built before the first run starts, so a mistake in the last name costs no time. With ``out``
    finished runs are kept there and are not run again.
    """
    methods = [methods] if isinstance(methods, str) else methods
    limits = Settings.of({"rounds": rounds, **settings, "checkpoint": "checked"})
    check_given(methods, seeds, federation, limits)
    built = dict(methods) if isinstance(methods, Mapping) else built_methods(methods, federation, model, plan, norm)
    for name, method in built.items():
        check_liars(method, limits, federation.num_clients, label=name)
    threat = threat_of(limits.channels, federation.num_clients)
    chosen = next(iter(built.values())).model
    tables, seconds, told = [], dict.fromkeys(built, 0.0), dict[str, list[str]]()
    jobs = [(name, seed) for name in built for seed in seeds]
    for index, (name, seed) in enumerate(jobs):
        folder = None if out is None else run_folder(Path(out), name, seed)
        mark = "" if folder is None else _mark(built[name], federation, limits)
        table, spent = _finished(folder, mark)
        if table is None:
            extra = dict(settings)
            if folder is not None and extra.get("checkpoint_every"):
                extra["checkpoint"] = folder / "checkpoint"
            tell = teller(progress, name, seed, index, len(jobs))
            now = Settings.of({"rounds": rounds, "seed": seed, **extra})
            run = run_one(name, built[name], federation, unseen, now, tell)
            table, spent = run.clients, run.seconds
            told.setdefault(name, run.told)
            if folder is not None:
                save_run(folder, run, header(name, seed, built[name], config), mark)
        elif folder is not None:
            told.setdefault(name, json.loads((folder / "done.json").read_text()).get("told", []))
        labels = [pl.lit(name).alias("method"), pl.lit(seed).alias("seed")]
        tables.append(table.select(*labels, pl.all()))
        seconds[name] += spent
    every = pl.concat(tables, how="diagonal_relaxed")
    said = tuple(f"{name}: {line}" for name, lines in told.items() for line in lines)
    norms = {name: method.norm for name, method in built.items()} if has_norm(chosen) else {}
    result = Comparison(every, chosen.score, chosen.higher_is_better, seconds, threat, said, norms)
    if out is not None:
        save_comparison(Path(out), result)
    return result


def run_one(
    name: str,
    method: Method,
    federation: Federation,
    unseen: Federation | None,
    settings: Settings,
    tell: Callable[[Progress], None],
) -> Run:
    """A run of a study; unseen clients are left out for a method that cannot serve them.

    What the method warns of is said with its name.
    """
    hidden = None if method.transductive else unseen
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", MethodWarning)
        run = prepare(method, federation, unseen=hidden, settings=settings, progress=tell).run()
    for one in said:
        if issubclass(one.category, MethodWarning):
            warnings.warn(f"{name}: {one.message}", MethodWarning, stacklevel=3)
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return run


def teller(
    progress: Callable[[StudyProgress], None] | None, method: str, seed: int, index: int, total: int
) -> Callable[[Progress], None]:
    """What a run calls to say how far it is; the study says which run of how many that is."""

    def tell(now: Progress) -> None:
        if progress is not None:
            progress(StudyProgress(method, seed, index, total, now))

    return tell


def check_given(
    methods: Sequence[str] | Mapping[str, Method], seeds: Sequence[int], federation: Federation, settings: Settings
) -> None:
    """Refuse what leaves nothing to compare, or would be run twice."""
    for name, given in (("methods", list(methods)), ("seeds", list(seeds))):
        if not given:
            raise BadValue(name, given, "a list with at least one entry")
        if len(set(given)) < len(given):
            raise BadValue(name, given, "a list without repeats")
    if not federation.count[:, 2].any():
        raise BadData("no client has test rows, so there is nothing to compare; split the data with a test share")
    if not federation.count[honest_rows(federation, settings), 2].any():
        raise BadData(
            "no honest client has test rows, so there is nothing to compare; use a smaller share of liars"
        )


def honest_rows(federation: Federation, settings: Settings) -> np.ndarray:
    """(clients,) who is honest, in the order of the federation's rows."""
    number = federation.num_clients
    return ~byzantine(bound(settings.channels, number), number)[federation.uid]


def built_methods(
    names: Sequence[str], federation: Federation, model: str | Model | None, plan: Plan, norm: str = "share"
) -> dict[str, Method]:
    """Methods by their names, all with one model and one policy for its normalization layers."""
    chosen = model if isinstance(model, Model) else build_model(model or default_model(federation), federation)
    return {name: build_method(name, chosen, plan=plan, facts=federation.known, norm=norm) for name in names}


def forecasts(
    names: Sequence[str],
    federation: Federation,
    model: str | Model | None,
    plan: Plan,
    channels: Sequence[Channel] = (),
    cohort: int | str | None = None,
    norm: str = "share",
) -> dict[str, Forecast]:
    """What methods say before a study starts, those that have something to say."""
    built = built_methods(names, federation, model, plan, norm)
    found = {name: forecast_of(method, federation, channels, cohort) for name, method in built.items()}
    return {name: ahead for name, ahead in found.items() if ahead is not None}


def run_folder(out: Path, method: str, seed: int) -> Path:
    """Where one run of a study is kept: different labels have different folders, whatever is in them."""
    name = quote(method, safe="=,+")
    return out / "runs" / (name if name.strip(".") else name.replace(".", "%2E")) / f"seed-{seed}"


def header(name: str, seed: int, method: Method, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a record says about itself: settings, seed, what is done with normalization layers, and versions."""
    versions = {"plures": __version__, "python": platform.python_version(), "jax": jax.__version__}
    device = f"{jax.default_backend()}:{jax.devices()[0].device_kind}"
    return {
        "method": name,
        "seed": seed,
        "norm": method.norm if has_norm(method.model) else None,
        "config": dict(config or {}),
        "versions": {**versions, "numpy": np.__version__, "polars": pl.__version__},
        "platform": sys.platform,
        "device": device,
    }


def save_run(folder: Path, run: Run, about: Mapping[str, Any], mark: str) -> None:
    """The record with its header, the diagnostics and the per-client table of one run."""
    folder.mkdir(parents=True, exist_ok=True)
    marks = {"plures": json.dumps(about)}
    run.record.table().write_parquet(folder / "record.parquet", metadata=marks)
    run.record.info_table().write_parquet(folder / "info.parquet", metadata=marks)
    run.clients.write_parquet(folder / "clients.parquet", metadata=marks)
    scratch = folder / "done.tmp"
    done = {"seconds": run.seconds, "bytes": run.num_bytes, "told": run.told, "mark": mark}
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


def _mark(method: Method, federation: Federation, settings: Settings) -> str:
    """What a finished run was made with, as far as it can be told."""
    plan = method.plan
    local = f"{plan.epochs} {plan.steps} {plan.batch} {plan.lr}"
    lies = "".join(f", {one.name} {one.share}" for one in attacks_in(settings.channels))
    norm = "" if method.norm == "share" else f", norm {method.norm}"
    said = f"rounds {settings.rounds}, cohort {settings.cohort}, plan {local}{norm}{lies}"
    return f"{said}, data {federation.fingerprint}"


def _finished(folder: Path | None, mark: str) -> tuple[pl.DataFrame | None, float]:
    """The result of a run that was kept; one made with other settings is refused."""
    if folder is None or not (folder / "done.json").exists():
        return None, 0.0
    about = json.loads((folder / "done.json").read_text())
    before = str(about.get("mark"))
    if before != mark and before.rpartition(", data ")[0] == mark.rpartition(", data ")[0]:
        raise BadFile(f"the data changed since the run in {folder} was made; use another folder")
    if before != mark:
        raise BadFile(f"{folder} holds a run with other settings ({about.get('mark')}); use another folder")
    return pl.read_parquet(folder / "clients.parquet"), float(about["seconds"])
