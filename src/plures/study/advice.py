"""What to run for a federation: can personalization pay, which family of methods fits, and which study tells.

Linear models of every family are fitted to training and valid rows and judged by rows that they have not seen (``signs_ways``).
Families are tried from simple to rich: one model for all, alone, one model of normalized inputs, clusters, own models
pulled to a shared one. A richer family has to save a share ``MARGIN`` of the simpler one's error. The answer is unclear, and a rival is named,
where the 95 % interval of what a richer family saves over a simpler one holds 0 though the richer one was chosen, or ``WORTH_IT`` though
the simpler one was. Clusters have to be found again in every fold.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy import stats

from plures.data import Federation
from plures.data.measure import measured
from plures.solvers.links import Floats
from plures.study.signs import Rows, Sums, Whole, rows_of
from plures.study.signs_ways import (
    FAMILIES,
    Family,
    Folds,
    Judged,
    Pulls,
    alone,
    client_means,
    clustering,
    in_clusters,
    judge,
    one_for_all,
    personal,
    pulled,
    shifted,
    stability,
)
from plures.study.signs_words import sentences, signs
from plures.study.statistics import Interval

MARGIN = 0.005
"""The share of a simpler family's error that a richer one has to save."""
WORTH_IT = 0.02
"""A richer family that may save as much as this is not ruled out."""
FEW = 10
"""With fewer clients, intervals are about these clients: they come from rows, not from how clients differ."""
LEVEL = 0.95
FOUND_AGAIN = 0.5
"""Clusters count where the Rand index, corrected for chance, of those of a fold with those of all rows is this large."""
MOST_PULL = 30.0
"""In the picture models are pulled no harder than this, so that differences show."""
TOLD = 2.0
"""A client's own rows tell whether it gains where the gain is so many standard errors from 0."""

METHODS = {
    "global": (),
    "alone": ("ditto",),
    "shift": ("fedbn", "fedavg|norm:policy=recalibrate", "lgmix"),
    "clusters": ("hypcluster_auto:up_to={most}", "ifca:num_clusters={k}"),
    "personal": ("ditto", "fedclup"),
}
"""The methods that a family stands for; beside them go those of ``ALWAYS``."""
ALWAYS = ("fedavg", "fedavg|finetune", "local_only")
WITHOUT_NORM = ("lgmix", "ditto")
"""Instead of "shift", where no model has normalization layers."""


class Found(NamedTuple):
    """The best clusters: everyone's ``label`` (N,), and how alike those of all folds are (1: the same)."""

    k: int
    label: Whole
    stability: float


@dataclass(frozen=True, eq=False)
class Advice:
    """What was measured, and what follows.

    Errors are squared ones on held-out rows, as shares of what the mean of all rows leaves. ``floor`` is the error
    that noise leaves to the best linear models; None where no client has more rows than its model has numbers.
    """

    rows: Rows
    ways: dict[str, Judged]
    skews: dict[str, float | None]
    floor: float | None
    found: Found | None
    points: Floats  # (N, 2) where clients' models lie
    num_groups: int
    num_columns: int

    @cached_property
    def errors(self) -> dict[str, Floats]:
        """(N,) mean held-out errors of clients, by family."""
        return {name: client_means(self.rows, way.errors) for name, way in self.ways.items()}

    @cached_property
    def means(self) -> dict[str, float]:
        """The mean over clients of each."""
        return {name: float(np.nanmean(errors)) for name, errors in self.errors.items()}

    @cached_property
    def accuracies(self) -> dict[str, float]:
        """The mean over clients of the share of held-out rows whose class is told, by family; of classes only."""
        if self.rows.task != "classification":
            return {}
        return {name: float(np.nanmean(client_means(self.rows, way.hits))) for name, way in self.ways.items()}

    def saved(self, before: str, after: str) -> Interval:
        """The share of one family's error that another saves, with its interval."""
        falls = self.ways[before].errors - self.ways[after].errors
        return mean_fall(self.rows, falls / self.means[before])

    @cached_property
    def able(self) -> tuple[str, ...]:
        """The families that may be advised, simple ones first: clusters only if folds find them again."""
        lost = self.found is not None and self.found.stability < FOUND_AGAIN
        return tuple(name for name in self.ways if name != "clusters" or not lost)

    @cached_property
    def family(self) -> str:
        """The simplest family of which no richer one saves ``MARGIN``."""
        now = "global"
        for name in self.able[1:]:
            if self.saved(now, name).mean > MARGIN:
                now = name
        return now

    @cached_property
    def rivals(self) -> tuple[str, ...]:
        """The families that the evidence does not separate from the one chosen, the nearest first, and of those the simplest.

        Simpler ones that it may not beat at all, and richer ones that may save ``WORTH_IT``.
        """
        close = {}
        for name in self.able:
            simple, rich = sorted((name, self.family), key=FAMILIES.index)
            gain = self.saved(simple, rich)
            doubtful = gain.low <= 0 if self.family == rich else gain.high >= WORTH_IT
            if name != self.family and doubtful:
                close[name] = round(abs(gain.mean - MARGIN) / max(gain.high - gain.low, 1e-12), 1)
        return tuple(sorted(close, key=lambda name: (close[name], FAMILIES.index(name))))

    @property
    def rival(self) -> str | None:
        """The nearest of them; None where all families are clearly apart."""
        return self.rivals[0] if self.rivals else None

    @property
    def pays(self) -> str:
        """Whether personalization can pay: "yes", "no" or "unclear"."""
        if "global" in self.rivals or (self.family == "global" and self.rivals):
            return "unclear"
        return "no" if self.family == "global" else "yes"

    @cached_property
    def best_other(self) -> str:
        """The family with the least error but for the one chosen."""
        return min((name for name in self.able if name != self.family), key=lambda name: self.means[name])

    @cached_property
    def told(self) -> np.ndarray:
        """(N,) whether a client's own rows tell one model for all from the family chosen (if that is global: the next)."""
        other = self.family if self.family != "global" else self.best_other
        falls = self.ways["global"].errors - self.ways[other].errors
        mean, error = _of_clients(self.rows, falls)
        return np.asarray(np.abs(mean) > TOLD * error)

    @cached_property
    def costs(self) -> dict[str, float] | None:
        """What noise costs those alone, and what differences cost one model for all, above the floor."""
        if self.floor is None:
            return None
        return {
            "noise": max(self.means["alone"] - self.floor, 0.0),
            "differences": max(self.means["global"] - self.floor, 0.0),
        }

    @property
    def wants(self) -> tuple[str, ...]:
        """The families that a study has to tell apart."""
        return (self.family,) if self.rival is None else (self.family, self.rival)

    @property
    def model(self) -> str | None:
        """The model of the study; None leaves it to the task."""
        return "mlp_norm" if "shift" in self.wants and self.rows.task == "classification" else None

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the study that tells."""
        found = list(ALWAYS)
        k = self.found.k if self.found else 2
        for family in self.wants:
            named = WITHOUT_NORM if family == "shift" and self.model is None else METHODS[family]
            found += [name.format(k=k, most=min(k + 2, self.rows.num)) for name in named]
        return (*dict.fromkeys(found), *(("oracle",) if self.num_groups > 1 else ()))

    @cached_property
    def table(self) -> pl.DataFrame:
        """A row per client: rows, held-out errors by family, what the chosen one saves, whether own rows tell, its cluster."""
        labels = None if self.found is None else self.found.label
        return pl.DataFrame(
            {
                "client": self.rows.names,
                "rows": self.rows.counts,
                **{f"error_{name}": errors for name, errors in self.errors.items()},
                "saved": self.errors["global"] - self.errors[self.family],
                "told": self.told,
                "cluster": labels,
            }
        ).fill_nan(None)


def mean_fall(rows: Rows, falls: Floats) -> Interval:
    """The mean over clients of their mean falls (n,), with its 95 % interval.

    Over clients by Student's t. With fewer than ``FEW`` clients it is about these clients: only their rows are chance.
    """
    mean, error = _of_clients(rows, falls)
    known = np.isfinite(mean)
    number, middle = int(known.sum()), float(mean[known].mean())
    if number >= FEW:
        wide = stats.t.ppf(0.5 + LEVEL / 2, number - 1) * mean[known].std(ddof=1) / np.sqrt(number)
    else:
        wide = stats.norm.ppf(0.5 + LEVEL / 2) * np.sqrt(np.square(error[known]).sum()) / number
    return Interval(middle, middle - float(wide), middle + float(wide))


def _of_clients(rows: Rows, values: Floats) -> tuple[Floats, Floats]:
    """(N,) means of values (n,) and their standard errors; infinite with fewer than two rows."""
    mean, count = client_means(rows, values), np.bincount(rows.owner[np.isfinite(values)], minlength=rows.num)
    off = np.square(values - mean[rows.owner])
    spread = client_means(rows, off) * count / np.maximum(count - 1, 1)
    return mean, np.where(count > 1, np.sqrt(spread / np.maximum(count, 1)), np.inf)


def advise(federation: Federation, *, tell: Callable[[str], None] = lambda stage: None) -> Advice:
    """Everything: signs from training and valid rows, and what follows; ``tell`` hears the stage."""
    tell("rows: columns on one scale, folds")
    rows = rows_of(federation)
    tell("how clients differ in labels, inputs and size")
    skews = measured(federation)
    folds = Folds.of(rows)
    ways: dict[str, Judged] = {}

    def judged(family: Family) -> Judged:
        ways[family.name] = judge(family, folds)
        return ways[family.name]

    tell("one model for all, and models alone")
    common, ridge = judged(one_for_all(folds)).overall, judged(alone(folds)).overall
    tell("own models pulled to a shared one")
    pulls = judged(personal(folds, alone_ridge=ridge, global_ridge=common)).overall
    tell("one model of inputs that each client normalizes")
    if rows.x.shape[1] > 1:
        judged(shifted(rows, global_ridge=common))
    tell("clusters of clients")
    at = clustering(folds, ridge=ridge, pulls=pulls)
    found = None
    if (family := in_clusters(folds, at)).settings:
        k = judged(family).overall
        found = Found(k, at(-1, k).label, stability(folds, at, k))
    return Advice(
        rows,
        {name: ways[name] for name in FAMILIES if name in ways},
        skews,
        noise_floor(folds.whole),
        found,
        own_points(folds, pulls),
        federation.num_groups,
        int(np.prod(federation.shape, dtype=int)),
    )


def noise_floor(whole: Sums, least: float = 10.0) -> float | None:
    """The error that noise leaves: what own models leave of their own rows, per row beyond the numbers of a model."""
    values, vectors = np.linalg.eigh(whole.gram)
    on = values > 1e-9 * np.maximum(values[:, -1:], 1e-300)
    turned = np.matmul(vectors.swapaxes(1, 2), whole.cross)  # (N, D, C)
    explained = (np.square(turned).sum(2) * np.where(on, 1.0 / np.where(on, values, 1.0), 0.0)).sum(1)
    spare = whole.count - on.sum(1)
    some = spare > 0
    if spare[some].sum() < least:
        return None
    return float(max((whole.square - explained)[some].sum() / spare[some].sum(), 0.0))


def own_points(folds: Folds, pulls: Pulls) -> Floats:
    """(N, 2) where clients' models lie, on the two axes along which they differ most."""
    at_most = pulls._replace(slopes=min(pulls.slopes, MOST_PULL), intercept=min(pulls.intercept, MOST_PULL))
    models = pulled(folds.whole, at_most)
    flat = models.reshape(len(models), -1)
    flat = flat - flat.mean(0)
    left, sizes, _ = np.linalg.svd(flat, full_matrices=False)
    points = np.zeros((len(flat), 2))
    number = min(2, len(sizes))
    points[:, :number] = left[:, :number] * sizes[:number]
    return points


def save_advice(advice: Advice, folder: Path) -> None:
    """Clients and summary as files."""
    folder.mkdir(parents=True, exist_ok=True)
    advice.table.write_csv(folder / "clients.csv")
    (folder / "advice.json").write_text(json.dumps(summary(advice), indent=2) + "\n")


def summary(advice: Advice) -> dict[str, Any]:
    """The result as plain facts."""
    found = advice.found
    return {
        "pays": advice.pays,
        "family": advice.family,
        "rival": advice.rival,
        "said": sentences(advice),
        "signs": {sign.name: sign.value for sign in signs(advice)},
        **advice.skews,
        "errors": advice.means,
        "accuracies": advice.accuracies,
        "saved_over_global": {name: _ends(advice.saved("global", name)) for name in advice.ways},
        "noise_floor": advice.floor,
        "clusters": None if found is None else {"k": found.k, "stability": found.stability},
        "clients": advice.rows.num,
        "clients_too_small_to_tell": int((~advice.told).sum()),
        "methods": list(advice.methods),
        "model": advice.model,
        "notes": list(advice.rows.notes),
    }


def _ends(gain: Interval) -> list[float]:
    return [gain.mean, gain.low, gain.high]
