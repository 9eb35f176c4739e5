"""Comparisons from the scores of clients, without any training."""

import numpy as np
import polars as pl
from studies import client_table

from plures.study.comparison import Comparison
from plures.study.disk.runs import stack_tables
from plures.study.references import References

BASE = np.linspace(0.4, 0.8, 30)


def comparison(
    scores,
    *,
    mb=None,
    steps=None,
    higher=True,
    loss=None,
    valid=None,
    newcomers=None,
    references=None,
    metric="accuracy",
):
    """A comparison from {method: (clients,) test scores}; those of valid rows are the same unless given."""
    tables = {}
    for name, values in scores.items():
        brought = list((newcomers or {}).get(name, ()))
        table = client_table([*values, *brought], unseen=len(brought), metric=metric)
        size = int(1e6 * (mb or {}).get(name, 1.0))
        table = table.with_columns(
            pl.lit(size).alias("bytes_down"),
            pl.lit(0).alias("bytes_up"),
            pl.lit((steps or {}).get(name, 100)).alias("steps_per_client"),
        )
        if name in (valid or {}):
            table = table.with_columns(pl.Series(f"personal_valid_{metric}", [*valid[name], *brought]))
        if name == loss:
            table = table.with_columns(pl.lit(None).cast(pl.Float64).alias("personal_test_loss"))
        tables[name, 0] = table
    return Comparison(stack_tables(tables), metric, higher, {}, references=references)


def yardsticks(means, metric="accuracy", higher=True):
    """References that score the same for every client."""
    rows = [
        {"reference": name, "uid": uid, "seen": True, "valid_score": mean, "test_score": mean}
        for name, mean in means.items()
        for uid in range(30)
    ]
    return References(pl.DataFrame(rows), metric, higher, {}, {})
