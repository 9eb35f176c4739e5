"""What the degree of collaboration costs and buys: one option of a method swept, with local_only and fedavg beside it.

Values are compared by the loss on valid rows, at the last round that the budget allows; test rows are read once, when a
run is over. Traffic is that of
the messages; gradient evaluations are those that a method reports: at least so many where some rounds report none, and
unknown where none does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from plures.advise import tradeoff_wording as wording
from plures.advise.advice import Advice, bounds, has_bounds, is_noise, mean_interval
from plures.advise.families import ModelFamily
from plures.data import Federation
from plures.engine import AttackSummary
from plures.study.disk.results import about_attackers
from plures.study.fronts import GAIN, TOLERANCE, last_index, needed_index, pareto, wild_loss
from plures.study.statistics import Interval, over_seeds
from plures.study.sweep import Sweep, SweptValue


@dataclass(frozen=True, eq=False)
class ValueCurve:
    """One value of the option, over the rounds at which it was evaluated.

    ``losses`` and ``scores`` are (seeds, rounds, clients) on valid rows, of clients that have some; ``mb`` and
    ``gradients`` (seeds, rounds) are per client, up to there; ``test_losses`` and ``test_scores`` (seeds, clients)
    are those of the end. ``broken``: some client with test rows ended with a model whose loss on them is no finite
    number. ``silent`` rounds report no gradients, which are then at least those counted.
    """

    setting: SweptValue
    rounds: np.ndarray
    mb: np.ndarray
    gradients: np.ndarray | None
    losses: np.ndarray
    scores: np.ndarray
    test_losses: np.ndarray
    test_scores: np.ndarray
    broken: bool = False
    silent: int = 0

    @cached_property
    def errors(self) -> np.ndarray:
        """(rounds,) the mean valid loss; infinite where some client's loss is no finite number."""
        return np.array([_mean(self.losses[:, at]) for at in range(len(self.rounds))])

    @cached_property
    def cost(self) -> np.ndarray:
        """(rounds,) megabytes per client up to there."""
        return np.asarray(self.mb.mean(axis=0))

    def ended_above(self, loss: float) -> bool:
        """Whether some client ended with a loss that is no finite number, or the mean one is above this."""
        test = over_seeds(self.test_losses)
        ends = [self.errors[-1], *([test[np.isfinite(test)].mean()] if np.isfinite(test).any() else [])]
        return self.broken or not all(np.isfinite(one) and one <= loss for one in ends)

    def gradients_at(self, at: int) -> float | None:
        """Gradient evaluations per client up to a point."""
        return None if self.gradients is None else float(self.gradients[:, at].mean())


@dataclass(frozen=True)
class BestValue:
    """A value and a round, and by how much the next value lies above it: ``gap`` on valid rows, over clients and seeds.

    The gap of one client has no interval.
    """

    setting: SweptValue
    round: int
    mb: float
    loss: float
    rival: SweptValue | None
    gap: Interval | None

    @property
    def within_noise(self) -> bool:
        """Whether the next value may be as good."""
        return self.gap is not None and is_noise(self.gap)

    @property
    def facts(self) -> dict[str, Any]:
        """All of it in plain values."""
        gap = self.gap
        return {
            "value": self.setting.text,
            "method": self.setting.label,
            "round": self.round,
            "mb": self.mb,
            "valid_loss": self.loss,
            "next": None if self.rival is None else self.rival.text,
            "gap_to_next": None if gap is None else [one if np.isfinite(one) else None for one in bounds(gap)],
            "within_noise": self.within_noise if gap is None or has_bounds(gap) else None,
        }


@dataclass(frozen=True, eq=False)
class Tradeoff(Advice):
    """The result of a sweep; ``curves`` are those of the values in order, then auto, then the two ends."""

    QUESTION = "how much collaboration is worth its cost?"
    COMMAND = "plures tradeoff"
    LOOKS = "your model and your plan, by valid rows, for the values that were tried"

    sweep: Sweep
    curves: tuple[ValueCurve, ...]
    metric: str
    higher_is_better: bool
    attackers: AttackSummary | None = None
    told: tuple[str, ...] = ()
    federation: Federation | None = None

    @property
    def option(self) -> str:
        """The option that was swept."""
        return self.sweep.degree.option

    @property
    def swept(self) -> list[ValueCurve]:
        """The curves of values, and of auto."""
        return [one for one in self.curves if one.setting.kind != "end"]

    @property
    def ends(self) -> list[ValueCurve]:
        """The curves of local_only and fedavg."""
        return [one for one in self.curves if one.setting.kind == "end"]

    def curve_of(self, setting: SweptValue) -> ValueCurve:
        """The curve of a setting."""
        return next(one for one in self.curves if one.setting == setting)

    @cached_property
    def wild(self) -> float:
        """The loss above which a curve diverged, though it is a number."""
        return wild_loss(np.array([one.errors[0] for one in self.swept]))

    def diverged(self, curve: ValueCurve) -> bool:
        """Whether a curve ended with a loss that is no finite number, or absurdly large."""
        return curve.ended_above(self.wild)

    @cached_property
    def scale(self) -> float:
        """The range of the valid losses, from the largest first one to the least; curves that diverged do not count."""
        known = [one.errors[np.isfinite(one.errors)] for one in self.curves if not self.diverged(one)]
        return float(max(one[0] for one in known) - min(one.min() for one in known)) if known else 0.0

    def last_index(self, curve: ValueCurve) -> int | None:
        """Where a curve is compared with others, the last point that the budget allows; None if it has none or diverged."""
        return None if self.diverged(curve) else last_index(curve.errors, self._allowed(curve))

    def needed_index(self, curve: ValueCurve) -> int | None:
        """The first point of a curve that is as good as its best one, both within the budget."""
        able = np.where(self._allowed(curve), curve.errors, np.inf)
        return None if self.diverged(curve) else needed_index(able, TOLERANCE * self.scale)

    def _allowed(self, curve: ValueCurve) -> np.ndarray:
        return self.sweep.budget.allows(curve.cost, curve.rounds)

    @cached_property
    def ranked(self) -> list[tuple[ValueCurve, int]]:
        """Curves of values that have a point within the budget, and its index: that of the least valid loss first."""
        known = [(one, at) for one in self.swept if (at := self.last_index(one)) is not None]
        return sorted(known, key=lambda point: point[0].errors[point[1]])

    @cached_property
    def best(self) -> BestValue | None:
        """The value with the least valid loss that the budget allows; None if all diverged or cost too much."""
        if not self.ranked:
            return None
        (first, at), rival = self.ranked[0], self.ranked[1][0] if len(self.ranked) > 1 else None
        point = int(first.rounds[at]), float(first.cost[at]), float(first.errors[at])
        next_to = (None, None) if rival is None else (rival.setting, self.gap(rival, first))
        return BestValue(first.setting, *point, *next_to)

    def gap(self, curve: ValueCurve, best: ValueCurve) -> Interval:
        """By how much a curve's valid loss lies above another's, both at the last round that the budget allows."""
        return mean_interval(curve.losses[:, self.last_index(curve)] - best.losses[:, self.last_index(best)])

    @cached_property
    def near(self) -> tuple[SweptValue, ...]:
        """Values that are within noise of the best one."""
        ranked = {curve.setting: curve for curve, _ in self.ranked}
        others = [curve for curve in self.swept if curve.setting in ranked and curve is not self.ranked[0][0]]
        return tuple(one.setting for one in others if is_noise(self.gap(one, self.ranked[0][0])))

    def _points(self, curve: ValueCurve) -> list[tuple[ValueCurve, int]]:
        return [] if self.diverged(curve) else [(curve, at) for at in range(len(curve.rounds))]

    def _on_front(self, points: list[tuple[ValueCurve, int]]) -> np.ndarray:
        costs, errors = (np.array([getattr(one, name)[at] for one, at in points]) for name in ("cost", "errors"))
        return pareto(costs, errors, GAIN * self.scale)

    @cached_property
    def front(self) -> tuple[tuple[SweptValue, int], ...]:
        """(setting, index) of the points of all values that none beats in both megabytes and valid loss, cheapest first."""
        every = [point for one in self.swept for point in self._points(one)]
        kept = [(curve, at) for (curve, at), on in zip(every, self._on_front(every), strict=True) if on]
        return tuple((curve.setting, at) for curve, at in sorted(kept, key=lambda point: point[0].cost[point[1]]))

    @cached_property
    def worth(self) -> tuple[SweptValue, ...]:
        """Values that, with the rounds they need, no point of another value beats in both megabytes and valid loss."""
        return tuple(one.setting for one in self.swept if self._stands(one))

    def _stands(self, curve: ValueCurve) -> bool:
        needed = self.needed_index(curve)
        if needed is None:
            return False
        others = [point for one in self.swept if one is not curve for point in self._points(one)]
        return bool(
            self._on_front([(curve, needed), *((one, at) for one, at in others if self._allowed(one)[at])])[0]
        )

    @property
    def ends_early(self) -> bool:
        """Whether the budget ends before the last round, so that test rows were read at a later one."""
        return any(at < len(one.rounds) - 1 for one, at in self.ranked)

    @property
    def verdict(self) -> str:
        """The best value."""
        return "none" if self.best is None else f"{self.option}={self.best.setting.text}"

    @property
    def family(self) -> ModelFamily:
        """An end if it is as good by valid rows as the best value, else own models near a shared one."""
        points = {
            one.setting.label: one.errors[at] for one in self.ends if (at := self.last_index(one)) is not None
        }
        best = min(points, key=lambda label: points[label], default=None)
        if best is None or (self.best is not None and self.best.loss < points[best]):
            return ModelFamily.PERSONAL
        return ModelFamily.ALONE if best == "local_only" else ModelFamily.GLOBAL

    @property
    def sentences(self) -> list[str]:
        """What the sweep says, in words."""
        return wording.sentences_of(self)

    @property
    def remarks(self) -> list[str]:
        """What methods tell of their results, those of the best value and of auto; and who attacked."""
        best = [] if self.best is None else [self.best.setting]
        auto = [one.setting for one in self.swept if one.setting.kind == "auto"]
        labels = dict.fromkeys(one.label for one in (*best, *auto))
        lines = [line for label in labels for line in self.told if line.startswith(f"{label}: ")]
        return lines if self.attackers is None else [*lines, self.attackers.said]

    @cached_property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Points, the last round first, and values."""
        # Readers guess a column's type from its first rows, which then hold every kind of value.
        points = wording.points_table(self).sort("round", descending=True, maintain_order=True)
        return {"points": points, "values": wording.values_table(self)}

    @property
    def facts(self) -> dict[str, Any]:
        """The sweep, the best value, the fronts, and every value."""
        sweep = self.sweep
        points = [(self.curve_of(one), at) for one, at in self.front]
        # JSON has no words for what is no number.
        finite = pl.col(pl.Float64).fill_nan(None).replace([np.inf, -np.inf], [None, None])
        return {
            "method": sweep.degree.text,
            "option": self.option,
            "metric": self.metric,
            "rounds": sweep.rounds,
            "seeds": list(sweep.seeds),
            "budget": {"mb": sweep.budget.mb, "rounds": sweep.budget.rounds},
            "best": None if self.best is None else self.best.facts,
            "within_noise": [one.text for one in self.near],
            "front_of_values": [one.text for one in self.worth],
            "front_of_points": [
                {"value": one.setting.text, "round": int(one.rounds[at]), "mb": float(one.cost[at])}
                for one, at in points
            ],
            "left_out": list(sweep.left_out),
            "values": self.tables["values"].with_columns(finite).to_dicts(),
            "told": list(self.told),
            **({} if self.attackers is None else {"attack": about_attackers(self.attackers)}),
        }


def _mean(losses: np.ndarray) -> float:
    """Over clients after seeds; infinite where one is no finite number."""
    return float(over_seeds(losses).mean()) if np.isfinite(losses).all() else float("inf")
