"""How the clusters of a run fared, round by round, and how well clusters recover planted groups."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from plures.engine import Run
from plures.errors import Unsupported


def cluster_table(run: Run) -> pl.DataFrame:
    """A row per round: the share of the cohort in every cluster, how many clusters that is worth, who switched, margins.

    ``effective`` is exp of the entropy of the shares: q for q equal clusters, 1 when they have collapsed into one.
    """
    table = run.record.info_table()
    if "share_0" not in table["name"].unique():
        raise Unsupported("this run recorded no clusters; it needs a method such as hypcluster or ifca")
    wide = table.pivot("name", index="round", values="value", aggregate_function="first").sort("round")
    wide = wide.filter(pl.col("share_0").is_not_null())
    names = sorted((one for one in wide.columns if one.startswith("share_")), key=lambda one: int(one[6:]))
    worth = pl.Series("effective", effective(wide.select(names).to_numpy()))
    return wide.select("round", *names, worth, "switched", "margin")


def effective(shares: np.ndarray) -> np.ndarray:
    """exp of the entropy of each row of shares.

    >>> effective(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [2.0, 1.0]
    """
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return np.exp(-(shares * logs).sum(1))


def recovery(clients: pl.DataFrame) -> pl.DataFrame:
    """A row per (method, seed) that assigned clients to clusters: how many, and how well they match planted groups.

    ``adjusted_rand`` is 1 for the same partition and about 0 for one by chance (Hubert and Arabie 1985); ``purity`` is the
    share of clients in the largest group of their cluster. Both are null where no groups are planted. ``clients`` are rows
    of a comparison; only those in training count.
    """
    rows = []
    if "cluster" in clients.columns:
        known = clients.filter(pl.col("seen") & pl.col("cluster").is_not_null())
        for (method, seed), part in known.group_by(["method", "seed"], maintain_order=True):
            found = part["cluster"].cast(pl.Int64)
            groups = part["group"].cast(pl.Int64)
            planted = groups.null_count() == 0 and groups.min() is not None and (groups >= 0).all()
            rows.append(
                {
                    "method": method,
                    "seed": seed,
                    "clusters": found.n_unique(),
                    "adjusted_rand": float(adjusted_rand_score(groups, found)) if planted else None,
                    "purity": purity(groups.to_numpy(), found.to_numpy()) if planted else None,
                }
            )
    kinds = {"method": pl.String, "seed": pl.Int64, "clusters": pl.Int64}
    return pl.DataFrame(rows, schema={**kinds, "adjusted_rand": pl.Float64, "purity": pl.Float64})


def purity(groups: NDArray[np.integer], found: NDArray[np.integer]) -> float:
    """The share of clients that are in the largest group of their cluster.

    >>> purity(np.array([0, 0, 1, 1]), np.array([5, 5, 5, 7]))
    0.75
    """
    most = sum(int(np.unique(groups[found == one], return_counts=True)[1].max()) for one in np.unique(found))
    return most / len(found)


def together(labels: NDArray[np.floating]) -> NDArray[np.floating]:
    """(clients, clients) the share of seeds in which two clients share a cluster, from (seeds, clients) labels.

    >>> together(np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]])).tolist()
    [[1.0, 0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 0.5, 1.0]]
    """
    return (labels[:, :, None] == labels[:, None, :]).mean(0)
