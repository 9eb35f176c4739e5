"""Tables for the terminal of a study that was read back: one client, and two studies side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from rich.table import Table
from rich.text import Text

from plures.errors import UnknownChoice
from plures.report.terminal import FOLDED, NUMBER, WHOLE, bar, number, percent, plain_table
from plures.study.comparison import ALONE, GLOBAL, Comparison
from plures.study.difference import Difference
from plures.study.disk.layout import score_column
from plures.wording import counted


def client_rows(result: Comparison, client: str) -> pl.DataFrame:
    """The rows of one client, by uid or by name, with every method and seed."""
    table = result.clients.with_columns(pl.col("uid").cast(pl.String).alias("text"))
    mine = table.filter(pl.col("name") == client)
    mine = mine if mine.height else table.filter(pl.col("text") == client)
    if not mine.height:
        raise UnknownChoice("client", client, result.clients["name"].unique())
    return mine.drop("text")


def client_table(result: Comparison, client: str) -> Table:
    """What one client gets from every method, the best on its valid rows first."""
    rows = client_rows(result, client)
    told = [name for name in ("cluster", "lam") if name in rows.columns and rows[name].null_count() < rows.height]
    scores = (f"valid\n{result.metric}", f"test\n{result.metric}")
    numbers = dict.fromkeys(("over\nalone", "over\nglobal", *told, "others\nbelow"), NUMBER)
    table = plain_table(_who(rows), {"method": WHOLE, **dict.fromkeys(scores, NUMBER), "": WHOLE, **numbers})
    each = {name: _means(rows, name, result.metric) for name in result.methods}
    each = {name: one for name, one in each.items() if one["test"] is not None or one["valid"] is not None}
    top = max((one["test"] or 0.0 for one in each.values()), default=1.0) or 1.0
    sign = 1 if result.higher_is_better else -1
    order = sorted(each, key=lambda name: -sign * _or_worst(each[name]["valid"], sign))
    for name in order:
        one = each[name]
        facts = [_told(rows, name, fact) for fact in told]
        gains = [_gap(one["test"], each.get(end, {}).get("test"), sign) for end in (ALONE, GLOBAL)]
        below = percent(_below(result, name, rows["uid"][0], one["test"], sign))
        table.add_row(
            Text(name), number(one["valid"]), number(one["test"]), bar(one["test"], top), *gains, *facts, below
        )
    return table


CLIENT_LEGEND = (
    "means over seeds; over alone, over global: how much better than with local_only, with fedavg (above 0: better off); "
    "others below: clients that score worse with the same method"
)


def _who(rows: pl.DataFrame) -> Text:
    one = rows.row(0, named=True)
    parts = [f"{one['name']} (uid {one['uid']})", "in training" if one["seen"] else "held out of training"]
    parts += [f"group {one['group']}"] if one["group"] is not None else []
    parts += ["attacks"] if one.get("attacker") else []
    sizes = [f"{one[f'{split}_rows']} {split}" for split in ("train", "valid", "test")]
    return Text(f"{', '.join(parts)}: {', '.join(sizes)} rows")


def _means(rows: pl.DataFrame, method: str, metric: str) -> dict[str, float | None]:
    mine = rows.filter(pl.col("method") == method)
    return {split: _mean(mine, score_column(metric, split=split)) for split in ("valid", "test")}


def _mean(rows: pl.DataFrame, column: str) -> float | None:
    found: Any = rows[column].cast(pl.Float64).mean() if column in rows.columns else None
    return None if found is None else float(found)


def _or_worst(value: float | None, sign: int) -> float:
    return -sign * np.inf if value is None else value


def _told(rows: pl.DataFrame, method: str, fact: str) -> str:
    values = rows.filter(pl.col("method") == method)[fact].drop_nulls().unique(maintain_order=True).to_list()
    return ", ".join(f"{value:.3g}" for value in values) or "-"


def _gap(mine: float | None, other: float | None, sign: int) -> str:
    return "-" if mine is None or other is None else f"{sign * (mine - other):+.3f}"


def _below(result: Comparison, method: str, uid: int, mine: float | None, sign: int) -> float | None:
    """The share of the other clients that score worse with a method."""
    score = score_column(result.metric)
    others = result.honest.filter(pl.col("method") == method, pl.col("uid") != uid)
    each = others.group_by("uid").agg(pl.col(score).cast(pl.Float64).mean())[score].drop_nulls().to_numpy()
    return None if mine is None or not len(each) else float((sign * each < sign * mine - 1e-9).mean())


def difference_table(found: Difference) -> Table:
    """Methods that both studies have: their means, the paired difference, and whether it is beyond noise."""
    numbers = dict.fromkeys(("here", "there", "here -\nthere", "95 %\ninterval"), NUMBER)
    title = f"Test {found.metric} over {counted(found.clients, 'client')} of both studies"
    table = plain_table(title, {"method": FOLDED, **numbers, "": {}})
    for pair in found.pairs:
        here, there = found.means[pair.method]
        ends = f"{pair.low:+.3f} {pair.high:+.3f}"
        table.add_row(Text(pair.method), number(here), number(there), f"{pair.mean:+.3f}", ends, _word(pair, found))
    return table


def _word(pair: Any, found: Difference) -> str:
    if not pair.clear:
        return "the same" if pair.mean == pair.low == pair.high == 0 else "within noise"
    return "better" if (pair.mean > 0) == found.higher_is_better else "worse"


def settings_table(found: Difference) -> Table:
    """Settings that differ."""
    rows = (map(Text, row) for row in found.settings)
    return plain_table("Settings that differ", dict.fromkeys(("setting", "here", "there"), FOLDED), rows)
