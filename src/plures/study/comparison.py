"""The result of a comparison: the per-client table first, and everything that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl

from plures.engine import AttackSummary
from plures.registry import METHODS
from plures.study.disk.layout import ATTACKER, score_column
from plures.study.pairs import Pair, in_pairs
from plures.study.statistics import bootstrap, gini, over_seeds, share_worse, weighted_mean, worst_decile

ALONE, GLOBAL = "local_only", "fedavg"
"""The two ends that every method is held against: no collaboration, and one model for all."""

KNOWING = "knows the groups"


@dataclass(frozen=True)
class Comparison:
    """The result: ``clients`` has a row per (method, seed, client).

    Under attack, attackers have rows there too, and everything else is about the honest clients. ``newcomers`` has a row per
    (method, seed, unseen client, how many rows it brings), where that was measured.
    """

    clients: pl.DataFrame
    metric: str
    higher_is_better: bool
    seconds: Mapping[str, float]
    attackers: AttackSummary | None = None
    told: tuple[str, ...] = ()  # by methods, of their first seed
    # Policies for normalization layers; {} for a model without.
    norms: Mapping[str, str] = field(default_factory=dict)
    newcomers: pl.DataFrame | None = None

    @property
    def honest(self) -> pl.DataFrame:
        """The rows of honest clients."""
        return honest_of(self.clients)

    @cached_property
    def methods(self) -> list[str]:
        """The labels of the methods, as given."""
        return self.clients["method"].unique(maintain_order=True).to_list()

    @cached_property
    def leaderboard(self) -> pl.DataFrame:
        """A row per method, the best first; ``against_best`` and ``p`` are those of ``pairs``.

        The best one is the first that does not read the planted groups: such a method is a ceiling, and is said to be one.
        """
        return self._with_verdict(self._ranked)

    @cached_property
    def _ranked(self) -> pl.DataFrame:
        table = pl.DataFrame([self._row(name) for name in self.methods], infer_schema_length=None)
        table = table.with_columns(pl.col("mean").fill_nan(None))
        return table.sort("diverged", "mean", descending=[False, self.higher_is_better], nulls_last=True)

    @cached_property
    def pairs(self) -> list[Pair]:
        """Every two methods, in the order of the leaderboard: how much the first scores above the second.

        Intervals hold for all pairs together, so also for the best method, whichever that is. A method that diverged, that
        has no scores, or whose runs are not all there is left out.
        """
        whole = max(self.scores(name).shape for name in self.methods)
        sound = self._ranked.filter(~pl.col("diverged") & pl.col("mean").is_not_null())["method"].to_list()
        names = [name for name in sound if self.scores(name).shape == whole]
        return in_pairs({name: self.scores(name) for name in names}, list(combinations(names, 2)))

    def pair(self, method: str, other: str) -> Pair | None:
        """How much a method scores above another one; None where that is not known."""
        for one in self.pairs:
            if (one.method, one.other) == (method, other):
                return one
            if (one.method, one.other) == (other, method):
                return Pair(method, other, -one.mean, -one.high, -one.low, one.p)
        return None

    def scores(self, method: str, *, seen: bool = True) -> np.ndarray:
        """(seeds, clients) final personal scores of a method on test rows."""
        return self._wide(method, score_column(self.metric), seen=seen)

    @cached_property
    def digits(self) -> int:
        """How many decimals scores are shown with: three, more for small ones and fewer for large ones."""
        sizes = [abs(mean) for mean in self._ranked["mean"] if mean]
        return min(max(3 - math.floor(math.log10(float(np.median(sizes)) * 10 / 3)), 0), 9) if sizes else 3

    def gains(self, method: str, over: str) -> np.ndarray:
        """(clients,) by how much clients in training are better off with a method than with another, over seeds."""
        sign = 1 if self.higher_is_better else -1
        gap: np.ndarray = sign * (over_seeds(self.scores(method)) - over_seeds(self.scores(over)))
        return gap

    def diverged(self, method: str) -> bool:
        """Whether some client with test rows got a model whose loss is not a finite number."""
        mine = self.honest.filter((pl.col("method") == method) & (pl.col("test_rows") > 0))
        loss = mine[score_column("loss")].cast(pl.Float64).fill_null(np.nan)
        return not bool(loss.is_finite().all())

    def _wide(self, method: str, column: str, *, seen: bool = True) -> np.ndarray:
        mine = self.honest.filter((pl.col("method") == method) & (pl.col("seen") == seen))
        wide = mine.sort("seed", "uid").select("seed", column)
        parts = [one[column] for _, one in wide.group_by(["seed"], maintain_order=True)]
        return np.array([part.cast(pl.Float64).fill_null(np.nan).to_numpy() for part in parts])

    def _row(self, name: str) -> dict[str, Any]:
        values, better = self.scores(name), self.higher_is_better
        interval, each = bootstrap(values), over_seeds(values)
        mine = self.honest.filter((pl.col("method") == name) & pl.col("seen"))
        size = (mine["bytes_down"] + mine["bytes_up"]).mean()
        others = self.scores(name, seen=False)
        return {
            "method": name,
            "mean": interval.mean,
            "low": interval.low,
            "high": interval.high,
            "weighted_mean": weighted_mean(each, self._wide(name, "test_rows")[0]),
            "worst_decile": worst_decile(each, higher_is_better=better),
            "gini": gini(each),
            **self._against(name, ALONE, "alone"),
            **self._against(name, GLOBAL, "global"),
            "unseen": float(np.nanmean(others)) if others.size and np.isfinite(others).any() else None,
            "mb_per_client": None if size is None else float(np.asarray(size, float)) / 1e6,
            "seconds": self.seconds.get(name),
            "steps_per_client": mine["steps_per_client"].mean() if "steps_per_client" in mine.columns else None,
            "diverged": self.diverged(name),
        }

    def _against(self, name: str, end: str, said: str) -> dict[str, float | None]:
        """The share of clients that are worse off than with one of the two ends, and the mean gain over it."""
        columns = (f"worse_than_{said}", f"gain_over_{said}", f"gain_{said}_low", f"gain_{said}_high")
        if end not in self.methods or self.scores(end).shape != self.scores(name).shape:
            return dict.fromkeys(columns)
        sign = 1 if self.higher_is_better else -1
        mine, other = self.scores(name), self.scores(end)
        gain = bootstrap(sign * (mine - other))
        worse = share_worse(over_seeds(mine), over_seeds(other), higher_is_better=self.higher_is_better)
        return dict(zip(columns, (worse, gain.mean, gain.low, gain.high), strict=True))

    def _with_verdict(self, table: pl.DataFrame) -> pl.DataFrame:
        """Paired with the best method over the same clients and seeds: a clear gap, or within noise."""
        names = table["method"].to_list()
        best = next((name for name in names if not knows_groups(name)), names[0])
        found = {name: self.pair(best, name) for name in names if name != best}
        gone = dict(zip(names, table["diverged"], strict=True))
        scored = dict(zip(names, table["mean"].is_not_null(), strict=True))
        words = [_word(name, best, found.get(name), diverged=gone[name], scored=scored[name]) for name in names]
        ps = [None if (pair := found.get(name)) is None else pair.p for name in names]
        judged = table.with_columns(pl.Series("p", ps, pl.Float64), pl.Series("against_best", words, pl.String))
        return judged.drop("diverged")


def _word(name: str, best: str, pair: Pair | None, *, diverged: bool, scored: bool) -> str:
    if diverged:
        return "diverged"
    if not scored:
        return "no scores"
    if name == best:
        return "best"
    if knows_groups(name):
        return KNOWING
    return "unknown" if pair is None else "behind" if pair.clear else "within noise"


def knows_groups(label: str) -> bool:
    """Whether a method, by its label, reads the planted groups."""
    name = label.partition("|")[0].partition(":")[0].strip()
    return name in METHODS and "oracle" in METHODS[name].tags


def honest_of(clients: pl.DataFrame) -> pl.DataFrame:
    """The rows of honest clients; all where there is no attack."""
    return clients.filter(~pl.col(ATTACKER)) if ATTACKER in clients.columns else clients
