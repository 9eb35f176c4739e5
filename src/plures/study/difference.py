"""Two studies side by side: which settings differ, and by how much the methods that both have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from plures.errors import Unsupported
from plures.study.disk.layout import flat, score_column
from plures.study.disk.results import SavedStudy
from plures.study.pairs import Pair, in_pairs
from plures.study.statistics import mean_of


@dataclass(frozen=True)
class Difference:
    """``settings`` are (name, here, there); ``pairs`` say how much a method scores above itself there.

    ``clients`` is how many both studies have: means are over these. ``same`` is whether all scores are equal.
    """

    settings: tuple[tuple[str, str, str], ...]
    pairs: tuple[Pair, ...]
    means: Mapping[str, tuple[float, float]]
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    clients: int
    metric: str
    higher_is_better: bool

    @property
    def same(self) -> bool:
        """Whether every client scores the same with every method that both studies have."""
        return all(pair.mean == 0 and pair.low == 0 and pair.high == 0 for pair in self.pairs)


def differ(here: SavedStudy, there: SavedStudy) -> Difference:
    """What differs between two studies; clients are matched by name, and scores are averaged over seeds."""
    one, other = here.result, there.result
    if one.metric != other.metric:
        raise Unsupported(
            f"one study scores by {one.metric}, the other by {other.metric}; these cannot be compared"
        )
    both = [name for name in one.methods if name in other.methods]
    if not both:
        raise Unsupported("the two studies have no method in common")
    known = _by_client(here, both, "here ").join(_by_client(there, both, "there "), on="name").sort("name")
    if not known.height:
        raise Unsupported("the two studies have no client in common")
    scores = {name: known[name].fill_null(np.nan).to_numpy()[None] for name in known.columns[1:]}
    pairs = in_pairs(scores, [(f"here {name}", f"there {name}") for name in both])
    return Difference(
        settings=_settings(here.study, there.study),
        pairs=tuple(replace(pair, method=name, other=name) for name, pair in zip(both, pairs, strict=True)),
        means={name: (mean_of(scores[f"here {name}"]), mean_of(scores[f"there {name}"])) for name in both},
        only_here=tuple(name for name in one.methods if name not in both),
        only_there=tuple(name for name in other.methods if name not in both),
        clients=known.height,
        metric=one.metric,
        higher_is_better=one.higher_is_better,
    )


def _by_client(saved: SavedStudy, methods: list[str], prefix: str) -> pl.DataFrame:
    """The score of every client in training by its name, a column per method, averaged over seeds."""
    score = score_column(saved.result.metric)
    mine = saved.result.honest.filter(pl.col("method").is_in(methods), pl.col("seen"))
    mine = mine.select("name", (pl.lit(prefix) + pl.col("method")).alias("label"), pl.col(score).cast(pl.Float64))
    return mine.pivot("label", index="name", values=score, aggregate_function="mean")


def _settings(here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """Settings that are not the same, flat; methods are told apart elsewhere."""
    one, other = dict(flat(here)), dict(flat(there))
    names = [name for name in {**one, **other} if name != "methods" and one.get(name) != other.get(name)]
    return tuple((name, _said(one.get(name)), _said(other.get(name))) for name in names)


def _said(value: Any) -> str:
    return "-" if value is None else str(value)
