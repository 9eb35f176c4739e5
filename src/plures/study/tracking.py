"""Studies followed elsewhere: TensorBoard, MLflow, or anything that is called as a study goes.

A tracker is called with every ``StudyProgress`` and closed once, with the result or with None if the study failed:

    tracker("tensorboard:runs/tb")      a folder per run, for `tensorboard --logdir runs/tb`
    tracker("mlflow:sqlite:///x.db")    an MLflow run per run, under one for the study
    tracker("mlflow")                   the same, where MLflow itself is set to

Their packages are optional and loaded only here.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import polars as pl
import polars.selectors as cs

from plures.errors import BadValue, UnknownChoice, Unsupported
from plures.study.disk.layout import flat, score_column, undotted

if TYPE_CHECKING:
    from plures.study.comparison import Comparison
    from plures.study.grid import StudyProgress

About = Mapping[str, Any]
Job = tuple[str, int]
"""A run of a study: (method, seed)."""

PACKAGES = {"tensorboard": "tensorboardX", "mlflow": "mlflow"}


class Tracker(Protocol):
    """Whoever follows a study."""

    def __call__(self, now: StudyProgress) -> None:
        """Take note of how far a run is."""

    def close(self, result: Comparison | None, about: About) -> None:
        """Take note of the result (None: the study failed) and of its settings, and end."""


def tracker(text: str) -> Tracker:
    """The tracker a text names: ``"tensorboard:FOLDER"``, ``"mlflow:URI"`` or ``"mlflow"``."""
    kind, where = _parted(text)
    if kind == "tensorboard":
        return TensorBoard(_library(kind), Path(where))
    return MLflow.opened(_library(kind), where or None)


def check_tracker(text: str) -> None:
    """Refuse a text that names no tracker, or one whose package is not there; nothing is opened."""
    kind, _ = _parted(text)
    if importlib.util.find_spec(PACKAGES[kind]) is None:
        raise Unsupported(_lacking(kind))


def _parted(text: str) -> tuple[str, str]:
    """The kind of a tracker, and where it writes."""
    kind, _, where = text.strip().partition(":")
    if kind not in PACKAGES:
        raise UnknownChoice("tracker", kind, PACKAGES)
    if kind == "tensorboard" and not where:
        raise BadValue("tracker", text, "tensorboard:FOLDER, for example tensorboard:runs/tb")
    return kind, where


@dataclass(frozen=True)
class Watch:
    """What a study tells: how far it is, and in the end its result."""

    tell: Callable[[StudyProgress], None]
    done: Callable[[Comparison], None]


@contextmanager
def open_trackers(
    track: Sequence[str | Tracker], progress: Callable[[StudyProgress], None] | None, about: About
) -> Iterator[Watch]:
    """Trackers and ``progress`` called as a study goes; trackers are closed when the block ends, however it ends.

    A tracker that fails on the way is dropped with a warning: hours of training do not end for it.
    """
    found: list[Tracker] = []
    results: list[Comparison] = []

    def tell(now: StudyProgress) -> None:
        if progress is not None:
            progress(now)
        for one in list(found):
            if not _went_well(one, partial(one, now)):
                found.remove(one)

    try:
        for one in [track] if isinstance(track, str) else track:
            found.append(tracker(one) if isinstance(one, str) else one)
        yield Watch(tell, results.append)
    finally:
        for one in found:
            _went_well(one, partial(one.close, results[0] if results else None, about))


def _went_well(one: Tracker, call: Callable[[], None]) -> bool:
    try:
        call()
    except Exception as error:
        said = f"{type(one).__name__} no longer follows the study: {type(error).__name__}: {error}"
        warnings.warn(said, UserWarning, stacklevel=3)
        return False
    return True


def progress_numbers(now: StudyProgress) -> dict[str, float]:
    """What is tracked while a run goes, by name."""
    run = now.run
    found = {
        f"valid/{run.metric}": run.score,
        "valid/loss": run.loss,
        "megabytes": run.num_bytes / 1e6,
        "rounds_per_second": run.rounds_per_second,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def final_numbers(result: Comparison) -> dict[Job, dict[str, float]]:
    """The means of each run over honest clients on test rows, by name: clients in training, and unseen ones."""
    found: dict[Job, dict[str, float]] = {}
    for (method, seed, seen), mine in result.honest.group_by("method", "seed", "seen", maintain_order=True):
        prefix = "test" if seen else "unseen_test"
        means = {metric: mine[score_column(metric)].mean() for metric in {result.metric, "loss"}}
        numbers = {f"{prefix}/{name}": float(value) for name, value in means.items() if isinstance(value, float)}
        found.setdefault((str(method), int(str(seed))), {}).update(numbers)
    return found


def board_numbers(result: Comparison, prefix: str = "") -> dict[str, dict[str, float]]:
    """The leaderboard's numbers, method by method."""
    board = result.leaderboard.select("method", cs.numeric().cast(pl.Float64).fill_nan(None)).rows_by_key(
        "method", named=True, unique=True
    )
    return {
        method: {f"{prefix}{name}": one for name, one in row.items() if one is not None}
        for method, row in board.items()
    }


@dataclass(frozen=True)
class TensorBoard:
    """Event files: a folder per method with one per seed, and the study's settings and leaderboard as text."""

    library: Any
    folder: Path
    writers: dict[str, Any] = field(default_factory=dict)

    def __call__(self, now: StudyProgress) -> None:
        """Add a point to the curves of a run."""
        self._add(_place(now.method, now.seed), progress_numbers(now), now.run.round)

    def close(self, result: Comparison | None, about: About) -> None:
        """Add the final scores of every run and the leaderboard."""
        if result is not None:
            rounds = int(about.get("rounds", 0))
            for (method, seed), numbers in final_numbers(result).items():
                self._add(_place(method, seed), numbers, rounds)
            for method, numbers in board_numbers(result, "leaderboard/").items():
                self._add(_place(method), numbers, rounds)
            with pl.Config(tbl_formatting="MARKDOWN", tbl_hide_column_data_types=True, tbl_rows=-1, tbl_cols=-1):
                self._writer(".").add_text("leaderboard", str(result.leaderboard), rounds)
        self._writer(".").add_text("settings", f"```\n{json.dumps(dict(about), indent=2, default=str)}\n```", 0)
        for writer in self.writers.values():
            writer.close()

    def _add(self, place: str, numbers: Mapping[str, float], step: int) -> None:
        writer = self._writer(place)
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # a study that is killed leaves what it told

    def _writer(self, place: str) -> Any:
        if place not in self.writers:
            self.writers[place] = self.library.SummaryWriter(str(self.folder / place))
        return self.writers[place]


@dataclass(frozen=True)
class MLflow:
    """An MLflow run for the study, with its settings and leaderboard, and under it one for every (method, seed)."""

    client: Any
    experiment: str
    study: str
    runs: dict[Job, str] = field(default_factory=dict)

    @staticmethod
    def opened(library: Any, uri: str | None) -> MLflow:
        """The tracker, after the store at ``uri`` was reached and has an experiment called plures."""
        try:
            client = library.tracking.MlflowClient(tracking_uri=uri)
            known = client.get_experiment_by_name("plures")
            experiment = known.experiment_id if known else client.create_experiment("plures")
            study = client.create_run(experiment, run_name="study").info.run_id
        except ImportError as error:
            raise Unsupported(f"MLflow cannot open {uri or 'its store'}: {error}") from error
        except library.exceptions.MlflowException as error:
            raise BadValue("mlflow", uri, f"a store that can be opened ({error})") from error
        return MLflow(client, experiment, study)

    def __call__(self, now: StudyProgress) -> None:
        """Add a point to the curves of a run."""
        self._add(self._run((now.method, now.seed)), progress_numbers(now), now.run.round)

    def close(self, result: Comparison | None, about: About) -> None:
        """Add final scores and the leaderboard, end all runs, and add the settings; a setting refused costs no other."""
        try:
            self._add_results(result, about)
        finally:
            for run in (*self.runs.values(), self.study):
                self.client.set_terminated(run, "FAILED" if result is None else "FINISHED")
        refused = [name for name, value in flat(about) if not self._param(self.study, name, value)]
        if refused:
            warnings.warn(f"MLflow did not take {', '.join(refused)}", UserWarning, stacklevel=2)

    def _add_results(self, result: Comparison | None, about: About) -> None:
        if result is not None:
            rounds = int(about.get("rounds", 0))
            for job, numbers in final_numbers(result).items():
                self._add(self._run(job), numbers, rounds)
            for method, numbers in board_numbers(result).items():
                named = {f"{_plain(method)}/{name}": value for name, value in numbers.items()}
                self._add(self.study, named, rounds)

    def _param(self, run: str, name: str, value: Any) -> bool:
        """Whether a setting could be logged."""
        try:
            self.client.log_param(run, _plain(name), str(value)[:500])
        except Exception:  # whatever the store raises: results matter more than settings
            return False
        return True

    def _run(self, job: Job) -> str:
        if job not in self.runs:
            method, seed = job
            tags = {"mlflow.parentRunId": self.study}
            found = self.client.create_run(self.experiment, run_name=f"{method} seed {seed}", tags=tags)
            self.runs[job] = found.info.run_id
            for name, value in (("method", method), ("seed", seed)):
                self._param(self.runs[job], name, value)
        return self.runs[job]

    def _add(self, run: str, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.client.log_metric(run, name, value, step=step)


def _library(kind: str) -> Any:
    try:
        return importlib.import_module(PACKAGES[kind])
    except ImportError as error:
        raise Unsupported(_lacking(kind)) from error


def _lacking(kind: str) -> str:
    return f"tracking with {kind} needs a package: pip install 'plures[{kind}]'"


def _place(method: str, seed: int | None = None) -> str:
    """A folder's name; different methods have different ones."""
    name = undotted(quote(method, safe="=,+|:"))
    return name if seed is None else f"{name}/seed-{seed}"


def _plain(name: str) -> str:
    """A name in letters that every release of MLflow takes, and no longer than it takes.

    >>> _plain("tuned.ditto:lam=0.5|finetune")
    'tuned.ditto_lam_0.5_finetune'
    """
    return re.sub(r"[^\w. -]", "_", name)[:250]
