"""LinearRows models of a federation's clients fused by a sum of norms: the path, the clusters, and who gains.

Clients and columns are prepared as ``linear`` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from plures.advise.advice import Advice
from plures.advise.families import ModelFamily
from plures.advise.linear_rows import LOSSES, LinearRows, check_width, metric_of, prepare_linear_rows, score
from plures.advise.preparation import distinct_rows
from plures.data import Federation
from plures.solvers import ConvexClustering, Fitted
from plures.solvers.estimator import outputs
from plures.solvers.path import Tell
from plures.solvers.prox import own_best
from plures.types import Floats
from plures.wording import counted

WAYS = ("global", "alone", "fused")


@dataclass(frozen=True, eq=False)
class FusedModels(Advice):
    """A fitted path and what it gives every client on its test rows."""

    QUESTION = "which clients share a model?"
    COMMAND = "plures fuse"
    LOOKS = "linear models fused by a sum of norms, as strongly as its criterion says"

    fitted: Fitted
    rows: LinearRows
    group: np.ndarray | None
    metric: str
    scores: pl.DataFrame  # client, rows, cluster, global, alone, fused
    federation: Federation | None = None

    @property
    def verdict(self) -> str:
        """How many clusters there are."""
        return counted(self.fitted.solution.num_clusters, "cluster")

    @property
    def family(self) -> ModelFamily:
        """One cluster is one model for all, as many as clients are models alone."""
        found = self.fitted.solution.num_clusters
        ends = {1: ModelFamily.GLOBAL, len(self.rows.names): ModelFamily.ALONE}
        return ends.get(found, ModelFamily.CLUSTERS)

    @property
    def sentences(self) -> list[str]:
        """What was fitted, and how it was chosen and proved."""
        return self.fitted.summary()

    @property
    def remarks(self) -> list[str]:
        """Where rows are read, and who is left out."""
        return self.rows.remarks

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Clients with their scores, and the path: for every strength clusters, whether proved, rounds."""
        path, tables = self.fitted.path, {"clients": self.scores}
        if path is not None:
            tables["path"] = pl.DataFrame(
                {
                    "alpha": path.alphas,
                    "t": path.t,
                    "clusters": path.num_clusters,
                    "exact": [one.certificate.exact for one in path.solutions],
                    "gap": [one.certificate.gap for one in path.solutions],
                    "rounds": [one.rounds for one in path.solutions],
                }
            )
        return tables

    @property
    def facts(self) -> dict[str, Any]:
        """The strength, the clusters, their proof, and mean scores."""
        fitted = self.fitted
        return {
            "alpha": fitted.alpha,
            "alpha_hat": fitted.alpha_hat,
            "t": fitted.t,
            "clusters": fitted.solution.num_clusters,
            "sizes": sorted((int(size) for size in fitted.solution.sizes), reverse=True),
            "exact": fitted.certificate.exact,
            "gap": fitted.certificate.gap,
            "metric": self.metric,
            **{way: float(np.mean(self.scores[way].to_numpy())) for way in WAYS},
            "left_out": list(self.rows.left_out),
        }

    def save(self, folder: str | Path) -> list[Path]:
        """The tables, the summary, and the models of clusters."""
        files, file, fitted = super().save(folder), Path(folder) / "models.npz", self.fitted
        np.savez(file, models=fitted.models, label=fitted.label, names=np.array(self.rows.names))
        return [*files, file]


def task_loss(federation: Federation) -> str:
    """The loss that fusing takes for a task unless one is named."""
    return LOSSES.get(federation.task, "logistic")


def fuse_clients(
    federation: Federation,
    how: ConvexClustering | None = None,
    *,
    axes: int | None = None,
    tell: Tell | None = None,
) -> FusedModels:
    """The clients' linear models, fused as ``how`` says; without it with the loss of the task, and all else by default.

    ``plures fuse`` has a ridge of 0.01, ten times the default.
    """
    how = how or ConvexClustering(loss=task_loss(federation))
    federation, given = distinct_rows(federation), federation
    rows = prepare_linear_rows(federation, axes=axes, deed="fused")
    train, test = rows.parts["train"], rows.parts["test"]
    _check_width(train.tables[0].shape[1], how, train.targets)
    fitted = how.fit(train.tables, train.targets, tell=tell)
    scores, metric = _scores(fitted, test.tables, test.targets)
    table = pl.DataFrame({"client": rows.names, "rows": train.counts, "cluster": fitted.label, **scores})
    known = [federation.names.index(name) for name in rows.names]
    group = None if federation.group is None else federation.group[known]
    return FusedModels(fitted, rows, group, metric, table, given)


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
            score(outputs(clients, model, table, intercept=fitted.how.intercept), target, clients.loss.name)
            for model, table, target in zip(own, tables, targets, strict=True)
        ]
        for way, own in models.items()
    }
    return found, metric_of(clients.loss.name)
