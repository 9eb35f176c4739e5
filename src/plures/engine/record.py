"""What happened in a run: scores per (round, uid, split, kind, metric), diagnostics, participation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import polars as pl

ROW = {
    "round": "Int32",
    "uid": "Int32",
    "split": "String",
    "kind": "String",
    "metric": "String",
    "value": "Float32",
}


@dataclass(frozen=True)
class Scores:
    """One evaluation: for one kind of model and split, metrics with one number per client."""

    round: int
    kind: str
    split: str
    uid: np.ndarray
    metrics: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Visits:
    """How often each training client took part in one phase, in how many exchanges, and the bytes of each message."""

    phase: str
    rounds: int
    visits: np.ndarray
    exchanges: np.ndarray
    join: int
    down: int
    up: int
    answer: int

    @property
    def bytes_down(self) -> np.ndarray:
        """Downloaded bytes per client."""
        return self.exchanges * self.down + self.visits * self.answer + np.minimum(self.visits, 1) * self.join

    @property
    def bytes_up(self) -> np.ndarray:
        """Uploaded bytes per client."""
        return self.exchanges * self.up


@dataclass(frozen=True)
class Record:
    """All that was seen of a run, growing by replacement."""

    scores: tuple[Scores, ...] = ()
    info: tuple[tuple[int, str, float], ...] = ()
    past: tuple[Visits, ...] = ()

    def with_scores(self, round_: int, uid: np.ndarray, found: Any, splits: tuple[str, ...]) -> Record:
        """The record with one evaluation more; test scores of a run that went on are replaced."""
        rows = [
            Scores(round_, kind, split, uid, {name: np.asarray(v) for name, v in metrics.items()})
            for kind, by_split in found.items()
            for split, metrics in by_split.items()
            if split in splits
        ]
        kept = tuple(one for one in self.scores if "test" not in splits or one.split != "test")
        return replace(self, scores=kept + tuple(rows))

    def with_info(self, first_round: int, info: Mapping[str, np.ndarray]) -> Record:
        """The record with the diagnostics of some rounds more; values are (rounds,)."""
        rows = [
            (first_round + index + 1, name, float(value))
            for name, values in info.items()
            for index, value in enumerate(values)
        ]
        return replace(self, info=self.info + tuple(rows))

    def with_past(self, visits: Visits) -> Record:
        """The record with a finished phase more."""
        return replace(self, past=self.past + (visits,))

    def num_bytes(self, now: Visits) -> int:
        """Bytes that crossed the network, all clients together, with those of the phase that is played now."""
        return int(sum((one.bytes_down + one.bytes_up).sum() for one in [*self.past, now]))

    def latest(self, kind: str, split: str) -> Scores | None:
        """The last evaluation of a kind of model on a split."""
        found = [one for one in self.scores if (one.kind, one.split) == (kind, split)]
        return found[-1] if found else None

    def table(self) -> pl.DataFrame:
        """A row per (round, uid, split, kind, metric)."""
        import polars as pl

        schema: dict[Any, Any] = {name: getattr(pl, kind) for name, kind in ROW.items()}
        parts = [
            pl.DataFrame(dict(zip(ROW, (one.round, one.uid, one.split, one.kind, name, values), strict=True))).cast(
                schema
            )
            for one in self.scores
            for name, values in one.metrics.items()
        ]
        return pl.concat(parts) if parts else pl.DataFrame(schema=schema)

    def info_table(self) -> pl.DataFrame:
        """A row per (round, name) of the cohort's mean diagnostics."""
        import polars as pl

        columns = {"round": pl.Int32, "name": pl.String, "value": pl.Float64}
        return pl.DataFrame(list(self.info), schema=columns, orient="row")


@dataclass(frozen=True)
class Progress:
    """How far a run is, for whoever shows it."""

    round: int
    rounds: int
    num_bytes: int
    metric: str
    score: float | None
    seconds: float
    rounds_per_second: float
    loss: float | None = None  # on valid rows, as the score


def mean_known(found: Scores | None, metric: str, rows: np.ndarray) -> float | None:
    """The mean of a metric over some clients that have one; None if no client has."""
    if found is None or metric not in found.metrics:
        return None
    values = found.metrics[metric][rows]
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
