"""Linear models of a federation's clients fused by a sum of norms: the path, the clusters, and who gains.

Clients and columns are prepared as ``linear`` says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from plures.data import Federation
from plures.solvers import ConvexClustering, Fitted
from plures.solvers.fitting import outputs
from plures.solvers.links import Floats
from plures.solvers.path import Tell
from plures.solvers.prox import own_best
from plures.study.linear import check_width, linear_parts, metric_of, score


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
    rows = linear_parts(federation, axes=axes, deed="fused")
    train, test = rows.parts["train"], rows.parts["test"]
    _check_width(train.tables[0].shape[1], how, train.targets)
    fitted = how.fit(train.tables, train.targets, tell=tell)
    scores, metric = _scores(fitted, test.tables, test.targets)
    table = pl.DataFrame({"client": rows.names, "rows": train.counts, "cluster": fitted.label, **scores})
    group = (
        None
        if federation.group is None
        else federation.group[[federation.names.index(name) for name in rows.names]]
    )
    return Fusion(fitted, rows.names, group, metric, table, rows.left_out)


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


def _check_width(width: int, how: ConvexClustering, targets: list[Floats]) -> None:
    outputs = int(max(target.max() for target in targets)) + 1 if how.loss == "multinomial" else 1
    check_width(width + how.intercept, outputs)


def _scores(fitted: Fitted, tables: list[Floats], targets: list[Floats]) -> tuple[dict[str, list[float]], str]:
    clients = fitted.clients
    alone = own_best(clients, np.tile(fitted.consensus.model, (clients.num, 1))).x
    models = {
        "global": np.broadcast_to(fitted.consensus.model, alone.shape),
        "alone": alone,
        "fused": fitted.models[fitted.label],
    }
    found = {
        way: [
            score(outputs(clients, model, table, intercept=fitted.how.intercept), target, clients.link.name)
            for model, table, target in zip(own, tables, targets, strict=True)
        ]
        for way, own in models.items()
    }
    return found, metric_of(clients.link.name)
