"""Linear models of a federation's clients fused by a sum of norms: the path, the clusters, and who gains.

Clients with too few rows to train on are left out and named. Columns are put on one scale by their pooled mean and spread,
and may be reduced to the first principal axes of all training rows: sums over clients are enough for both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from plures.data import Federation
from plures.errors import BadData, BadValue, Unsupported
from plures.solvers import ConvexClustering, Fitted
from plures.solvers.fitting import outputs
from plures.solvers.links import Floats
from plures.solvers.path import Tell
from plures.solvers.prox import own_best

MOST_NUMBERS = 400
"""A model of more numbers than this is refused: curvatures of so many numbers are large."""

LOSSES = {"classification": "multinomial", "binary": "logistic", "regression": "least_squares"}


@dataclass(frozen=True, eq=False)
class Fusion:
    """A fitted path and what it gives every client on its test rows."""

    fitted: Fitted
    names: tuple[str, ...]
    group: np.ndarray | None
    metric: str
    scores: pl.DataFrame  # client, rows, cluster, global, alone, fused
    left_out: tuple[str, ...]

    def means(self) -> dict[str, float]:
        """The mean over clients of every way's score."""
        return {way: float(self.scores[way].mean() or 0.0) for way in WAYS}  # type: ignore[arg-type]


WAYS = ("global", "alone", "fused")


def fuse_federation(
    federation: Federation, how: ConvexClustering, *, axes: int | None = None, tell: Tell | None = None
) -> Fusion:
    """The clients' linear models, fused as ``how`` says."""
    if federation.task not in LOSSES:
        raise Unsupported(f"linear models of a {federation.task} task cannot be fused; known: {', '.join(LOSSES)}")
    counts = federation.count
    kept = [name for name, row in zip(federation.names, counts, strict=True) if row[0] > 0 and row[2] > 0]
    if len(kept) < 2:
        raise BadData(f"{len(kept)} clients have training and test rows; fusing needs two or more")
    if not np.prod(federation.shape):
        raise Unsupported("these clients have no input columns; what is fused are linear models of columns")
    train = [federation.rows_of(name, "train") for name in kept]
    if any(np.ndim(y) > 1 and np.shape(y)[1] > 1 for _, y in train):
        raise Unsupported("these data have several targets per row; linear models of one target can be fused")
    test = [federation.rows_of(name, "test") for name in kept]
    scaled = _scaler(np.concatenate([_flat(x) for x, _ in train]), axes)
    tables, targets = [scaled(_flat(x)) for x, _ in train], [_plain(y) for _, y in train]
    _check_width(tables[0].shape[1], how, targets)
    fitted = how.fit(tables, targets, tell=tell)
    scores, metric = _scores(fitted, [scaled(_flat(x)) for x, _ in test], [_plain(y) for _, y in test])
    table = pl.DataFrame({"client": kept, "rows": [len(y) for y in targets], "cluster": fitted.label, **scores})
    group = None if federation.group is None else federation.group[[federation.names.index(name) for name in kept]]
    return Fusion(
        fitted, tuple(kept), group, metric, table, tuple(name for name in federation.names if name not in set(kept))
    )


def save_fusion(fusion: Fusion, folder: Path) -> None:
    """Clients, path and summary as files."""
    folder.mkdir(parents=True, exist_ok=True)
    fusion.scores.write_csv(folder / "clients.csv")
    fitted = fusion.fitted
    facts: dict[str, Any] = {
        "alpha": fitted.alpha,
        "alpha_hat": fitted.alpha_hat,
        "t": fitted.t,
        "clusters": fitted.solution.num_clusters,
        "sizes": sorted((int(size) for size in fitted.solution.sizes), reverse=True),
        "exact": fitted.certificate.exact,
        "gap": fitted.certificate.gap,
        "metric": fusion.metric,
        **fusion.means(),
        "left_out": list(fusion.left_out),
    }
    (folder / "summary.json").write_text(json.dumps(facts, indent=2) + "\n")
    if fitted.path is not None:
        path_table(fitted).write_csv(folder / "path.csv")
    np.savez(folder / "models.npz", models=fitted.models, label=fitted.label, names=np.array(fusion.names))


def path_table(fitted: Fitted) -> pl.DataFrame:
    """One row per strength: alpha, t, clusters, whether proved, rounds."""
    path = fitted.path
    assert path is not None
    return pl.DataFrame(
        {
            "alpha": path.alphas,
            "t": path.t,
            "clusters": path.num_clusters,
            "exact": [one.certificate.exact for one in path.solutions],
            "gap": [one.certificate.gap for one in path.solutions],
            "rounds": [one.rounds for one in path.solutions],
        }
    )


def _flat(x: Any) -> Floats:
    return np.asarray(x, float).reshape(len(x), -1)


def _plain(y: Any) -> Floats:
    return np.asarray(y, float).reshape(-1)


def _scaler(rows: Floats, axes: int | None) -> Any:
    """A function that puts columns on one scale, on the first principal axes where ``axes`` are asked for."""
    if axes is not None and axes < 1:
        raise BadValue("axes", axes, "1 or more")
    center, size = rows.mean(0), rows.std(0)
    size = np.where(size > 1e-12 * max(float(size.max()), 1e-300), size, 1.0)
    if axes is None or axes >= rows.shape[1]:
        return lambda table: (table - center) / size
    scaled = (rows - center) / size
    values, vectors = np.linalg.eigh(scaled.T @ scaled / len(scaled))
    main = vectors[:, ::-1][:, :axes] / np.sqrt(np.maximum(values[::-1][:axes], 1e-12))
    return lambda table: (table - center) / size @ main


def _check_width(width: int, how: ConvexClustering, targets: list[Floats]) -> None:
    outputs = int(max(target.max() for target in targets)) + 1 if how.loss == "multinomial" else 1
    numbers = (width + how.intercept) * outputs
    if numbers > MOST_NUMBERS:
        wanted = max(1, MOST_NUMBERS // outputs - 1)
        raise Unsupported(
            f"a model would have {numbers:,} numbers, more than {MOST_NUMBERS}: reduce the {width:,} columns to their "
            f"principal axes, at most {wanted} here (--axes {min(wanted, 16)})"
        )


def _scores(fitted: Fitted, tables: list[Floats], targets: list[Floats]) -> tuple[dict[str, list[float]], str]:
    clients = fitted.clients
    alone = own_best(clients, np.tile(fitted.consensus.model, (clients.num, 1))).x
    regression = clients.link.name in ("least_squares", "huber", "poisson")
    models = {
        "global": np.broadcast_to(fitted.consensus.model, alone.shape),
        "alone": alone,
        "fused": fitted.models[fitted.label],
    }
    found = {
        way: [
            _score(outputs(clients, model, table, intercept=fitted.how.intercept), target, clients.link.name)
            for model, table, target in zip(own, tables, targets, strict=True)
        ]
        for way, own in models.items()
    }
    return found, "RMSE" if regression else "accuracy"


def _score(given: Floats, wanted: Floats, loss: str) -> float:
    if loss == "multinomial":
        return float((given.argmax(1) == wanted).mean())
    if loss in ("logistic", "squared_hinge"):
        return float(((given > 0) == (wanted > 0.5)).mean())
    guess = np.exp(np.minimum(given, 200.0)) if loss == "poisson" else given
    return float(np.sqrt(((guess - wanted) ** 2).mean()))
