"""How the clusters of a run fared, round by round."""

from __future__ import annotations

import numpy as np
import polars as pl

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
