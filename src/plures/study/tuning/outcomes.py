"""Trials of tuning: what one came to on valid rows, and the file that keeps it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from plures.data import Federation
from plures.engine import Progress, Run, Settings
from plures.engine.identity import Identity
from plures.errors import BadFile, MethodWarning, UserError
from plures.method import Method
from plures.study.disk import layout
from plures.study.disk.runs import IDENTITY, differences, refuse_other

DIVERGED = "diverged"


@dataclass(frozen=True)
class Outcome:
    """What a trial came to: the mean over clients of the personal valid score and loss, or why there is none."""

    rounds: int
    score: float | None = None
    loss: float | None = None
    failed: str = ""
    seconds: float = 0.0


def without_test(federation: Federation) -> Federation:
    """The same clients without their test rows."""
    start, count = federation.start.copy(), federation.count.copy()
    start[:, 2], count[:, 2] = start[:, 0], 0
    return replace(federation, start=start, count=count)


def outcome_of(
    method: Method | None,
    reason: str,
    runs: Sequence[Settings],
    tells: Sequence[Callable[[Progress], None]],
    run: Callable[[Settings, Callable[[Progress], None]], Run],
) -> Outcome:
    """What a method comes to, the mean over runs; without one it failed for that reason. ``run`` is how a run is made."""
    rounds, began = runs[0].rounds, time.perf_counter()
    if method is None:
        return Outcome(rounds, failed=reason)
    found = []
    try:
        for settings, tell in zip(runs, tells, strict=True):
            # Nothing is warned of: a trial is not a result.
            with warnings.catch_warnings(action="ignore", category=MethodWarning):
                found.append(valid_means(run(settings, tell)))
    except UserError as error:
        return Outcome(rounds, failed=str(error), seconds=time.perf_counter() - began)
    spent = time.perf_counter() - began
    if not np.isfinite(found).all():
        return Outcome(rounds, failed=DIVERGED, seconds=spent)
    score, loss = np.mean(found, axis=0).tolist()
    return Outcome(rounds, score, loss, seconds=spent)


def valid_means(run: Run) -> tuple[float, float]:
    """The mean personal score and loss on valid rows, over honest clients that have some; NaN if one's is no number."""
    runner = run.runner
    scores = run.record.latest("personal", "valid")
    assert scores is not None
    counted = (runner.everyone.count[:, 1] > 0) & ~runner.attackers
    found = [np.asarray(scores.metrics[name], float)[counted] for name in (runner.method.model.score, "loss")]
    if not np.isfinite(found).all():
        return np.nan, np.nan
    return float(found[0].mean()), float(found[1].mean())


def read_chosen(out: str | Path) -> dict[str, tuple[str, float]]:
    """What tuning chose for the study in a folder: {method as given: (its text, step size)}; empty if it was not tuned."""
    file = Path(out) / layout.TUNING / layout.CHOSEN
    if not file.exists():
        return {}
    return layout.read_as(
        lambda found: {label: (str(one["method"]), float(one["lr"])) for label, one in found["chosen"].items()},
        file,
    )


def write_chosen(out: Path, about: Mapping[str, Any]) -> None:
    """Keep what was chosen; ``chosen`` is as ``read_chosen`` gives it."""
    chosen = {label: {"method": text, "lr": lr} for label, (text, lr) in about["chosen"].items()}
    layout.write_json(out / layout.TUNING / layout.CHOSEN, {**about, "chosen": chosen})


@dataclass(frozen=True)
class KeptTrials:
    """Outcomes by the names of their runs, kept in a file if there is a folder."""

    folder: Path | None
    runs: dict[str, dict[str, Any]]

    @staticmethod
    def of(out: str | Path | None) -> KeptTrials:
        """What was kept before."""
        folder = None if out is None else Path(out) / layout.TUNING
        file = None if folder is None else folder / layout.TRIALS
        if file is None or not file.exists():
            return KeptTrials(folder, {})
        runs = layout.read_as(
            lambda found: {str(name): _checked(one) for name, one in found["runs"].items()},
            file,
            advice="; remove it to run all trials again",
        )
        if any(IDENTITY not in one for one in runs.values()):
            said = "which did not note model and optimizer; remove it to run all trials again"
            raise BadFile(f"{file} was written by version 0.1, {said}")
        return KeptTrials(folder, runs)

    def kept(self, name: str, identity: Identity) -> Outcome | None:
        """The outcome of a run that is there; that of other settings or data is refused."""
        found = self.runs.get(name)
        if found is None:
            return None
        other, data = differences(identity, found[IDENTITY])
        settings = None if other is None else f"{name}: {other}"
        refuse_other(settings, data, f"{self.folder} holds trials", f"the trials in {self.folder} were run")
        return Outcome(**found["outcome"])

    def put(self, name: str, text: str, lr: float, identity: Identity, outcome: Outcome) -> None:
        """Keep one outcome more."""
        about = {"setting": text, "lr": lr, IDENTITY: dict(identity.parts), "outcome": asdict(outcome)}
        self.runs[name] = about
        if self.folder is not None:
            layout.write_json(self.folder / layout.TRIALS, {"runs": self.runs})

    def close(self, table: pl.DataFrame, about: Mapping[str, Any]) -> None:
        """Keep the table of all trials, and what was chosen."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            table.write_parquet(self.folder / layout.TRIALS_TABLE)
            write_chosen(self.folder.parent, about)


def _checked(found: Mapping[str, Any]) -> dict[str, Any]:
    """A kept trial, after a check that it has all that is asked of it."""
    outcome = Outcome(**found["outcome"])
    numbers = (found["lr"], outcome.rounds, outcome.seconds, outcome.score, outcome.loss)
    if not isinstance(found["setting"], str) or not isinstance(outcome.failed, str):
        raise TypeError("a setting and a reason are texts")
    if not all(isinstance(one, int | float) for one in numbers[: 3 if outcome.failed else 5]):
        raise TypeError("rounds, seconds, step sizes, scores and losses are numbers")
    return dict(found)
