"""How well clusters recover planted groups."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score


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
