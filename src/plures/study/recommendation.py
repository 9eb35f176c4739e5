"""What a study recommends: chosen on valid rows, told on test rows, by one rule wherever a method is named.

    1. A method must be sound: it ended, its scores are finite and of use, and it was not told the planted groups.
    2. The best is the one with the best mean score on valid rows. Candidates are as good as it: their means are within
       0.5 % of the score's range of it, or within 1 % where they cannot be told from it (``plures.study.pairs``). The range
       of an accuracy is 1, that of an error what the trivial predictor makes.
    3. What another sound method matches or beats in every column of ``COLUMNS`` is no candidate.
    4. Among candidates each column in turn keeps those that are about as good as the best one there: worst tenth of
       clients, newcomers, clients below training alone, gradient steps, megabytes. Of what is left one of the two ends, which
       are the simplest, goes before other methods; then the better mean.

Test rows only report, but for one thing: what breaks down or is useless on them is not recommended. Where fewer than half of
the clients have valid rows test rows choose, and that is said. Test rows are other rows of the same clients, so the winner's
mean is no longer the largest of many draws in its rows, but still is in its clients: its interval holds for all sound
methods at once (Sidak's correction).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.stats import norm, t

from plures.study.comparison import ALONE, GLOBAL, UNSOUND, Comparison, knows_groups
from plures.study.pairs import LEVEL, Pair
from plures.study.references import TRIVIAL
from plures.study.statistics import mean_of, over_seeds, worst_decile
from plures.wording import counted, joined, said_mb

MARGIN = 0.005
"""Means closer than this share of the score's range are as good as each other, however surely they differ.

Twice as far is close enough where noise alone could make the difference.
"""

LOSS, AHEAD, LITTLE = 0.02, 0.01, 0.001
"""Shares of the score's range: a client is worse off that loses more; a reference that is better by more is told of, the trivial one soon."""

BOUNDED, ERRORS = ("accuracy", "auc"), ("rmse", "mae")
ENDS = {GLOBAL: "one model for all", ALONE: "training alone"}
FEW_SEEDS, FEW_CLIENTS = 3, 8


class Criterion(NamedTuple):
    """What decides among candidates. Values within ``share`` of the score's range, or ``at_least``, or ``times`` the best count as equal."""

    name: str
    said: str
    share: float = 0.0
    at_least: float = 0.0
    times: float = 1.0
    is_score: bool = False


COLUMNS = (
    Criterion("worst_decile", "is better for the worst tenth of clients", share=0.02, is_score=True),
    Criterion("unseen", "is better for newcomers", share=0.02, is_score=True),
    Criterion("worse_than_alone", "leaves fewer clients worse off than alone", at_least=0.05),
    Criterion("steps_per_client", "takes less work", times=2.0),
    Criterion("mb_per_client", "sends fewer bytes", at_least=1.0, times=2.0),
)
"""In this order: the one place where it is written."""


class Recommendation(NamedTuple):
    """What to take. ``best`` has the best mean on the rows that choose; ``near`` are others that test rows cannot tell from it."""

    advice: str
    best: str
    near: tuple[str, ...]
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)


@lru_cache(maxsize=4)
def recommend(result: Comparison) -> Recommendation:
    """What to take, after a comparison."""
    choice = Choice(result)
    if not choice.sound:
        return Recommendation("", "", (), _nothing(result))
    words = _Words(result, choice)
    return Recommendation(choice.advice, choice.best, words.near, (words.first, words.second, words.third))


@dataclass(frozen=True, eq=False)
class Choice:
    """The choice among the methods of a comparison."""

    result: Comparison

    @cached_property
    def able(self) -> list[str]:
        """Methods that nothing speaks against."""
        words = self.result.leaderboard.select("method", "against_best").iter_rows()
        fine = [name for name, word in words if word not in UNSOUND and not knows_groups(name)]
        return [name for name in fine if name in self.result.compared]

    @cached_property
    def split(self) -> str:
        """The rows that choose: valid ones, or test rows where fewer than half of the clients have others."""
        return "valid" if any(self._is_known(name, "valid") for name in self.able) else "test"

    @cached_property
    def sound(self) -> list[str]:
        """Methods that may be recommended, the best mean on the rows that choose first."""
        names = [name for name in self.able if self._is_known(name, self.split)]
        return sorted(names, key=lambda name: -self._sign * self.means[name])

    @cached_property
    def means(self) -> dict[str, float]:
        """The mean score of every method on the rows that choose, over clients that all of them serve where there are some."""
        names = [name for name in self.able if self._is_known(name, self.split)]
        each = {name: over_seeds(self.result.scores(name, split=self.split)) for name in names}
        shared = np.logical_and.reduce([np.isfinite(one) for one in each.values()])
        return {name: float(np.nanmean(one[shared] if shared.any() else one)) for name, one in each.items()}

    def _is_known(self, name: str, split: str) -> bool:
        """Whether a method has scores on these rows for half of the clients that it was tested on."""
        known, tested = (np.isfinite(self.result.scores(name, split=one)).any(0) for one in (split, "test"))
        return bool(2 * known.sum() >= tested.sum() and known.any())

    @property
    def best(self) -> str:
        """The best mean."""
        return self.sound[0]

    @cached_property
    def span(self) -> float:
        """The range of the score."""
        if self.result.metric in BOUNDED:
            return 1.0
        trivial = self.result.trivial(self.split)
        sizes = [abs(self.means[name]) for name in self.sound]
        return abs(trivial) if trivial else float(np.median(sizes))

    @cached_property
    def candidates(self) -> list[str]:
        """Methods that are as good as the best one."""
        behind = self.result.behind[self.split]
        room = {name: MARGIN * self.span * (1 if name in behind else 2) for name in self.sound}
        near = [name for name in self.sound if self._gap(name) <= room[name]]
        kept = [name for name in near if not any(self._dominates(other, name) for other in self.sound)]
        return kept or self.sound[:1]

    @cached_property
    def advice(self) -> str:
        """The method to take."""
        left = self._steps[-1][1]
        return next((name for name in left if name in ENDS), left[0])

    @property
    def reason(self) -> str:
        """What spoke for the advice over the best mean; empty where they are one."""
        left = self.candidates
        for column, kept in self._steps:
            if self.best in left and self.best not in kept and column is not None:
                return column.said
            left = kept
        return "" if self.advice == self.best else "is simpler"

    @cached_property
    def _steps(self) -> list[tuple[Criterion | None, list[str]]]:
        """Who is left after each column."""
        steps: list[tuple[Criterion | None, list[str]]] = [(None, self.candidates)]
        for column in COLUMNS:
            steps.append((column, self._about_as_good(column, steps[-1][1])))
        return steps

    def _about_as_good(self, column: Criterion, names: Sequence[str]) -> list[str]:
        """Those of some methods that are about as good as the best of them in a column; all where it is not known of all."""
        losses = {name: self._losses[name][column.name] for name in names}
        if any(value is None for value in losses.values()):
            return list(names)
        least = min(value for value in losses.values() if value is not None)
        room = max(column.share * self.span, column.at_least, (column.times - 1) * least) + 1e-9
        return [name for name, value in losses.items() if value is not None and value <= least + room]

    def _gap(self, name: str) -> float:
        return abs(self.means[self.best] - self.means[name])

    def _dominates(self, one: str, other: str) -> bool:
        """Whether a method matches or beats another one in every column, and beats it in one."""
        mine, its = self._losses[one], self._losses[other]
        pairs = [(mine[name], its[name]) for name in mine]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        return all(a <= b for a, b in known) and any(a < b for a, b in known)

    @cached_property
    def _losses(self) -> dict[str, dict[str, float | None]]:
        """Every column of every sound method on the rows that choose, less being better; the mean among them."""
        return {name: self._losses_of(name) for name in self.sound}

    def _losses_of(self, name: str) -> dict[str, float | None]:
        row, better = self.result.row(name), self.result.higher_is_better
        each = over_seeds(self.result.scores(name, split=self.split))
        others = self.result.scores(name, seen=False, split=self.split)
        worst = worst_decile(each, higher_is_better=better)
        unseen = mean_of(others) if others.size else np.nan
        worse = None
        if ALONE in self.sound:
            gains = self.result.gains(name, ALONE, split=self.split)
            known = gains[np.isfinite(gains)]
            worse = float((known < -LOSS * self.span).mean()) if len(known) else None
        scores = {"mean": self.means[name], "worst_decile": worst, "unseen": unseen}
        losses = {what: -self._sign * value if np.isfinite(value) else None for what, value in scores.items()}
        return losses | {
            "worse_than_alone": worse,
            "steps_per_client": row.get("steps_per_client"),
            "mb_per_client": row["mb_per_client"],
        }

    @property
    def _sign(self) -> float:
        return 1.0 if self.result.higher_is_better else -1.0


@dataclass(frozen=True, eq=False)
class _Words:
    """The sentences about a choice; all numbers in them are of test rows."""

    result: Comparison
    choice: Choice

    @property
    def name(self) -> str:
        return self.choice.advice

    @cached_property
    def row(self) -> dict[str, Any]:
        return self.result.row(self.name)

    @cached_property
    def others(self) -> list[str]:
        return [name for name in self.choice.sound if name != self.name]

    @cached_property
    def near(self) -> tuple[str, ...]:
        """Other methods that test rows do not show to be clearly behind the advice."""
        return tuple(name for name in self.others if not self._clearly_behind(name))

    def _clearly_behind(self, other: str) -> bool:
        pair = self.result.pair(self.name, other)
        best = self.row["against_best"] == "best" and other in self.behind
        return best or (pair is not None and pair.clear and self._better(pair))

    @property
    def behind(self) -> set[str]:
        """Methods that test rows can tell from the best one there."""
        return self.result.behind["test"]

    @property
    def first(self) -> str:
        """What to take, how well it does, and how it stands against the two ends."""
        low, high = simultaneous(self.row, len(self.choice.sound), self._clients)
        low = max(low, 0.0) if self.result.metric in (*BOUNDED, *ERRORS) else low
        high = min(high, 1.0) if self.result.metric in BOUNDED else high
        interval = f" ({self._said(low)} to {self._said(high)})" if np.isfinite(low) else ""
        score = f"mean test {self.result.metric} {self._said(self.row['mean'])}{interval}"
        ends = [end for end in ENDS if end in self.others]
        parts = [f"Use {self.name}: {score} over {counted(self._clients, 'client')}"]
        parts += [" and ".join(self._stands(end) for end in ends)] if ends else []
        text = ", ".join(parts)
        if not self.choice.reason:
            return f"{text}."
        gap = self._said(abs(self.choice.means[self.choice.best] - self.choice.means[self.name]))
        as_good = f"{self.choice.best} is as good on {self.choice.split} rows ({gap} apart)"
        return f"{text}; {as_good}, but {self.name} {self.choice.reason}."

    @property
    def second(self) -> str:
        """Who gains and who loses, what newcomers get, and what it costs."""
        parts = [*self._losers(), *self._newcomers()]
        if self.row["mb_per_client"] is not None:
            steps = self.row.get("steps_per_client")
            work = f" and {steps:,.0f} gradient steps" if steps else ""
            parts.append(f"it costs {said_mb(self.row['mb_per_client'])}{work} per client")
        text = "; ".join(parts) or "what it costs is not known"
        return f"{text[0].upper()}{text[1:]}."

    @property
    def third(self) -> str:
        """How sure that is, what would make it surer, and whether something that is not federated does better."""
        return ". ".join([self._sureness(), *self._references()]) + "."

    def _sureness(self) -> str:
        if not self.others:
            alone = len(self.result.methods) == 1
            return "There was nothing else to take" if alone else "No other method gave a model that can be used"
        if self._clients < 2:
            return "One client is no evidence for others"
        if not self.near:
            return "Every other method that could be used is clearly behind it"
        if self.name in self.behind:
            best = self.result.leaderboard.filter(pl.col("against_best") == "best").row(0, named=True)
            unseen = self.choice.split == "valid" and best["method"] not in self.choice.candidates
            gap = self._said(abs(best["mean"] - self.row["mean"]))
            why = "valid rows were too few to tell" if unseen else "which counted less than that"
            return f"On test rows {best['method']} does better by {gap}, {why}"
        few = self.result.num_seeds < FEW_SEEDS and self._clients >= FEW_CLIENTS
        more = "more seeds" if few else "more clients or rows"
        return f"Test rows cannot tell it from {joined(self.near)}; {more} might"

    @property
    def _clients(self) -> int:
        return int(np.isfinite(self.result.scores(self.name)).any(0).sum())

    def _said(self, value: float) -> str:
        return f"{value:.{self.result.digits}f}"

    def _stands(self, end: str) -> str:
        pair = self.result.pair(self.name, end)
        if pair is None or not np.isfinite(pair.low):
            return f"not to be told from {ENDS[end]}"
        if not pair.clear and (self.name in self.behind) == (end in self.behind):
            return f"within noise of {ENDS[end]}"
        return f"{self._said(abs(pair.mean))} {'better' if self._better(pair) else 'worse'} than {ENDS[end]}"

    def _better(self, pair: Pair) -> bool:
        return (pair.mean > 0) == self.result.higher_is_better

    def _losers(self) -> list[str]:
        if self.name == ALONE or ALONE not in self.others:
            return []
        gains = self.result.gains(self.name, ALONE)
        known = np.isfinite(gains)
        gaining = f"{(gains[known] > 1e-9).sum()} of {known.sum()} clients do better than alone"
        # Who loses as much on the rows that choose is not only out of luck.
        least = np.fmax(gains, self.result.gains(self.name, ALONE, split=self.choice.split))
        lost = least < -LOSS * self.choice.span
        if not lost.any():
            return [gaining]
        names = self.result.names[lost]
        order = np.argsort(gains[lost])
        return [
            f"{gaining}; {joined(list(names[order]))} {'does' if len(names) == 1 else 'do'} worse with it "
            f"and should keep {'its' if len(names) == 1 else 'their'} own model ({ALONE})"
        ]

    def _newcomers(self) -> list[str]:
        if self.row["unseen"] is None:
            return []
        return [f"newcomers get {self._said(self.row['unseen'])}"]

    def _references(self) -> list[str]:
        """What is to be said where something that is not federated does better."""
        sign = 1.0 if self.result.higher_is_better else -1.0
        ahead = {name: sign * (mean - self.row["mean"]) for name, mean in self.result.reference_means.items()}
        least = {name: LITTLE if name == TRIVIAL else AHEAD for name in ahead}
        ahead = {name: gain for name, gain in ahead.items() if gain > least[name] * self.choice.span}
        alone = {name: gain for name, gain in ahead.items() if not name.endswith("pooled")}
        if not ahead:
            return []
        name = max(alone or ahead, key=ahead.__getitem__)
        score = self._said(self.result.reference_means[name])
        if alone:
            so = "another model may pay" if self.name == ALONE else "federating these models does not pay"
            return [f"Without any federation {name} does better ({score}): {so}"]
        return [f"With all rows in one place {name} does better ({score}): another model may pay"]


def simultaneous(row: Mapping[str, Any], number: int, clients: int) -> tuple[float, float]:
    """The interval of a mean that was chosen among so many: its 95 % interval widened to hold for all of them at once."""
    if clients < 2:
        return float("nan"), float("nan")
    level = (1 - LEVEL) ** (1 / number)
    times = t.ppf((1 + level) / 2, clients - 1) / norm.ppf(1 - LEVEL / 2)
    return row["mean"] - times * (row["mean"] - row["low"]), row["mean"] + times * (row["high"] - row["mean"])


def _nothing(result: Comparison) -> tuple[str, ...]:
    """What to say where there is no method to take."""
    words = dict(result.leaderboard.select("method", "against_best").iter_rows())
    named = {word: [name for name, one in words.items() if one == word] for word in UNSOUND}
    if len(named["no scores"]) == len(words):
        return "No method can be advised: there are no test scores.", "Split the data with a test share."
    able = [name for name, word in words.items() if word not in UNSOUND and knows_groups(name)]
    but = f" but {joined(able)}, which no real client is told" if able else ""
    said = [f"{joined(names)} {FAULTS[word]}" for word, names in named.items() if names]
    first = f"No method gave a model that can be used{but}{': ' if said else ''}{'; '.join(said)}."
    if named["useless"]:
        return first, "Train for more rounds, or look at what plures data check says of the columns."
    return first, "Try a smaller step size." if named["diverged"] else "Compare others: plures methods lists them."


FAULTS = {
    "diverged": "diverged",
    "useless": "did clearly worse than predicting a client's own mean or most frequent class",
    "no scores": "had no test scores",
}
