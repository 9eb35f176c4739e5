"""The result of a comparison: the per-client table first, and everything that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from plures.engine import AttackSummary
from plures.registry import METHODS
from plures.study.disk.layout import ATTACKER, score_column
from plures.study.pairs import Pair, all_pairs
from plures.study.references import TRIVIAL, is_useless
from plures.study.statistics import bootstrap, gini, mean_of, over_seeds, share_worse, weighted_mean, worst_decile

if TYPE_CHECKING:
    from plures.study.references import References

ALONE, GLOBAL = "local_only", "fedavg"
"""The two ends that every method is held against: no collaboration, and one model for all."""

KNOWING = "knows the groups"
UNSOUND = ("diverged", "useless", "no scores")
"""What is said of methods that nobody should take."""


@dataclass(frozen=True, eq=False)
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
    references: References | None = None

    @property
    def honest(self) -> pl.DataFrame:
        """The rows of honest clients."""
        return honest_of(self.clients)

    @cached_property
    def methods(self) -> list[str]:
        """The labels of the methods, as given."""
        return self.clients["method"].unique(maintain_order=True).to_list()

    @property
    def num_seeds(self) -> int:
        """With how many seeds every method was run."""
        return self.clients["seed"].n_unique()

    @cached_property
    def names(self) -> np.ndarray:
        """(clients,) the names of honest clients in training, in the order of scores."""
        once = self.honest.filter(pl.col("seen")).unique("uid").sort("uid")
        return once["name"].to_numpy()

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
        """Every two methods, in the order of the leaderboard: how much the first scores above the second on test rows.

        Intervals hold for all pairs together. A method that diverged or is useless, that has no scores, or whose runs are
        not all there is left out.
        """
        return all_pairs({name: self.scores(name) for name in self.compared}).compare()

    @cached_property
    def behind(self) -> dict[str, set[str]]:
        """By split: methods that can be told from the best one on its rows; one that was told the groups does not count."""
        names = [name for name in self.compared if not knows_groups(name)]
        splits = {split: {name: self.scores(name, split=split) for name in names} for split in ("valid", "test")}
        better = self.higher_is_better
        return {split: all_pairs(scores).behind(higher_is_better=better) for split, scores in splits.items()}

    @cached_property
    def compared(self) -> list[str]:
        """Methods that can be compared, the best first: sound ones with scores for most of the clients that have any."""
        whole = max(self.scores(name).shape for name in self.methods)
        fine = ~pl.col("diverged") & ~pl.col("useless") & pl.col("mean").is_not_null()
        sound = self._ranked.filter(fine)["method"]
        known = {name: np.isfinite(self.scores(name)).sum() for name in sound if self.scores(name).shape == whole}
        return [name for name, number in known.items() if 2 * number >= max(known.values())]

    def pair(self, method: str, other: str) -> Pair | None:
        """How much a method scores above another one; None where that is not known."""
        for one in self.pairs:
            if (one.method, one.other) == (method, other):
                return one
            if (one.method, one.other) == (other, method):
                return Pair(method, other, -one.mean, -one.high, -one.low, one.p)
        return None

    def scores(self, method: str, *, seen: bool = True, split: str = "test") -> np.ndarray:
        """(seeds, clients) final personal scores of a method; NaN where there is none."""
        return self._wide(method, score_column(self.metric, split=split), seen=seen)

    def row(self, method: str) -> dict[str, Any]:
        """A method's row of the leaderboard."""
        return self.leaderboard.filter(pl.col("method") == method).row(0, named=True)

    @property
    def reference_means(self) -> dict[str, float]:
        """The mean test scores of predictors that are not federated, by name; those that are known."""
        means = {} if self.references is None else self.references.means
        return {name: mean for name, mean in means.items() if math.isfinite(mean)}

    def trivial(self, split: str = "test") -> float | None:
        """The mean score of the trivial predictor over clients in training; None where it is not known."""
        if self.references is None:
            return None
        rows = self.references.table.filter(pl.col("seen") & (pl.col("reference") == TRIVIAL))
        mean: Any = rows[f"{split}_score"].cast(pl.Float64).fill_nan(None).mean()
        return mean if mean is None else float(mean)

    @cached_property
    def digits(self) -> int:
        """How many decimals scores are shown with: three, more for small ones and fewer for large ones."""
        sound = self._ranked.filter(~pl.col("diverged") & ~pl.col("useless"))["mean"]
        sizes = [abs(mean) for mean in sound if mean] or [abs(mean) for mean in self._ranked["mean"] if mean]
        return min(max(3 - math.floor(math.log10(float(np.median(sizes)) * 10 / 3)), 0), 9) if sizes else 3

    def gains(self, method: str, over: str, *, split: str = "test") -> np.ndarray:
        """(clients,) by how much clients in training are better off with a method than with another, over seeds."""
        sign = 1 if self.higher_is_better else -1
        mine, other = (over_seeds(self.scores(name, split=split)) for name in (method, over))
        gap: np.ndarray = sign * (mine - other)
        return gap

    def useless(self, method: str) -> bool:
        """Whether a method does clearly worse than the trivial predictor on valid or on test rows, where that is known."""
        means = {split: mean_of(self.scores(method, split=split)) for split in ("valid", "test")}
        better, metric = self.higher_is_better, self.metric
        return any(
            math.isfinite(mean) and is_useless(mean, self.trivial(split), higher_is_better=better, metric=metric)
            for split, mean in means.items()
        )

    def diverged(self, method: str) -> bool:
        """Whether some client with test rows got a model whose loss is not a finite number."""
        mine = self.honest.filter((pl.col("method") == method) & (pl.col("test_rows") > 0))
        loss = mine[score_column("loss")].cast(pl.Float64).fill_null(np.nan)
        return not bool(loss.is_finite().all())

    def _wide(self, method: str, column: str, *, seen: bool = True) -> np.ndarray:
        mine = self.honest.filter((pl.col("method") == method) & (pl.col("seen") == seen))
        values = pl.col(column) if column in mine.columns else pl.lit(None, pl.Float64).alias(column)
        wide = mine.sort("seed", "uid").select("seed", values)
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
            "valid_mean": none_if_nan(mean_of(self.scores(name, split="valid"))),
            "low": interval.low,
            "high": interval.high,
            "weighted_mean": weighted_mean(each, self._wide(name, "test_rows")[0]),
            "worst_decile": worst_decile(each, higher_is_better=better),
            "gini": gini(each),
            **self._against(name, ALONE, "alone"),
            **self._against(name, GLOBAL, "global"),
            "unseen": float(np.nanmean(others)) if others.size and np.isfinite(others).any() else None,
            "mb_per_client": None if size is None else float(np.asarray(size, float)) / 1e6,
            "steps_per_client": self._steps(mine),
            "seconds": self.seconds.get(name),
            "diverged": self.diverged(name),
            "useless": self.useless(name),
        }

    def _steps(self, mine: pl.DataFrame) -> float | None:
        """Gradient steps that a client made, on average; None for studies that did not count them."""
        mean: Any = mine["steps_per_client"].cast(pl.Float64).mean() if "steps_per_client" in mine.columns else None
        return None if mean is None else float(mean)

    def _against(self, name: str, end: str, said: str) -> dict[str, float | None]:
        """The share of clients that are worse off than with one of the two ends, and the mean gain over it."""
        columns = (f"worse_than_{said}", f"gain_over_{said}", f"gain_{said}_low", f"gain_{said}_high")
        if end not in self.methods or self.scores(end).shape != self.scores(name).shape:
            return dict.fromkeys(columns)
        sign = 1 if self.higher_is_better else -1
        mine, other = self.scores(name), self.scores(end)
        with np.errstate(invalid="ignore"):  # two infinite losses
            gain = bootstrap(sign * (mine - other))
        worse = share_worse(over_seeds(mine), over_seeds(other), higher_is_better=self.higher_is_better)
        return dict(zip(columns, (worse, gain.mean, gain.low, gain.high), strict=True))

    def _with_verdict(self, table: pl.DataFrame) -> pl.DataFrame:
        """Compared with the best method over the same clients and seeds: clearly behind it, or within noise."""
        names, behind = self.compared, self.behind["test"]
        best = next((name for name in names if not knows_groups(name)), "")
        rows = table.iter_rows(named=True)
        words = ["best" if row["method"] == best else self._word(row, row["method"] in behind) for row in rows]
        found = {name: self.pair(best, name) for name in names if name != best}
        ps = [None if (pair := found.get(name)) is None else pair.p for name in table["method"]]
        judged = table.with_columns(pl.Series("p", ps, pl.Float64), pl.Series("against_best", words, pl.String))
        return judged.drop("diverged", "useless")

    def _word(self, row: Mapping[str, Any], behind: bool) -> str:
        for fault in ("diverged", "useless"):
            if row[fault]:
                return fault
        if row["mean"] is None:
            return "no scores"
        if row["method"] not in self.compared:
            return "unknown"
        if knows_groups(row["method"]):
            return KNOWING
        if self.scores(row["method"]).shape[1] < 2:
            return "unknown"
        return "behind" if behind else "within noise"


def none_if_nan(value: float) -> float | None:
    """A number, or None for one that is not known."""
    return None if math.isnan(value) else value


def knows_groups(label: str) -> bool:
    """Whether a method, by its label, reads the planted groups."""
    name = label.partition("|")[0].partition(":")[0].strip()
    return name in METHODS and "oracle" in METHODS[name].tags


def honest_of(clients: pl.DataFrame) -> pl.DataFrame:
    """The rows of honest clients; all where there is no attack."""
    return clients.filter(~pl.col(ATTACKER)) if ATTACKER in clients.columns else clients
