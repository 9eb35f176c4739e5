"""Trials of tuning: what one came to on valid rows, and the file that keeps it."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from plures.data import Federation
from plures.engine import Progress, Run, Settings, prepare
from plures.errors import BadFile, MethodWarning, UserError
from plures.study.compare import StudyProgress
from plures.types import Method

DIVERGED = "diverged"
FOLDER, TRIALS, CHOSEN = "tuning", "trials.json", "chosen.json"


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
    federation: Federation,
    runs: Sequence[Settings],
    tells: Sequence[Callable[[Progress], None]],
    play: Callable[[Settings, Callable[[Progress], None]], Run] | None = None,
) -> Outcome:
    """What a method comes to, the mean over runs; without one it failed for that reason. ``play`` is how a run is made."""
    rounds, began = runs[0].rounds, time.perf_counter()
    if method is None:
        return Outcome(rounds, failed=reason)
    made = play or (lambda settings, tell: prepare(method, federation, settings=settings, progress=tell).run())
    found = []
    try:
        for settings, tell in zip(runs, tells, strict=True):
            with quiet():
                found.append(valid_means(made(settings, tell)))
    except UserError as error:
        return Outcome(rounds, failed=str(error), seconds=time.perf_counter() - began)
    spent = time.perf_counter() - began
    if not np.isfinite(found).all():
        return Outcome(rounds, failed=DIVERGED, seconds=spent)
    score, loss = (float(one) for one in np.mean(found, axis=0))
    return Outcome(rounds, score, loss, seconds=spent)


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is warned of in the block: a trial is not a result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MethodWarning)
        yield


def valid_means(run: Run) -> tuple[float, float]:
    """The mean personal score and loss on valid rows, over honest clients that have some; NaN if one's is no number."""
    runner = run.runner
    scores = run.record.latest("personal", "valid")
    assert scores is not None
    counted = (runner.everyone.count[:, 1] > 0) & ~runner.byzantine
    found = [np.asarray(scores.metrics[name], float)[counted] for name in (runner.method.model.score, "loss")]
    if not np.isfinite(found).all():
        return np.nan, np.nan
    return float(found[0].mean()), float(found[1].mean())


def chosen_in(out: str | Path) -> dict[str, tuple[str, float]]:
    """What tuning chose for the study in a folder: {method as given: (its text, step size)}; empty if it was not tuned."""
    file = Path(out) / FOLDER / CHOSEN
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text())["chosen"]
        return {label: (str(one["method"]), float(one["lr"])) for label, one in found.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadFile(f"{file} is damaged: {error}") from error


class Count:
    """Counts runs for whoever shows the progress."""

    def __init__(self, progress: Callable[[StudyProgress], None] | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def teller(self, label: str, seed: int) -> Callable[[Progress], None]:
        """What the next run calls to say how far it is."""
        index, self.done = self.done, self.done + 1

        def tell(now: Progress) -> None:
            if self.progress is not None:
                self.progress(StudyProgress(label, seed, index, self.total, now))

        return tell


@dataclass(frozen=True)
class Shelf:
    """Outcomes by the names of their runs, kept in a file if there is a folder."""

    folder: Path | None
    mark: str
    runs: dict[str, dict[str, Any]]

    @staticmethod
    def of(out: str | Path | None, mark: str) -> Shelf:
        """What was kept before; that of other data or settings is refused."""
        folder = None if out is None else Path(out) / FOLDER
        file = None if folder is None else folder / TRIALS
        if file is None or not file.exists():
            return Shelf(folder, mark, {})
        try:
            kept = json.loads(file.read_text())
            before, runs = str(kept["mark"]), {str(name): _checked(one) for name, one in kept["runs"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise BadFile(f"{file} is damaged: {error}; remove it to run all trials again") from error
        if before != mark:
            raise BadFile(f"{file} holds trials with other settings ({before}); use another folder")
        return Shelf(folder, mark, runs)

    def kept(self, name: str, text: str, lr: float) -> Outcome | None:
        """The outcome of a run that is there; it must have been made with the same setting."""
        found = self.runs.get(name)
        if found is None:
            return None
        if (found["setting"], found["lr"]) != (text, lr):
            was = f"{found['setting']}, lr={found['lr']:g}"
            raise BadFile(f"{self.folder} holds {name} with another setting ({was}); use another folder")
        return Outcome(**found["outcome"])

    def put(self, name: str, text: str, lr: float, outcome: Outcome) -> None:
        """Keep one outcome more."""
        self.runs[name] = {"setting": text, "lr": lr, "outcome": asdict(outcome)}
        self._write(TRIALS, {"mark": self.mark, "runs": self.runs})

    def close(self, table: pl.DataFrame, about: Mapping[str, Any]) -> None:
        """Keep the table of all trials, and what was chosen."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            table.write_parquet(self.folder / "trials.parquet")
            self._write(CHOSEN, about)

    def _write(self, name: str, values: Mapping[str, Any]) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = self.folder / f"{name}.tmp"
        scratch.write_text(json.dumps(values, indent=2))
        scratch.replace(self.folder / name)


def _checked(found: Mapping[str, Any]) -> dict[str, Any]:
    """A kept trial, after a check that it has all that is asked of it."""
    outcome = Outcome(**found["outcome"])
    numbers = (found["lr"], outcome.rounds, outcome.seconds, outcome.score, outcome.loss)
    if not isinstance(found["setting"], str) or not isinstance(outcome.failed, str):
        raise TypeError("a setting and a reason are texts")
    if not all(isinstance(one, int | float) for one in numbers[: 3 if outcome.failed else 5]):
        raise TypeError("rounds, seconds, step sizes, scores and losses are numbers")
    return dict(found)
