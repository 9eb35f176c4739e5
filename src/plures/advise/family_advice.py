"""What to run for a federation: can personalization pay, which family of methods fits, and which study tells.

Linear models of every family are fitted to training and valid rows and judged by rows that they have not seen (``linear_families``).
Families are tried from simple to rich: one model for all, alone, one model of normalized inputs, clusters, own models
near a shared one. A richer family has to save a share ``MARGIN`` of the simpler one's error. The answer is unclear, and a rival is named,
where the 95 % interval of what a richer family saves over a simpler one holds 0 though the richer one was chosen, or ``WORTH_IT`` though
the simpler one was. Clusters have to be found again in every fold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy import stats

from plures.advise import linear_families as fits
from plures.advise.advice import Advice, bounds
from plures.advise.families import FAMILIES, ModelFamily
from plures.advise.family_wording import SAME, sentences_of, signs_of
from plures.advise.fold_sums import FoldedRows, Ints, fold_rows, noise_floor
from plures.advise.linear_families import FoldSums, HeldOutErrors, LinearFamily, ProximalWeights, client_means
from plures.advise.preparation import POOLED
from plures.app.running import study_on
from plures.app.study import Study
from plures.data import Federation
from plures.data.measure import measure_differences
from plures.errors import UserError
from plures.study.disk import layout
from plures.study.statistics import Interval
from plures.types import Floats

MARGIN = 0.005
"""The share of a simpler family's error that a richer one has to save."""
WORTH_IT = 0.02
"""A richer family that may save as much as this is not ruled out."""
FEW, LEVEL = 10, 0.95
"""With fewer clients, intervals are about these clients: they come from rows, not from how clients differ."""
FOUND_AGAIN = 0.5
"""ModelClusters count where the Rand index, corrected for chance, of those of a fold with those of all rows is this large."""
MOST_WEIGHT = 30.0
"""In the picture models are held no nearer than this, so that differences show."""
NEARLY_ALL = 0.8
"""Clients outside a cluster of so large a share of all are outliers."""
CERTAIN = 2.0
"""A client's own rows tell whether it gains where the gain is so many standard errors from 0."""

ORDER = tuple(FAMILIES)

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
FIRST = {
    "global": "fedavg",
    "alone": "local_only",
    "shift": "fedavg|finetune",
    "clusters": "hypcluster_auto",
    "personal": "fedclup",
}
"""The method to take where there is no time for a study; see ``FamilyAdvice.first``."""


class BestClusters(NamedTuple):
    """The best clusters: everyone's ``label`` (N,), and how alike those of all folds are (1: the same)."""

    k: int
    label: Ints
    stability: float


@dataclass(frozen=True, eq=False)
class FamilyAdvice(Advice):
    """What was measured of every family, and what follows.

    Errors are squared ones on held-out rows, as shares of what the mean of all rows leaves. ``floor`` is the error
    that noise leaves to the best linear models; None where no client has more rows than its model has numbers.
    """

    QUESTION = "which family of methods fits?"
    SUMMARY = layout.ADVICE
    COMMAND = "plures advise"
    LOOKS = "rows held out in folds, of linear models with squared errors"

    rows: FoldedRows
    scores: dict[str, HeldOutErrors]
    skews: dict[str, float | None]
    floor: float | None
    clusters: BestClusters | None
    points: Floats  # (N, 2) where clients' models lie
    num_groups: int
    outliers: tuple[str, ...] = ()  # clients unlike all others, left out of the rest
    asked: Study | None = None  # of which data: a study on them, where a text names them

    @cached_property
    def errors(self) -> dict[str, Floats]:
        """(N,) mean held-out errors of clients, by family."""
        return {name: client_means(self.rows, held.errors) for name, held in self.scores.items()}

    @cached_property
    def means(self) -> dict[str, float]:
        """The mean over clients of each."""
        return {name: float(np.nanmean(errors)) for name, errors in self.errors.items()}

    @cached_property
    def accuracies(self) -> dict[str, float]:
        """The mean over clients of the share of held-out rows whose class is told, by family; of classes only."""
        if self.rows.task != "classification":
            return {}
        return {name: float(np.nanmean(client_means(self.rows, held.hits))) for name, held in self.scores.items()}

    def saving(self, before: str, after: str) -> Interval:
        """The share of one family's error that another saves, with its interval."""
        falls = self.scores[before].errors - self.scores[after].errors
        found = mean_saving(self.rows, falls / self.means[before])
        return replace(found, high=min(found.high, 1.0))  # nothing saves more than all of an error

    @cached_property
    def able(self) -> tuple[str, ...]:
        """The families that may be advised, simple ones first: clusters only if folds find them again."""
        lost = self.clusters is not None and self.clusters.stability < FOUND_AGAIN
        return tuple(name for name in self.scores if name != "clusters" or not lost)

    @cached_property
    def family(self) -> ModelFamily:
        """The simplest family of which no richer one saves ``MARGIN``."""
        now = ModelFamily.GLOBAL
        for name in self.able[1:]:
            if self.saving(now, name).mean > MARGIN:
                now = ModelFamily(name)
        return now

    @property
    def possible(self) -> tuple[str, ...]:
        """The family and its rivals."""
        return (self.family, *self.rivals)

    @cached_property
    def rivals(self) -> tuple[str, ...]:
        """The families that the evidence does not separate from the one chosen, the nearest first, and of those the simplest.

        Simpler ones that it may not beat at all, and richer ones that may save ``WORTH_IT``.
        """
        close = {}
        for name in self.able:
            simple, rich = sorted((name, self.family), key=ORDER.index)
            gain = self.saving(simple, rich)
            doubtful = gain.low <= 0 if self.family == rich else gain.high >= WORTH_IT
            if name != self.family and doubtful:
                close[name] = round(abs(gain.mean - MARGIN) / max(gain.high - gain.low, 1e-12), 1)
        return tuple(sorted(close, key=lambda name: (close[name], ORDER.index(name))))

    @cached_property
    def strangers(self) -> tuple[str, ...]:
        """Clients outside the one cluster that holds nearly all, if these clusters are the same in every fold and pay."""
        found = self.clusters
        if found is None or found.stability < SAME or self.saving("global", "clusters").mean <= MARGIN:
            return ()
        sizes = np.bincount(found.label)
        if sizes.max() < NEARLY_ALL * len(found.label):
            return ()
        falls = self.scores["global"].errors - self.scores["clusters"].errors
        mean, error = _of_clients(self.rows, falls)
        apart = found.label != sizes.argmax()
        return tuple(np.array(self.rows.names)[apart].tolist()) if (mean > CERTAIN * error)[apart].all() else ()

    @property
    def verdict(self) -> str:
        """The family that fits, and the one it may be as well."""
        return self.family if self.rival is None else f"{self.family} or {self.rival}"

    @property
    def sentences(self) -> list[str]:
        """Whether personalization can pay, which family and why, how sure; and what linear models may miss."""
        return sentences_of(self)

    @property
    def remarks(self) -> list[str]:
        """What was left out or reduced."""
        named = ", ".join(self.outliers)
        apart = f"left out, for they are unlike all others in every fold: {named}; hypcluster_auto gives them a model of their own"
        return [POOLED, *([apart] if named else []), *(f"note: {note}" for note in self.rows.notes)]

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
    def certain(self) -> np.ndarray:
        """(N,) whether a client's own rows tell one model for all from the family chosen (if that is global: the next)."""
        others = [name for name in self.able if name != "global"]
        other = self.family if self.family != "global" else min(others, key=lambda name: self.means[name])
        falls = self.scores["global"].errors - self.scores[other].errors
        mean, error = _of_clients(self.rows, falls)
        return np.asarray(np.abs(mean) > CERTAIN * error)

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
    def first(self) -> str:
        """The method to take where there is no time for a study: outliers are a cluster of their own; own models that hardly
        save over those alone are those; what may be no better than one model for all, and networks, depart from it least.
        """
        if self.outliers:
            return FIRST["clusters"]
        if self.family != "personal":
            return FIRST[self.family]
        if self.saving("alone", "personal").mean < WORTH_IT:
            return FIRST["alone"]
        near = "global" in self.rivals or self.rows.task == "classification"
        return "fedavg|finetune" if near else FIRST["personal"]

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the study that tells."""
        found = [*ALWAYS, *(["hypcluster_auto"] if self.outliers else [])]
        k = self.clusters.k if self.clusters else 2
        for family in self.wants:
            named = WITHOUT_NORM if family == "shift" and self.model is None else METHODS[family]
            found += [name.format(k=k, most=min(k + 2, self.rows.num)) for name in named]
        return (*dict.fromkeys(found), *(("oracle",) if self.num_groups > 1 else ()))

    @property
    def study(self) -> Study | None:
        """The study that tells the families apart; None where no text names the data."""
        own = {"methods": self.methods, **({} if self.model is None else {"model": self.model})}
        return self.asked and self.asked.model_copy(update=own)

    def save(self, folder: str | Path) -> list[Path]:
        """The tables, the summary, the picture, and the study that tells, as a file for ``plures run``."""
        files, file = super().save(folder), Path(folder) / layout.RESOLVED
        if self.study is not None:
            file.write_text(self.study.text)
        return files if self.study is None else [*files, file]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Clients: rows, held-out errors by family, what the chosen one saves, whether own rows tell, its cluster."""
        facts = {
            "client": self.rows.names,
            "rows": self.rows.counts,
            **{f"error_{name}": errors for name, errors in self.errors.items()},
            "saved": self.errors["global"] - self.errors[self.family],
            "told": self.certain,
            "cluster": None if self.clusters is None else self.clusters.label,
        }
        return {"clients": pl.DataFrame(facts).fill_nan(None)}

    @property
    def facts(self) -> dict[str, Any]:
        """What was measured, and the study that tells."""
        savings = {name: self.saving("global", name) for name in self.scores}
        found = self.clusters
        return {
            "pays": self.pays,
            "family": self.family,
            "rival": self.rival,
            "signs": {sign.name: sign.value for sign in signs_of(self)},
            **self.skews,
            "errors": self.means,
            "accuracies": self.accuracies,
            "saved_over_global": {name: bounds(one) for name, one in savings.items()},
            "noise_floor": self.floor,
            "clusters": None if found is None else {"k": found.k, "stability": found.stability},
            "clients": self.rows.num,
            "outliers": list(self.outliers),
            "clients_too_small_to_tell": int((~self.certain).sum()),
            "first": self.first,
            "methods": list(self.methods),
            "model": self.model,
            "notes": list(self.rows.notes),
        }


def mean_saving(rows: FoldedRows, falls: Floats) -> Interval:
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


def _of_clients(rows: FoldedRows, values: Floats) -> tuple[Floats, Floats]:
    """(N,) means of values (n,) and their standard errors; infinite with fewer than two rows."""
    mean, count = client_means(rows, values), np.bincount(rows.owner[np.isfinite(values)], minlength=rows.num)
    off = np.square(values - mean[rows.owner])
    spread = client_means(rows, off) * count / np.maximum(count - 1, 1)
    return mean, np.where(count > 1, np.sqrt(spread / np.maximum(count, 1)), np.inf)


def advise(
    federation: Federation, *, study: Study | None = None, tell: Callable[[str], None] = lambda stage: None
) -> FamilyAdvice:
    """Which family fits, from training and valid rows; ``tell`` hears the stage.

    Clients that are unlike all others are named, and the answer is about the others. ``study`` names the data, for the
    study that is advised; else it is what they were loaded by.
    """
    found, asked = _measure(federation, tell), study or study_on(federation)
    if not found.strangers:
        return replace(found, asked=asked)
    tell("the same without clients that are unlike all others")
    others = [name not in found.strangers for name in federation.names]
    return replace(_measure(federation.take(np.array(others)), tell), outliers=found.strangers, asked=asked)


def try_advise(federation: Federation) -> FamilyAdvice | None:
    """What ``advise`` says; None where linear models cannot say anything."""
    try:
        return advise(federation)
    except UserError:
        return None


def _measure(federation: Federation, tell: Callable[[str], None]) -> FamilyAdvice:
    tell("rows: columns on one scale, folds")
    rows = fold_rows(federation)
    tell("how clients differ in labels, inputs and size")
    skews = measure_differences(federation)
    folds = FoldSums.of(rows)
    scores: dict[str, HeldOutErrors] = {}

    def best(family: LinearFamily) -> Any:
        scores[family.name] = fits.judge(family, folds)
        return scores[family.name].overall

    tell("one model for all, and models alone")
    common, ridge = best(fits.global_family(folds)), best(fits.alone_family(folds))
    tell("own models near a shared one")
    weights = best(fits.personal_family(folds, alone_ridge=ridge, global_ridge=common))
    tell("one model of inputs that each client normalizes")
    if rows.x.shape[1] > 1:
        best(fits.shift_family(rows, global_ridge=common))
    tell("clusters of clients")
    at = fits.cluster_finder(folds, ridge=ridge, weights=weights)
    clusters = None
    if (family := fits.cluster_family(folds, at)).settings:
        k = best(family)
        clusters = BestClusters(k, at(-1, k).label, fits.stability(folds, at, k))
    scores = {name: scores[name] for name in ORDER if name in scores}
    points = model_points(folds, weights)
    return FamilyAdvice(rows, scores, skews, noise_floor(folds.whole), clusters, points, federation.num_groups)


def model_points(folds: FoldSums, weights: ProximalWeights) -> Floats:
    """(N, 2) where clients' models lie, on the two axes along which they differ most."""
    free = weights._replace(
        coefficients=min(weights.coefficients, MOST_WEIGHT), intercept=min(weights.intercept, MOST_WEIGHT)
    )
    flat = fits.fit_near(folds.whole, free).reshape(folds.rows.num, -1)
    left, sizes, _ = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    points = np.zeros((len(flat), 2))
    number = min(2, len(sizes))
    points[:, :number] = left[:, :number] * sizes[:number]
    return points
