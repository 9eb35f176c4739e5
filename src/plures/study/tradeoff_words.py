"""A sweep as tables, as sentences, and as files."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import polars as pl

from plures.study.folder import about_threat
from plures.study.fronts import TOLERANCE, counted, said_mb
from plures.study.statistics import Interval
from plures.study.sweep import Setting
from plures.study.tradeoff import Best, Curve, Tradeoff, interval, is_noise

LEGEND = (
    "test: after the last round, mean over clients and seeds, ± half of its 95 % interval; valid: after the last round too, or "
    "the last one that the budget allows; rounds needed: the first evaluated round whose valid loss is above the value's least "
    f"one by at most {TOLERANCE:.0%} of the range of all losses of the sweep; traffic and gradients of training per client, up "
    "to there; a plus: some rounds report no gradients; near: within noise of the best; front: with the rounds needed, no "
    "other value is both cheaper and better at any round; under a budget all but test is about rounds that it allows"
)

ONE_CLIENT = "one client: no interval"

UNKNOWN = Interval(float("nan"), float("nan"), float("nan"))


def values_table(result: Tradeoff) -> pl.DataFrame:
    """A row per value, then auto, then the two ends."""
    return pl.DataFrame([_row(result, curve) for curve in result.curves], infer_schema_length=None)


def _row(result: Tradeoff, curve: Curve) -> dict[str, Any]:
    place, needed, setting = result.place(curve), result.needed(curve), curve.setting
    test, score = (
        (UNKNOWN, UNKNOWN) if result.diverged(curve) else (interval(curve.test_losses), interval(curve.test_scores))
    )
    return {
        "value": setting.said,
        "number": setting.value,
        "kind": setting.kind,
        "method": setting.label,
        "test_round": result.sweep.rounds,
        "test_loss": test.mean,
        "test_loss_low": test.low,
        "test_loss_high": test.high,
        "test_score": score.mean,
        "test_score_low": score.low,
        "test_score_high": score.high,
        "valid_loss": None if place is None else float(curve.errors[place]),
        "valid_round": None if place is None else int(curve.rounds[place]),
        "rounds_needed": None if needed is None else int(curve.rounds[needed]),
        "mb_needed": None if needed is None else float(curve.cost[needed]),
        "gradients_needed": None if needed is None else curve.gradients_at(needed),
        "rounds_without_gradients": curve.silent,
        "front": setting in result.worth,
        "mark": ", ".join(marks(result, setting)),
    }


def marks(result: Tradeoff, setting: Setting) -> list[str]:
    """What stands beside a value: best, within noise, front, diverged."""
    curve, best = result.curve_of(setting), result.best
    words = {
        "diverged": result.diverged(curve),
        "best": best is not None and best.setting == setting,
        "within noise": setting in result.near,
        "front": setting in result.worth,
    }
    return [word for word, fits in words.items() if fits]


def points_table(result: Tradeoff) -> pl.DataFrame:
    """A row per (value, seed, round); ``front`` says whether the mean over seeds is on the front of all points.

    ``value`` is a text for all rows, ``number`` the same as a number where it is one.
    """
    front = {(setting, place) for setting, place in result.front}
    rows = [
        {
            "value": curve.setting.said,
            "number": curve.setting.value,
            "kind": curve.setting.kind,
            "method": curve.setting.label,
            "seed": seed,
            "round": int(curve.rounds[place]),
            "valid_loss": _plain(curve.losses[index, place]),
            "valid_score": _plain(curve.scores[index, place]),
            "mb": float(curve.mb[index, place]),
            "gradients": None if curve.gradients is None else float(curve.gradients[index, place]),
            "test_loss": _plain(curve.test_losses[index]) if place == len(curve.rounds) - 1 else None,
            "test_score": _plain(curve.test_scores[index]) if place == len(curve.rounds) - 1 else None,
            "front": (curve.setting, place) in front,
        }
        for curve in result.curves
        for index, seed in enumerate(result.sweep.seeds)
        for place in range(len(curve.rounds))
    ]
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides={"number": pl.Float64})


def ends_early(result: Tradeoff) -> bool:
    """Whether the budget ends before the last round, so that test rows were read at a later one."""
    places = [(result.place(one), len(one.rounds) - 1) for one in result.swept]
    return any(place is not None and place < last for place, last in places)


def sentences(result: Tradeoff) -> list[str]:
    """What the sweep says, in words."""
    best, left_out = result.best, result.sweep.left_out
    said = [] if not left_out else [f"left out, for the method refuses them: {result.option} {', '.join(left_out)}"]
    gone = [one.setting.said for one in result.swept if result.diverged(one)]
    said += [f"diverged: {', '.join(gone)}"] if gone else []
    lost = [one.setting.said for one in result.ends if result.diverged(one)]
    said += [f"{name} diverged with this plan: a smaller --lr would do" for name in lost]
    if best is None:
        return [*said, "no value has a finite loss on valid rows within the budget"]
    return [
        *said,
        _winner(result, best),
        *_cheapest(result, best),
        *_auto(result, best),
        *_ends(result, best),
        *_hints(result, best),
    ]


def _winner(result: Tradeoff, best: Best) -> str:
    budget = result.sweep.budget.said
    under = f" within {budget}" if budget else ""
    found = f"best{under}: {_name(result, best.setting)} at round {best.round} ({said_mb(best.mb)} per client, valid loss {best.loss:.4g})"
    if best.rival is None or best.gap is None:
        return found
    verdict = ONE_CLIENT if not _sure(best.gap) else "within noise" if best.within_noise else "a clear gap"
    return f"{found}; next is {_name(result, best.rival)}, {_above(best.gap)}: {verdict}"


def _cheapest(result: Tradeoff, best: Best) -> list[str]:
    """The value within noise of the best that needs the least traffic, where that is less than the best one needs."""
    every = [result.curve_of(best.setting), *map(result.curve_of, result.near)]
    costs = {
        number: (float(one.cost[at]), float(one.errors[at]))
        for number, one in enumerate(every)
        if (at := result.needed(one)) is not None
    }
    number = min(costs, key=lambda one: costs[one], default=0)
    if not number or costs[number][0] >= costs[0][0]:
        return []
    curve, (cost, _) = every[number], costs[number]
    rounds = counted(int(curve.rounds[result.needed(curve)]), "round")
    return [
        f"as good within noise, and cheapest: {_name(result, curve.setting)}, which needs {rounds} and {said_mb(cost)} "
        f"per client ({_name(result, best.setting)} needs {said_mb(costs[0][0])})"
    ]


def _auto(result: Tradeoff, best: Best) -> list[str]:
    """How the value that the method chose for itself fares."""
    found = [one for one in result.swept if one.setting.kind == "auto"]
    if not found or found[0].setting == best.setting or result.place(found[0]) is None:
        return []
    gap = result.gap(found[0], result.curve_of(best.setting))
    verdict = "behind the best" if gap.excludes_zero else "within noise of the best"
    fares = f"is {verdict}: {_above(gap)}" if _sure(gap) else f"lies {_above(gap)} ({ONE_CLIENT})"
    return [f"left to itself ({found[0].setting.label}) the method {fares}"]


def _ends(result: Tradeoff, best: Best) -> list[str]:
    """The best value against no collaboration and one model for all, on test rows."""
    mine = result.curve_of(best.setting)
    said = [_against(end, mine) for end in result.ends if not result.diverged(end)]
    about = f"{_name(result, best.setting)} has test loss {interval(mine.test_losses).mean:.4g}"
    after = counted(result.sweep.rounds, "round")
    return [": ".join([f"on test rows, after {after}, {about}", *([", ".join(said)] if said else [])])]


def _against(end: Curve, mine: Curve) -> str:
    gap = interval(end.test_losses - mine.test_losses)
    if not _sure(gap):
        return f"{gap.mean:+.2g} against {end.setting.said} ({ONE_CLIENT})"
    word = "within noise of" if is_noise(gap) else "better than" if gap.mean > 0 else "worse than"
    return f"{word} {end.setting.said} ({gap.mean:+.2g} [{gap.low:+.2g}, {gap.high:+.2g}])"


def _hints(result: Tradeoff, best: Best) -> list[str]:
    """What to try next: values beyond the grid, more rounds, or a run that reads test rows where the budget ends."""
    numbers = [one.setting for one in result.swept if one.setting.kind == "value"]
    said = []
    if len(numbers) > 1 and best.setting in (numbers[0], numbers[-1]):
        side = "smallest" if best.setting == numbers[0] else "largest"
        said.append(f"{best.setting.said} is the {side} value that was tried: others beyond it may be better")
    curve = result.curve_of(best.setting)
    if result.place(curve) != len(curve.rounds) - 1:
        said.append(_command(result, best))
    elif len(curve.rounds) > 1 and curve.errors[-2] - curve.errors[-1] > TOLERANCE * result.scale:
        said.append("its valid loss still fell at the last round: more rounds may help")
    return said


def _command(result: Tradeoff, best: Best) -> str:
    """How test rows are read at the round at which the budget ends."""
    asked = result.sweep.asked
    if not asked:
        return f"to read test rows at its round run {best.setting.label} for {counted(best.round, 'round')}, all else the same"
    return f"to read test rows at its round: plures compare -m {quote(best.setting.label)} --rounds {best.round} {asked}"


def told(result: Tradeoff) -> list[str]:
    """What methods tell of their results, those of the best value and of auto."""
    best = [] if result.best is None else [result.best.setting]
    auto = [one.setting for one in result.swept if one.setting.kind == "auto"]
    labels = dict.fromkeys(one.label for one in (*best, *auto))
    return [line for label in labels for line in result.told if line.startswith(f"{label}: ")]


def save_tradeoff(result: Tradeoff, out: Path) -> list[Path]:
    """Points, values and summary as files."""
    out.mkdir(parents=True, exist_ok=True)
    files = [out / name for name in ("points.csv", "values.csv", "summary.json")]
    # The last round first: readers guess a column's type from its first rows, which then hold every kind of value.
    points_table(result).sort("round", descending=True, maintain_order=True).write_csv(files[0])
    values_table(result).write_csv(files[1])
    files[2].write_text(json.dumps(about(result), indent=2) + "\n")
    return files


def about(result: Tradeoff) -> dict[str, Any]:
    """The whole result in plain values."""
    best, sweep = result.best, result.sweep
    found: dict[str, Any] = {
        "method": sweep.degree.text,
        "option": result.option,
        "metric": result.metric,
        "rounds": sweep.rounds,
        "seeds": list(sweep.seeds),
        "budget": {"mb": sweep.budget.mb, "rounds": sweep.budget.rounds},
        "best": None if best is None else _about_best(best),
        "within_noise": [one.said for one in result.near],
        "front_of_values": [one.said for one in result.worth],
        "front_of_points": [
            {
                "value": one.said,
                "round": int((curve := result.curve_of(one)).rounds[at]),
                "mb": float(curve.cost[at]),
            }
            for one, at in result.front
        ],
        "left_out": list(sweep.left_out),
        "values": [_finite(row) for row in values_table(result).to_dicts()],
        "said": sentences(result),
        "told": list(result.told),
    }
    return found if result.threat is None else {**found, "attack": about_threat(result.threat)}


def _about_best(best: Best) -> dict[str, Any]:
    gap = best.gap
    bounds = None if gap is None else [one if np.isfinite(one) else None for one in (gap.mean, gap.low, gap.high)]
    return {
        "value": best.setting.said,
        "method": best.setting.label,
        "round": best.round,
        "mb": best.mb,
        "valid_loss": best.loss,
        "next": None if best.rival is None else best.rival.said,
        "gap_to_next": bounds,
        "within_noise": best.within_noise if gap is None or _sure(gap) else None,
    }


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no words for what is no number."""
    return {name: None if isinstance(x, float) and not np.isfinite(x) else x for name, x in row.items()}


def _plain(values: np.ndarray) -> float | None:
    """The mean over clients that have a score; None where there is none, or one is infinite."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) and np.isfinite(known).all() else None


def _name(result: Tradeoff, setting: Setting) -> str:
    return f"{result.option}={setting.said}"


def _sure(gap: Interval) -> bool:
    """Whether a gap has an interval."""
    return bool(np.isfinite(gap.low))


def _above(gap: Interval) -> str:
    bounds = f" [{gap.low:.2g}, {gap.high:.2g}]" if _sure(gap) else ""
    return f"{gap.mean:.2g} above it{bounds}"
