"""Two studies side by side: which settings differ, and by how much the methods that both have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from plures.errors import Unsupported
from plures.study.pairs import Pair, in_pairs
from plures.study.saved import Saved


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


def differ(here: Saved, there: Saved) -> Difference:
    """What differs between two studies; clients are matched by name, and scores are averaged over seeds."""
    one, other = here.result, there.result
    if one.metric != other.metric:
        raise Unsupported(
            f"one study scores by {one.metric}, the other by {other.metric}; these cannot be compared"
        )
    both = [name for name in one.methods if name in other.methods]
    if not both:
        raise Unsupported("the two studies have no method in common")
    mine, theirs = ({name: _by_client(saved, name) for name in both} for saved in (here, there))
    known = sorted(set(mine[both[0]]) & set(theirs[both[0]]))
    if not known:
        raise Unsupported("the two studies have no client in common")
    tables = {}
    for name in both:
        tables[f"here {name}"] = _row(mine[name], known)
        tables[f"there {name}"] = _row(theirs[name], known)
    pairs = in_pairs(tables, [(f"here {name}", f"there {name}") for name in both])
    means = {name: (_mean(tables[f"here {name}"]), _mean(tables[f"there {name}"])) for name in both}
    return Difference(
        settings=_settings(here.study, there.study),
        pairs=tuple(Pair(name, name, *_numbers(pair)) for name, pair in zip(both, pairs, strict=True)),
        means=means,
        only_here=tuple(name for name in one.methods if name not in both),
        only_there=tuple(name for name in other.methods if name not in both),
        clients=len(known),
        metric=one.metric,
        higher_is_better=one.higher_is_better,
    )


def _numbers(pair: Pair) -> tuple[float, float, float, float]:
    return pair.mean, pair.low, pair.high, pair.p


def _by_client(saved: Saved, method: str) -> dict[str, float]:
    """The score of every client in training by its name, averaged over seeds."""
    score = pl.col(f"personal_test_{saved.result.metric}").cast(pl.Float64)
    mine = saved.result.honest.filter(pl.col("method") == method, pl.col("seen"))
    found = mine.group_by("name").agg(score.mean().alias("score"))
    return dict(zip(found["name"].to_list(), found["score"].fill_null(np.nan).to_list(), strict=True))


def _row(scores: Mapping[str, float], names: list[str]) -> np.ndarray:
    return np.array([[scores.get(name, np.nan) for name in names]])


def _mean(row: np.ndarray) -> float:
    return float(np.nanmean(row)) if np.isfinite(row).any() else float("nan")


def _settings(here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """Settings that are not the same, flat; methods are told apart elsewhere."""
    one, other = _flat(here), _flat(there)
    names = [name for name in {**one, **other} if name != "methods" and one.get(name) != other.get(name)]
    return tuple((name, _said(one.get(name)), _said(other.get(name))) for name in names)


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found


def _said(value: Any) -> str:
    return "-" if value is None else str(value)
