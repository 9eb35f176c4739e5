"""The answer of a comparison in two sentences: which method to take, and what that means for whom and at what price.

Advice is the cheapest method, in megabytes, that no other one clearly beats: nothing that costs more is known to be better. At
one price one model for all and training alone come first, then what is simpler, then the better mean. A method that reads
the planted groups is a ceiling, never advice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from plures.study.comparison import ALONE, GLOBAL, Comparison, knows_groups
from plures.wording import counted, said_mb

SAME_PRICE = 1.05
UNSOUND = ("diverged", "unknown", "no scores")
ENDS = {GLOBAL: "one model for all", ALONE: "training alone"}


@dataclass(frozen=True)
class Headline:
    """What to take. ``best`` has the best mean; ``near`` are the others within noise of the advice."""

    advice: str
    best: str
    near: tuple[str, ...]
    sentences: tuple[str, str]

    @property
    def text(self) -> str:
        """Both sentences."""
        return " ".join(self.sentences)


def headline_of(result: Comparison) -> Headline:
    """The answer of a comparison."""
    board = {row["method"]: row for row in result.leaderboard.iter_rows(named=True)}
    sound = [name for name, row in board.items() if row["against_best"] not in UNSOUND]
    able = [name for name in sound if not knows_groups(name)]
    if not able:
        return Headline("", "", (), _nothing(board, sound))
    price = {name: row["mb_per_client"] or 0.0 for name, row in board.items()}
    advice = cheapest(unbeaten(result), price)
    near = tuple(name for name in able if name not in (advice, able[0]) and not _clear(result, advice, name))
    first = _first(result, advice, able)
    return Headline(advice, able[0], near, (first, _second(result, advice, able, near)))


def unbeaten(result: Comparison) -> list[str]:
    """Methods that no other one clearly beats, in the order of their means; without those that read the planted groups."""
    rows = result.leaderboard.filter(~pl.col("against_best").is_in(UNSOUND))
    able = [name for name in rows["method"] if not knows_groups(name)]
    return [name for name in able if not any(_clear(result, other, name, better=True) for other in able)]


def _nothing(board: Mapping[str, Mapping[str, Any]], sound: Sequence[str]) -> tuple[str, str]:
    """What to say where there is no method to take."""
    words = {row["against_best"] for row in board.values()}
    if "no scores" in words and "diverged" not in words:
        return "No method can be advised: there are no test scores.", "Split the data with a test share."
    but = f" but {listed(sound)}, which no real client is told" if sound else ""
    return f"No method gave a model that can be used{but}: the others diverged.", "Try a smaller step size."


def _clear(result: Comparison, one: str, other: str, *, better: bool = False) -> bool:
    """Whether two methods are clearly apart; ``better``: the first one ahead."""
    pair = result.pair(one, other)
    return pair is not None and pair.clear and (not better or (pair.mean > 0) == result.higher_is_better)


def cheapest(names: Sequence[str], price: dict[str, float]) -> str:
    """The cheapest of methods in the order of their means."""
    least = min(price[name] for name in names)
    able = [name for name in names if price[name] <= SAME_PRICE * least]
    return min(able, key=lambda name: (name not in (ALONE, GLOBAL), name.count("|"), names.index(name)))


def _first(result: Comparison, name: str, able: Sequence[str]) -> str:
    """What to take, how well it does, and how it stands against the two ends."""
    row, digits = _row(result, name), result.digits
    mean, low, high = (f"{row[what]:.{digits}f}" for what in ("mean", "low", "high"))
    score = f"mean test {result.metric} {mean} ({low} to {high})"
    clients = counted(int(np.isfinite(result.scores(name)).any(0).sum()), "client")
    ends = [end for end in ENDS if end in able and end != name]
    stands = " and ".join(_stands(result, name, end) for end in ends)
    return f"Use {name}: {score} over {clients}" + (f", {stands}." if stands else ".")


def _stands(result: Comparison, name: str, end: str) -> str:
    pair = result.pair(name, end)
    if pair is None or not np.isfinite(pair.low):
        return f"not to be told from {ENDS[end]}"
    if not pair.clear:
        return f"within noise of {ENDS[end]}"
    better = (pair.mean > 0) == result.higher_is_better
    return f"{abs(pair.mean):.{result.digits}f} {'better' if better else 'worse'} than {ENDS[end]}"


def _second(result: Comparison, name: str, able: Sequence[str], near: Sequence[str]) -> str:
    """Who gains, what it costs, and what else would do."""
    row, best, parts = _row(result, name), able[0], []
    if name != ALONE and row["worse_than_alone"] is not None:
        gains = result.gains(name, ALONE)
        known = gains[np.isfinite(gains)]
        parts.append(f"{(known > 1e-9).sum()} of {len(known)} clients do better than alone")
    if row["mb_per_client"] is not None:
        parts.append(f"it costs {said_mb(row['mb_per_client'])} per client")
    if len(able) == 1:
        parts.append("there was nothing else to take")
    elif best != name:
        gap = abs(_row(result, best)["mean"] - row["mean"])
        more = f", as {'is' if len(near) == 1 else 'are'} {listed(near)}" if near else ""
        parts.append(f"{best} scores {gap:.{result.digits}f} better, which is within noise of it{more}")
    elif near:
        parts.append(f"{listed(near)} {'is' if len(near) == 1 else 'are'} within noise of it")
    else:
        parts.append("every other method that could be used is clearly worse")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _row(result: Comparison, name: str) -> dict[str, Any]:
    return result.leaderboard.filter(pl.col("method") == name).row(0, named=True)


def listed(names: Sequence[str], most: int = 3) -> str:
    """Some names; how many more, where they are many.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c", "d"])
    ('a', 'a and b', 'a, b, c and 1 more')
    """
    shown = list(names[:most])
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
