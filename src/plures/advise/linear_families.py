"""How well linear models do on rows that they have not seen, family by family.

    global    one model for all
    shift     one model for all, of inputs that every client centers and scales by its own rows
    clusters  one of k models: every client takes the one with the least error on its own rows (Lloyd's algorithm)
    personal  a model each, near a shared one:  min sum_i |X_i W_i - Y_i|^2 + tr (W_i - W)^T P (W_i - W)
    alone     a model each, from own rows only

Models are fitted fold by fold and judged by the rows of the fold. What a family may set (a ridge, a proximal weight P, the number k) is
chosen for each fold by the others, so that no row has a say in the choice that it judges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.metrics import adjusted_rand_score

from plures.advise.fold_sums import FoldedRows, Ints, RowSums
from plures.advise.shift import NORMALIZATIONS, normalize_inputs
from plures.keys import Purpose, derive, root
from plures.types import Floats

RIDGES = (0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
FREE, BOUND = 0.3, 1e6
"""The proximal weight of an offset that is nearly free, and of coefficients that are the same for all."""
LEAST = 1e-3
"""A ridge for intercepts and shared models, so small that rows always win."""
MOST_CLUSTERS, FEWEST_PER_CLUSTER = 8, 2
LLOYD_STEPS, LLOYD_WORK, FEWEST_STARTS, MOST_STARTS = 25, 1e7, 4, 10


class ProximalWeights(NamedTuple):
    """How much own coefficients and intercepts are held near the shared ones, and the ridges of both kinds of models."""

    coefficients: float
    intercept: float
    own_ridge: float = 0.0
    shared_ridge: float = LEAST


@dataclass(frozen=True, eq=False)
class FoldSums:
    """RowSums over the rows that are held out, fold by fold, and over the rows that models are fitted to."""

    rows: FoldedRows
    held: list[RowSums]
    fitted: list[RowSums]
    whole: RowSums

    @classmethod
    def of(cls, rows: FoldedRows) -> FoldSums:
        """Those of the rows."""
        whole = rows.sums(np.ones(len(rows.fold), bool))
        held = [rows.sums(rows.fold == fold) for fold in range(rows.num_folds)]
        return cls(rows, held, [whole.without(one) for one in held], whole)


@dataclass(frozen=True, eq=False)
class LinearFamily:
    """What may be set, and for a fold and a setting the held-out outputs (rows, C)."""

    name: str
    settings: Sequence[Any]
    losses: Callable[[int, Any], Floats]  # (N,) summed over held-out rows
    outputs: Callable[[int, Any], Floats]


@dataclass(frozen=True, eq=False)
class HeldOutErrors:
    """Held-out errors (n,) and hits (n,) of a family's rows, NaN where never held out, and what was chosen."""

    name: str
    errors: Floats
    hits: Floats
    chosen: list[Any]  # for every fold
    overall: Any  # by all folds


def client_means(rows: FoldedRows, values: Floats) -> Floats:
    """(N,) means of values (n,) that are known; NaN for clients without any."""
    known = np.isfinite(values)
    size = np.bincount(rows.owner[known], minlength=rows.num)
    total = np.bincount(rows.owner[known], values[known], minlength=rows.num)
    return np.where(size > 0, total / np.maximum(size, 1), np.nan)


def judge(family: LinearFamily, folds: FoldSums) -> HeldOutErrors:
    """The family's held-out errors, each fold with the setting that the other folds like best."""
    rows, number = folds.rows, folds.rows.num_folds
    table = np.array([[family.losses(fold, one) for fold in range(number)] for one in family.settings])
    count = np.array([one.count for one in folds.held])
    errors, hits = (np.full(len(rows.owner), np.nan) for _ in range(2))
    low, high = rows.y.min(0), rows.y.max(0)
    chosen = []
    for fold in range(number):
        others = [one for one in range(number) if one != fold] or [fold]
        setting = family.settings[_best(table[:, others].sum(1), count[others].sum(0))]
        some = rows.fold == fold
        found = np.clip(family.outputs(fold, setting), low, high)
        errors[some] = np.square(found - rows.y[some]).sum(1)
        hits[some] = found.argmax(1) == rows.y[some].argmax(1)
        chosen.append(setting)
    return HeldOutErrors(family.name, errors, hits, chosen, family.settings[_best(table.sum(1), count.sum(0))])


def _best(losses: Floats, count: Floats) -> int:
    """The index of the setting with the least mean over clients of (settings, N) losses of so many rows."""
    known = count > 0
    return int((losses[:, known] / count[known]).mean(1).argmin())


def family_of_sums(
    name: str, settings: Sequence[Any], folds: FoldSums, fit: Callable[[int, Any], Floats]
) -> LinearFamily:
    """A family whose models (1, D, C) or (N, D, C) come from sums."""
    rows = folds.rows
    return LinearFamily(
        name,
        settings,
        lambda fold, setting: folds.held[fold].losses(fit(fold, setting)),
        lambda fold, setting: rows.outputs(fit(fold, setting), rows.fold == fold),
    )


def global_family(folds: FoldSums) -> LinearFamily:
    """The family "global"; it sets a ridge."""
    return family_of_sums("global", RIDGES, folds, lambda fold, ridge: fit_pooled(folds.fitted[fold], ridge)[None])


def alone_family(folds: FoldSums) -> LinearFamily:
    """The family "alone"; it sets a ridge."""
    return family_of_sums("alone", RIDGES, folds, lambda fold, ridge: fit_alone(folds.fitted[fold], ridge))


def personal_family(folds: FoldSums, *, alone_ridge: float, global_ridge: float) -> LinearFamily:
    """The family "personal"; it sets the weights of coefficients and of intercepts, and whether own models have a ridge too.

    The ends are there: one model for all, and nearly models alone, with the ridges that suit these.
    """
    pairs = [(BOUND, weight, 0.0) for weight in (*STRENGTHS, BOUND)]
    if folds.rows.x.shape[1] > 1:
        pairs = [(weight, least, 0.0) for weight in STRENGTHS for least in (weight, FREE)]
        pairs += [(weight, FREE, alone_ridge) for weight in STRENGTHS[::2]]
        pairs += [(BOUND, weight, 0.0) for weight in (*STRENGTHS[1::3], BOUND)]
    settings = [ProximalWeights(*pair, global_ridge) for pair in pairs]
    return family_of_sums("personal", settings, folds, lambda fold, own: fit_near(folds.fitted[fold], own))


def fit_pooled(sums: RowSums, ridge: float) -> Floats:
    """(D, C) the model of all rows."""
    return np.asarray(np.linalg.solve(sums.gram.sum(0) + np.diag(_diagonal(sums, ridge, LEAST)), sums.cross.sum(0)))


def fit_alone(sums: RowSums, ridge: float) -> Floats:
    """(N, D, C) models of clients by themselves; one without rows has the mean of all."""
    return np.asarray(np.linalg.solve(sums.gram + np.diag(_diagonal(sums, ridge, FREE)), sums.cross))


def fit_near(sums: RowSums, weights: ProximalWeights) -> Floats:
    """(N, D, C) models near a shared one W: sum_i P K_i G_i W + R W = sum_i P K_i B_i with K_i = (G_i + P)^-1.

    R is the ridge of the shared model; that of own models is part of G_i.
    """
    weight = _diagonal(sums, weights.coefficients, weights.intercept)
    width = len(weight)
    gram = sums.gram + np.diag(_diagonal(sums, weights.own_ridge, 0.0))
    both = np.linalg.solve(gram + np.diag(weight), np.concatenate([gram, sums.cross], axis=2))
    known, own = both[..., :width], both[..., width:]  # K_i G_i, K_i B_i
    ridge = np.diag(_diagonal(sums, weights.shared_ridge, LEAST))
    shared = np.linalg.solve(weight[:, None] * known.sum(0) + ridge, weight[:, None] * own.sum(0))
    return np.asarray(own + shared - np.matmul(known, shared))


def _diagonal(sums: RowSums, coefficients: float, intercept: float) -> Floats:
    found = np.full(sums.gram.shape[1], coefficients)
    found[-1] = intercept
    return found


@dataclass(frozen=True, eq=False)
class ModelClusters:
    """The ``models`` (k, D, C) of clusters, everyone's ``label`` (N,), and the error left."""

    models: Floats
    label: Ints
    loss: float


def cluster_finder(
    folds: FoldSums, *, ridge: float, weights: ProximalWeights
) -> Callable[[int, int], ModelClusters]:
    """k clusters, at most one time each, of the rows that a fold fits models to; fold -1 takes all rows."""

    lots = np.asarray(jax.random.uniform(derive(root(0), Purpose.START), (MOST_STARTS, MOST_CLUSTERS)), float)

    def sums_of(fold: int) -> RowSums:
        return folds.whole if fold < 0 else folds.fitted[fold]

    @cache
    def candidates(fold: int) -> Floats:
        return fit_near(sums_of(fold), weights)

    @cache
    def at(fold: int, k: int) -> ModelClusters:
        return find_clusters(sums_of(fold), candidates(fold), lots[:, :k], ridge=ridge)

    return at


def cluster_family(folds: FoldSums, at: Callable[[int, int], ModelClusters]) -> LinearFamily:
    """The family "clusters"; it sets k, and has no settings where there are too few clients."""
    numbers = range(2, min(MOST_CLUSTERS, folds.rows.num // FEWEST_PER_CLUSTER) + 1)
    return family_of_sums("clusters", numbers, folds, lambda fold, k: (found := at(fold, k)).models[found.label])


def stability(folds: FoldSums, at: Callable[[int, int], ModelClusters], k: int) -> float:
    """The mean adjusted Rand index of clusters with those of all rows: 1 where every fold finds the same."""
    last = at(-1, k).label
    return float(np.mean([adjusted_rand_score(last, at(fold, k).label) for fold in range(folds.rows.num_folds)]))


def find_clusters(sums: RowSums, candidates: Floats, lots: Floats, *, ridge: float) -> ModelClusters:
    """The best of several starts of Lloyd's algorithm, as many as time allows; ``lots`` (starts, k) are numbers in [0, 1).

    Clusters start from models of clients (``candidates``, (N, D, C)) that are far apart.
    """
    starts = int(np.clip(LLOYD_WORK / sums.gram.size, FEWEST_STARTS, len(lots)))
    own = sums.losses(candidates)
    found = [_lloyd(sums, _far_models(sums, candidates, own, lot), ridge) for lot in lots[:starts]]
    return min(found, key=lambda one: one.loss)


def _far_models(sums: RowSums, candidates: Floats, own: Floats, lot: Floats) -> Floats:
    """(k, D, C) models of clients, each drawn with the chance of what the ones before leave it to gain."""
    chance, chosen = np.ones(len(own)), []
    left = np.full(len(own), np.inf)
    for number in lot:
        steps = np.cumsum(chance)
        drawn = min(int(np.searchsorted(steps, number * steps[-1])), len(own) - 1)
        chosen.append(candidates[drawn])
        left = np.minimum(left, sums.losses(candidates[drawn][None]))
        chance = np.maximum(left - own, 0.0) + 1e-12
    return np.array(chosen)


def _lloyd(sums: RowSums, models: Floats, ridge: float) -> ModelClusters:
    flat, everyone = sums.gram.reshape(len(sums.gram), -1), np.arange(len(sums.gram))
    cross = sums.cross.reshape(len(sums.cross), -1)
    eye = np.diag(_diagonal(sums, ridge, LEAST))
    label = np.full(len(flat), -1)
    for _ in range(LLOYD_STEPS):
        losses = sums.losses_of_each(models)
        before, label = label, losses.argmin(1)
        label = _fill(label, losses[everyone, label], len(models))
        if (label == before).all():
            break
        member = (label == np.arange(len(models))[:, None]).astype(float)  # (k, N)
        gram = (member @ flat).reshape(len(models), *eye.shape) + eye
        models = np.linalg.solve(gram, (member @ cross).reshape(models.shape))
    losses = sums.losses_of_each(models)
    return ModelClusters(models, label, float(losses[everyone, label].sum()))


def _fill(label: Ints, losses: Floats, k: int) -> Ints:
    """The labels, with those worst off moved into clusters that nobody takes."""
    label, order = label.copy(), iter(np.argsort(-losses))
    for empty in np.setdiff1d(np.arange(k), label):
        moved = next(client for client in order if (label == label[client]).sum() > 1)
        label[moved] = empty
    return label


def shift_family(rows: FoldedRows, *, global_ridge: float) -> LinearFamily:
    """The family "shift"; it sets how inputs are normalize_inputs, and has the ridge of one model for all."""

    @cache
    def parts(fold: int, kind: str) -> tuple[Floats, Floats, Floats]:
        fitted = rows.fold != fold
        x = normalize_inputs(rows, fitted, kind)
        return x[~fitted], x[fitted].T @ x[fitted], x[fitted].T @ rows.y[fitted]

    def outputs(fold: int, kind: str) -> Floats:
        held, gram, cross = parts(fold, kind)
        weight = np.append(np.full(len(gram) - 1, global_ridge), LEAST)
        return np.asarray(held @ np.linalg.solve(gram + np.diag(weight), cross))

    def losses(fold: int, kind: str) -> Floats:
        some = rows.fold == fold
        errors = np.square(outputs(fold, kind) - rows.y[some]).sum(1)
        return np.bincount(rows.owner[some], errors, minlength=rows.num).astype(float)

    return LinearFamily("shift", NORMALIZATIONS, losses, outputs)
