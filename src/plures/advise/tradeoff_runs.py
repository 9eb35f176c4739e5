"""Running a sweep: every value of the option with every seed, into a folder, and the curves read back from it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from plures.advise.tradeoff import Tradeoff, ValueCurve
from plures.app.ownership import claim
from plures.app.running import Listener, Tell, describe
from plures.data import Federation
from plures.errors import BadFile
from plures.study.comparison import Comparison
from plures.study.disk.layout import BYTES, DONE, INFO, RECORD, count_finished, run_folder
from plures.study.fronts import Budget
from plures.study.grid import StudyProgress, compare
from plures.study.sweep import Sweep, SweptValue, plan_sweep
from plures.types import Plan
from plures.wording import counted


def run_tradeoff(
    method: str,
    federation: Federation,
    *,
    rounds: int,
    budget_mb: float | None = None,
    budget_rounds: int | None = None,
    out: str | Path | None = None,
    progress: Tell | None = None,
    listener: Listener = Listener(),
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Tradeoff:
    """Sweep an option of a method, by default the one it declares as its degree of collaboration.

    ``options`` are those of ``plan_sweep``: ``option``, ``values``, ``seeds``, ``model``, ``plan``, ``norm`` and the settings of a
    run. Without ``values`` they lie around where the option stands; without ``eval_every`` there are at most 20 evaluations.
    With ``out`` the folder has what ``plures tradeoff`` leaves in one, finished runs that lie there are not run again, and
    ``listener`` hears of them and of the time left. ``config`` are the settings of the study, where it is one in text.
    """
    sweep = plan_sweep(method, federation, rounds=rounds, budget=Budget(budget_mb, budget_rounds), **options)
    if out is None:
        return run_sweep(sweep, progress=progress)
    given = {"model": None, "plan": Plan(), "rounds": rounds, **options, "seeds": sweep.seeds, **sweep.running}
    known = describe([method], federation, None, given) if config is None else config
    config = {**known, "command": "tradeoff", "option": options.get("option")}
    folder = Path(out)
    claim(folder, config)
    if kept := count_finished(folder):
        listener.say(f"{counted(kept, 'finished run')} kept from before in {folder}", "")
    with listener.progress() as tell:
        hear = with_estimate(progress or tell, sweep, folder, listener.say)
        return run_sweep(sweep, out=folder, progress=hear, config=config)


def with_estimate(
    tell: Tell | None,
    sweep: Sweep,
    folder: Path,
    say: Callable[[str, str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Tell:
    """The hook, which also says how long the sweep will still take when the first of its runs is over."""
    jobs = [run_folder(folder, label, seed) / DONE for label in sweep.built for seed in sweep.seeds]
    waiting = [index for index, file in enumerate(jobs) if not file.exists()]
    start, more = clock(), len(waiting) - 1

    def also(at: StudyProgress) -> None:
        if tell is not None:
            tell(at)
        if more > 0 and at.index == waiting[0] and at.run.round == at.run.rounds:
            left = time_text(more * (clock() - start))
            say(f"about {left} left: {counted(more, 'more run')} like the first", "")

    return also


def time_text(seconds: float) -> str:
    """A time in the unit in which it is read best.

    >>> time_text(7.4), time_text(300), time_text(9000)
    ('7 s', '5 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def run_sweep(
    sweep: Sweep,
    *,
    out: str | Path | None = None,
    progress: Tell | None = None,
    config: Mapping[str, Any] | None = None,
) -> Tradeoff:
    """All runs of a sweep that are not in the folder yet, and what follows from them, which is written there too."""
    with tempfile.TemporaryDirectory() if out is None else nullcontext(str(out)) as place:
        folder = Path(place)
        result = compare(
            dict(sweep.built),
            sweep.federation,
            rounds=sweep.rounds,
            seeds=sweep.seeds,
            out=folder,
            progress=_note_bytes(folder, progress),
            config=config,
            keep_models=False,  # a sweep has many runs, and is about none of them
            **sweep.running,
        )
        curves = tuple(read_curve(folder, setting, sweep, result) for setting in sweep.settings)
    known = result.metric, result.higher_is_better, result.attackers, result.told
    found = Tradeoff(sweep, curves, *known, federation=sweep.federation)
    if out is not None:
        found.save(out)
    return found


def _note_bytes(out: Path, progress: Tell | None) -> Tell:
    """What a study calls to say how far it is: the bytes so far go to a file beside the run's others."""

    def tell(now: StudyProgress) -> None:
        folder = run_folder(out, now.method, now.seed)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / BYTES).open("a") as file:
            file.write(f"{now.run.round},{now.run.num_bytes}\n")
        if progress is not None:
            progress(now)

    return tell


def read_curve(out: Path, setting: SweptValue, sweep: Sweep, result: Comparison) -> ValueCurve:
    """The curve of a setting from the folders of its runs; attackers and clients without valid rows do not count."""
    mine = result.honest.filter(pl.col("method") == setting.label, pl.col("seen"), pl.col("valid_rows") > 0)
    uids = mine["uid"].unique().sort()
    folders = [run_folder(out, setting.label, seed) for seed in sweep.seeds]
    records = [pl.read_parquet(folder / RECORD) for folder in folders]
    cost = sweep.costs[setting.label]
    losses, scores = (
        np.stack(
            [_valid(record, name, uids, cost.evaluated, at) for record, at in zip(records, folders, strict=True)]
        )
        for name in ("loss", result.metric)
    )
    steps = np.stack([_gradients(folder, cost.effort) for folder in folders])
    return ValueCurve(
        setting,
        cost.evaluated,
        np.stack([_bytes(folder, cost.evaluated) for folder in folders]) / sweep.federation.num_clients / 1e6,
        None if np.isnan(steps).all() else np.nancumsum(steps, axis=1)[:, cost.evaluated - 1],
        losses,
        scores,
        replace(result, metric="loss").scores(setting.label),
        result.scores(setting.label),
        result.diverged(setting.label),
        int(np.isnan(steps).any(axis=0).sum()),
    )


def _valid(record: pl.DataFrame, metric: str, uids: pl.Series, rounds: np.ndarray, folder: Path) -> np.ndarray:
    """(rounds, clients) of a metric of the personal models on valid rows."""
    wanted = (pl.col("kind") == "personal") & (pl.col("split") == "valid") & (pl.col("metric") == metric)
    found = record.filter(wanted, pl.col("uid").is_in(uids.to_list())).sort("round", "uid")
    if found["round"].unique().sort().to_list() != rounds.tolist():
        raise BadFile(f"{folder} holds a run that was evaluated at other rounds; use another folder")
    values = found["value"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return np.asarray(values).reshape(len(rounds), len(uids))


def _bytes(folder: Path, rounds: np.ndarray) -> np.ndarray:
    """(rounds,) bytes of all clients up to there."""
    file = folder / BYTES
    lines = file.read_text().splitlines() if file.exists() else []
    known = {int(round_): int(number) for round_, _, number in (line.partition(",") for line in lines)}
    if not set(rounds.tolist()) <= set(known):
        raise BadFile(f"{folder} holds a run without its bytes by round ({BYTES}); use another folder")
    return np.array([known[round_] for round_ in rounds.tolist()], float)


def _gradients(folder: Path, effort: np.ndarray) -> np.ndarray:
    """(rounds,) gradient evaluations per client in every round; NaN where a round does not report its steps."""
    info = pl.read_parquet(folder / INFO).filter(pl.col("name") == "steps")
    found = np.full(len(effort), np.nan)
    found[info["round"].to_numpy() - 1] = info["value"].to_numpy()
    return found * effort
