"""A sweep in words and as tables: what every value buys and costs, the best one, and what to try next."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from plures.advise.advice import has_bounds, is_noise, mean_interval
from plures.study.fronts import TOLERANCE
from plures.study.statistics import Interval
from plures.study.sweep import SweptValue
from plures.wording import counted, said_mb

if TYPE_CHECKING:
    from plures.advise.tradeoff import BestValue, Tradeoff, ValueCurve

ONE_CLIENT = "one client: no interval"

UNKNOWN = Interval(float("nan"), float("nan"), float("nan"))


def values_table(result: Tradeoff) -> pl.DataFrame:
    """A row per value, then auto, then the two ends."""
    return pl.DataFrame([_row(result, curve) for curve in result.curves], infer_schema_length=None)


def _row(result: Tradeoff, curve: ValueCurve) -> dict[str, Any]:
    last, needed, setting = result.last_index(curve), result.needed_index(curve), curve.setting
    ends = {"loss": curve.test_losses, "score": curve.test_scores}
    test = {name: UNKNOWN if result.diverged(curve) else mean_interval(values) for name, values in ends.items()}
    return {
        **_names(setting),
        "test_round": result.sweep.rounds,
        **{f"test_{name}{end}": getattr(test[name], part) for name in ends for end, part in ENDS_OF.items()},
        "valid_loss": None if last is None else float(curve.errors[last]),
        "valid_round": None if last is None else int(curve.rounds[last]),
        "rounds_needed": None if needed is None else int(curve.rounds[needed]),
        "mb_needed": None if needed is None else float(curve.cost[needed]),
        "gradients_needed": None if needed is None else curve.gradients_at(needed),
        "rounds_without_gradients": curve.silent,
        "front": setting in result.worth,
        "mark": ", ".join(marks(result, setting)),
    }


ENDS_OF = {"": "mean", "_low": "low", "_high": "high"}


def _names(setting: SweptValue) -> dict[str, Any]:
    """``value`` is a text for all settings, ``number`` the same as a number where it is one."""
    return {"value": setting.text, "number": setting.value, "kind": setting.kind, "method": setting.label}


def marks(result: Tradeoff, setting: SweptValue) -> list[str]:
    """What stands beside a value: best, within noise, front, diverged."""
    words = {
        "diverged": result.diverged(result.curve_of(setting)),
        "best": result.best is not None and result.best.setting == setting,
        "within noise": setting in result.near,
        "front": setting in result.worth,
    }
    return [word for word, fits in words.items() if fits]


def points_table(result: Tradeoff) -> pl.DataFrame:
    """A row per (value, seed, round); ``front`` says whether the mean over seeds is on the front of all points."""
    rows = [
        {
            **_names(curve.setting),
            "seed": seed,
            "round": int(curve.rounds[at]),
            "valid_loss": _plain(curve.losses[index, at]),
            "valid_score": _plain(curve.scores[index, at]),
            "mb": float(curve.mb[index, at]),
            "gradients": None if curve.gradients is None else float(curve.gradients[index, at]),
            "test_loss": _plain(curve.test_losses[index]) if at == len(curve.rounds) - 1 else None,
            "test_score": _plain(curve.test_scores[index]) if at == len(curve.rounds) - 1 else None,
            "front": (curve.setting, at) in result.front,
        }
        for curve in result.curves
        for index, seed in enumerate(result.sweep.seeds)
        for at in range(len(curve.rounds))
    ]
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides={"number": pl.Float64})


def sentences_of(result: Tradeoff) -> list[str]:
    """What the sweep says, in words."""
    best, left_out = result.best, result.sweep.left_out
    said = [] if not left_out else [f"left out, for the method refuses them: {result.option} {', '.join(left_out)}"]
    gone = [one.setting.text for one in result.swept if result.diverged(one)]
    said += [f"diverged: {', '.join(gone)}"] if gone else []
    lost = [one.setting.text for one in result.ends if result.diverged(one)]
    said += [f"{name} diverged with this plan: a smaller --lr would do" for name in lost]
    if best is None:
        return [*said, "no value has a finite loss on valid rows within the budget"]
    more = (line for tell in (_cheapest, _auto, _ends, _hints) for line in tell(result, best))
    return [*said, _winner(result, best), *more]


def _winner(result: Tradeoff, best: BestValue) -> str:
    budget = result.sweep.budget.text
    under = f" within {budget}" if budget else ""
    found = f"best{under}: {_name(result, best.setting)} at round {best.round} ({said_mb(best.mb)} per client, valid loss {best.loss:.4g})"
    if best.rival is None or best.gap is None:
        return found
    verdict = ONE_CLIENT if not has_bounds(best.gap) else "within noise" if best.within_noise else "a clear gap"
    return f"{found}; next is {_name(result, best.rival)}, {_above(best.gap)}: {verdict}"


def _cheapest(result: Tradeoff, best: BestValue) -> list[str]:
    """The value within noise of the best that needs the least traffic, where that is less than the best one needs."""
    every = [result.curve_of(best.setting), *map(result.curve_of, result.near)]
    costs = {
        number: (float(one.cost[at]), float(one.errors[at]))
        for number, one in enumerate(every)
        if (at := result.needed_index(one)) is not None
    }
    number = min(costs, key=lambda one: costs[one], default=0)
    if not number or costs[number][0] >= costs[0][0]:
        return []
    curve, (cost, _) = every[number], costs[number]
    rounds = counted(int(curve.rounds[result.needed_index(curve)]), "round")
    return [
        f"as good within noise, and cheapest: {_name(result, curve.setting)}, which needs {rounds} and {said_mb(cost)} "
        f"per client ({_name(result, best.setting)} needs {said_mb(costs[0][0])})"
    ]


def _auto(result: Tradeoff, best: BestValue) -> list[str]:
    """How the value that the method chose for itself fares."""
    found = [one for one in result.swept if one.setting.kind == "auto"]
    if not found or found[0].setting == best.setting or result.last_index(found[0]) is None:
        return []
    gap = result.gap(found[0], result.curve_of(best.setting))
    verdict = "behind the best" if gap.excludes_zero else "within noise of the best"
    fares = f"is {verdict}: {_above(gap)}" if has_bounds(gap) else f"lies {_above(gap)} ({ONE_CLIENT})"
    return [f"left to itself ({found[0].setting.label}) the method {fares}"]


def _ends(result: Tradeoff, best: BestValue) -> list[str]:
    """The best value against no collaboration and one model for all, on test rows."""
    mine = result.curve_of(best.setting)
    said = [_against(end, mine) for end in result.ends if not result.diverged(end)]
    about = f"{_name(result, best.setting)} has test loss {mean_interval(mine.test_losses).mean:.4g}"
    after = counted(result.sweep.rounds, "round")
    return [": ".join([f"on test rows, after {after}, {about}", *([", ".join(said)] if said else [])])]


def _against(end: ValueCurve, mine: ValueCurve) -> str:
    gap = mean_interval(end.test_losses - mine.test_losses)
    if not has_bounds(gap):
        return f"{gap.mean:+.2g} against {end.setting.text} ({ONE_CLIENT})"
    word = "within noise of" if is_noise(gap) else "better than" if gap.mean > 0 else "worse than"
    return f"{word} {end.setting.text} ({gap.mean:+.2g} [{gap.low:+.2g}, {gap.high:+.2g}])"


def _hints(result: Tradeoff, best: BestValue) -> list[str]:
    """What to try next: values beyond the grid, more rounds, or a run that reads test rows where the budget ends."""
    numbers = [one.setting for one in result.swept if one.setting.kind == "value"]
    said = []
    if len(numbers) > 1 and best.setting in (numbers[0], numbers[-1]):
        side = "smallest" if best.setting == numbers[0] else "largest"
        said.append(f"{best.setting.text} is the {side} value that was tried: others beyond it may be better")
    curve = result.curve_of(best.setting)
    if result.last_index(curve) != len(curve.rounds) - 1:
        said.append(_command(result, best))
    elif len(curve.rounds) > 1 and curve.errors[-2] - curve.errors[-1] > TOLERANCE * result.scale:
        said.append("its valid loss still fell at the last round: more rounds may help")
    return said


def _command(result: Tradeoff, best: BestValue) -> str:
    """How test rows are read at the round at which the budget ends."""
    asked = result.sweep.asked
    if not asked:
        return f"to read test rows at its round run {best.setting.label} for {counted(best.round, 'round')}, all else the same"
    return f"to read test rows at its round: plures compare -m {quote(best.setting.label)} --rounds {best.round} {asked}"


def _plain(values: np.ndarray) -> float | None:
    """The mean over clients that have a score; None where there is none, or one is infinite."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) and np.isfinite(known).all() else None


def _name(result: Tradeoff, setting: SweptValue) -> str:
    return f"{result.option}={setting.text}"


def _above(gap: Interval) -> str:
    bounds = f" [{gap.low:.2g}, {gap.high:.2g}]" if has_bounds(gap) else ""
    return f"{gap.mean:.2g} above it{bounds}"
