"""Methods compared over the same clients and seeds: every two of them, and each with the best.

Clients are what is drawn at random, so a difference d_c of two methods on client c, averaged over seeds, is as likely as
-d_c where the two are equally good. Flipping the signs of all methods' scores of a client together, at random, gives the
law of the differences when nothing differs, whatever the scores look like and however they depend on each other
(randomization tests; Fisher 1935). With t_ij the mean of a difference over its standard error, in the study and in each of
many flips:

    every pair    |t_ij| is compared with the 95 % quantile of the largest |t| of all pairs; the intervals
                  mean +- quantile x error hold for all pairs at once (single-step; Westfall and Young 1993)
    the best      i can be told from the best if some t_ji is beyond the 95 % quantile of max_j t_ji: multiple comparisons
                  with the best, which asks k - 1 questions of each method instead of k (k - 1) / 2 (Hsu 1984). Nobody is
                  told from the best unless some pair of all is clear: where all are equal that happens in one study of 20

The error of a mean has a part for clients and, with several seeds, one for what seeds do to all clients at once. Of fewer
than 8 clients there are too few flips, and Student's law with Bonferroni's correction takes their place. One client tells
nothing of others. With one seed, what its luck does is not in the intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np
from scipy.stats import t as student

from plures.keys import root
from plures.study.statistics import over_seeds
from plures.types import Floats

LEVEL = 0.05
FLIPS, BLOCK = 2000, 4096
FEWEST_FLIPPED = 8
ROUNDING = 1e-12


@dataclass(frozen=True)
class Pair:
    """How much ``method`` scores above ``other``: the mean difference, its interval, and its p-value, both corrected."""

    method: str
    other: str
    mean: float
    low: float
    high: float
    p: float

    @property
    def clear(self) -> bool:
        """Whether the difference is beyond noise."""
        return self.low > 0 or self.high < 0


def in_pairs(scores: Mapping[str, Floats], pairs: Sequence[tuple[str, str]]) -> list[Pair]:
    """The comparisons of these pairs of methods; ``scores`` are (seeds, clients) each, NaN where there is none.

    A pair of which fewer than two clients have both scores is unknown: its ends are NaN, and p = 1.
    """
    return PairedScores(scores, pairs).compare()


@dataclass(frozen=True, eq=False)
class PairedScores:
    """Scores of methods, (seeds, clients) each, and the pairs that are looked at."""

    scores: Mapping[str, Floats]
    pairs: Sequence[tuple[str, str]]

    def compare(self) -> list[Pair]:
        """All pairs, corrected for their number."""
        if not self.pairs:
            return []
        reach, widths = self._reach(np.abs(self.flipped).max(1)), self.errors
        found = []
        for (one, other), mean, error, t in zip(self.pairs, self.means, widths, self.observed, strict=True):
            low, high = float(mean - reach * error), float(mean + reach * error)
            found.append(Pair(one, other, float(mean), low, high, self._p(abs(t))))
        return found

    def behind(self, *, higher_is_better: bool) -> set[str]:
        """Methods that can be told from the best; all pairs of the methods must have been given."""
        sign = 1.0 if higher_is_better else -1.0
        if not any(pair.clear for pair in self.compare()):
            return set()
        found = set()
        for name in self.scores:
            # By how many errors each other method is ahead of this one.
            mine = [(place, 1.0) for place, pair in enumerate(self.pairs) if pair[1] == name]
            mine += [(place, -1.0) for place, pair in enumerate(self.pairs) if pair[0] == name]
            places, signs = np.array([p for p, _ in mine]), sign * np.array([s for _, s in mine])
            reach = self._reach((signs * self.flipped[:, places]).max(1), sides=1, number=len(places))
            if (signs * self.observed[places]).max() > reach:
                found.add(name)
        return found

    @cached_property
    def tables(self) -> Floats:
        """(pairs, seeds, clients) differences."""
        return np.array([np.atleast_2d(self.scores[one]) - np.atleast_2d(self.scores[b]) for one, b in self.pairs])

    @cached_property
    def each(self) -> Floats:
        """(clients, pairs) differences over seeds."""
        return np.array([over_seeds(table) for table in self.tables]).T

    @cached_property
    def numbers(self) -> Floats:
        """(pairs,) how many clients have both scores."""
        return np.isfinite(self.each).sum(0).astype(float)

    @property
    def fewest(self) -> float:
        """The fewest clients that a pair of which something can be told has in common."""
        return float(self.numbers[self.numbers > 1].min(initial=np.inf))

    @cached_property
    def means(self) -> Floats:
        """(pairs,) mean differences; NaN where no client has both scores."""
        total = np.nansum(self.each, axis=0)
        return np.where(self.numbers > 0, total / np.maximum(self.numbers, 1), np.nan)

    @cached_property
    def client_errors(self) -> Floats:
        """(pairs,) standard errors of the means that come from clients; NaN for fewer than two of them."""
        return self._errors(self.means)

    @cached_property
    def errors(self) -> Floats:
        """(pairs,) standard errors, with what seeds do to all clients at once."""
        return np.sqrt(self.client_errors**2 + [_seed_part(table) for table in self.tables])

    @cached_property
    def observed(self) -> Floats:
        """(pairs,) means in standard errors; 0 where that is unknown."""
        return _over(self.means, self.errors)

    @cached_property
    def flipped(self) -> Floats:
        """(flips, pairs) means in standard errors after random signs for every client."""
        known, total = np.nan_to_num(self.each), np.zeros((FLIPS, len(self.pairs)))
        for number, start in enumerate(range(0, len(known), BLOCK)):
            block = known[start : start + BLOCK]
            signs = jax.random.rademacher(jax.random.fold_in(root(0), number), (FLIPS, len(block)), "float32")
            total += np.asarray(signs, float) @ block
        means = total / np.maximum(self.numbers, 1)
        return _over(means, self._errors(means))

    def _errors(self, means: Floats) -> Floats:
        """Standard errors of means over clients: flips change the means and not the mean squares."""
        squares = np.nansum(self.each**2, axis=0) / np.maximum(self.numbers, 1)
        # What rounding leaves of equal differences is no spread.
        spread = np.where(squares - means**2 > ROUNDING * squares, squares - means**2, 0.0)
        return np.where(self.numbers > 1, np.sqrt(spread / np.maximum(self.numbers - 1, 1)), np.nan)

    def _reach(self, largest: Floats, *, sides: int = 2, number: int = 0) -> float:
        """How many standard errors are within noise, given the largest of every flip."""
        if (clients := self.fewest) < FEWEST_FLIPPED:
            level = LEVEL / sides / (number or len(self.pairs))
            return float(student.ppf(1 - level, max(clients - 1, 1)))
        return float(np.quantile(largest, 1 - LEVEL, method="higher"))

    def _p(self, size: float) -> float:
        """The p-value of a mean of so many standard errors, corrected for all pairs."""
        if size == 0:
            return 1.0
        if (clients := self.fewest) < FEWEST_FLIPPED:
            return float(min(1.0, 2 * len(self.pairs) * student.sf(size, max(clients - 1, 1))))
        return float(((np.abs(self.flipped).max(1) >= size).sum() + 1) / (FLIPS + 1))


def all_pairs(scores: Mapping[str, Floats]) -> PairedScores:
    """Every two methods."""
    names = list(scores)
    return PairedScores(scores, [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]])


def _over(means: Floats, errors: Floats) -> Floats:
    """Means in standard errors: 0 where there is nothing to tell, infinite where every client differs by the same."""
    sure = np.where(np.abs(means) > ROUNDING, np.copysign(np.inf, means), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(errors > 0, means / errors, sure)
    return np.where(np.isfinite(means) & ~np.isnan(errors), found, 0.0)


def _seed_part(table: Floats) -> float:
    """The variance that seeds add to a mean of (seeds, clients) differences: two crossed random effects."""
    whole = table[:, np.isfinite(table).all(0)]
    seeds, clients = whole.shape
    if seeds < 2 or clients < 2:
        return 0.0
    by_seed, by_client = whole.mean(1, keepdims=True), whole.mean(0, keepdims=True)
    rest = ((whole - by_seed - by_client + whole.mean()) ** 2).sum() / ((seeds - 1) * (clients - 1))
    return max(0.0, float(by_seed.var(ddof=1) / seeds - rest / (seeds * clients)))
