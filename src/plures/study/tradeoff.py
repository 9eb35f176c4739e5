"""What the degree of collaboration costs and buys: one option of a method swept, with local_only and fedavg beside it.

Values are compared by the loss on valid rows, at the last round that the budget allows; test rows are read once, when a
run is over. Traffic is that of
the messages; gradient evaluations are those that a method reports: at least so many where some rounds report none, and
unknown where none does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from plures.data import Federation
from plures.engine import Threat
from plures.errors import BadFile
from plures.study.compare import StudyProgress, compare
from plures.study.comparison import Comparison
from plures.study.folder import run_folder
from plures.study.fronts import GAIN, TOLERANCE, Budget, last_place, pareto, place_needed, wild_loss
from plures.study.statistics import Interval, bootstrap, over_seeds
from plures.study.sweep import Setting, Sweep, plan_sweep
from plures.types import Model, Plan

BYTES_FILE = "bytes.csv"


@dataclass(frozen=True, eq=False)
class Curve:
    """One value of the option, over the rounds at which it was evaluated.

    ``losses`` and ``scores`` are (seeds, rounds, clients) on valid rows, of clients that have some; ``mb`` and
    ``gradients`` (seeds, rounds) are per client, up to there; ``test_losses`` and ``test_scores`` (seeds, clients)
    are those of the end. ``broken``: some client with test rows ended with a model whose loss on them is no finite
    number. ``silent`` rounds report no gradients, which are then at least those counted.
    """

    setting: Setting
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
        return np.array([_mean(self.losses[:, place]) for place in range(len(self.rounds))])

    @cached_property
    def cost(self) -> np.ndarray:
        """(rounds,) megabytes per client up to there."""
        return np.asarray(self.mb.mean(axis=0))

    def ended_above(self, loss: float) -> bool:
        """Whether some client ended with a loss that is no finite number, or the mean one is above this."""
        test = over_seeds(self.test_losses)
        ends = [self.errors[-1], *([test[np.isfinite(test)].mean()] if np.isfinite(test).any() else [])]
        return self.broken or not all(np.isfinite(one) and one <= loss for one in ends)

    def gradients_at(self, place: int) -> float | None:
        """Gradient evaluations per client up to a place."""
        return None if self.gradients is None else float(self.gradients[:, place].mean())


@dataclass(frozen=True)
class Best:
    """A value and a round, and by how much the next value lies above it: ``gap`` on valid rows, over clients and seeds.

    The gap of one client has no interval.
    """

    setting: Setting
    round: int
    mb: float
    loss: float
    rival: Setting | None
    gap: Interval | None

    @property
    def within_noise(self) -> bool:
        """Whether the next value may be as good."""
        return self.gap is not None and is_noise(self.gap)


@dataclass(frozen=True, eq=False)
class Tradeoff:
    """The result of a sweep; ``curves`` are those of the values in order, then auto, then the two ends."""

    sweep: Sweep
    curves: tuple[Curve, ...]
    metric: str
    higher_is_better: bool
    threat: Threat | None = None
    told: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The option that was swept."""
        return self.sweep.degree.option

    @property
    def swept(self) -> list[Curve]:
        """The curves of values, and of auto."""
        return [one for one in self.curves if one.setting.kind != "end"]

    @property
    def ends(self) -> list[Curve]:
        """The curves of local_only and fedavg."""
        return [one for one in self.curves if one.setting.kind == "end"]

    @cached_property
    def wild(self) -> float:
        """The loss above which a curve diverged, though it is a number."""
        return wild_loss(np.array([one.errors[0] for one in self.swept]))

    def diverged(self, curve: Curve) -> bool:
        """Whether a curve ended with a loss that is no finite number, or absurdly large."""
        return curve.ended_above(self.wild)

    @cached_property
    def scale(self) -> float:
        """The range of the valid losses, from the largest first one to the least; curves that diverged do not count."""
        known = [one.errors[np.isfinite(one.errors)] for one in self.curves if not self.diverged(one)]
        return float(max(one[0] for one in known) - min(one.min() for one in known)) if known else 0.0

    def place(self, curve: Curve) -> int | None:
        """The last place of a curve that the budget allows; None if there is none, or if it diverged."""
        return None if self.diverged(curve) else last_place(curve.errors, self._allowed(curve))

    def needed(self, curve: Curve) -> int | None:
        """The first place of a curve that is as good as its best one, both within the budget."""
        able = np.where(self._allowed(curve), curve.errors, np.inf)
        return None if self.diverged(curve) else place_needed(able, TOLERANCE * self.scale)

    def _allowed(self, curve: Curve) -> np.ndarray:
        return self.sweep.budget.allows(curve.cost, curve.rounds)

    @cached_property
    def best(self) -> Best | None:
        """The value with the least valid loss that the budget allows; None if all diverged or cost too much."""
        ranked = sorted(
            (one.errors[at], number) for number, one in enumerate(self.swept) if (at := _known(self, one)) >= 0
        )
        if not ranked:
            return None
        first, *others = (self.swept[number] for _, number in ranked)
        at = _known(self, first)
        rival = others[0] if others else None
        return Best(
            first.setting,
            int(first.rounds[at]),
            float(first.cost[at]),
            float(first.errors[at]),
            None if rival is None else rival.setting,
            None if rival is None else self.gap(rival, first),
        )

    def gap(self, curve: Curve, best: Curve) -> Interval:
        """By how much a curve's valid loss lies above another's, both at the last round that the budget allows."""
        mine, other = _known(self, curve), _known(self, best)
        return interval(curve.losses[:, mine] - best.losses[:, other])

    @cached_property
    def near(self) -> tuple[Setting, ...]:
        """Values that are within noise of the best one."""
        best = self.curve_of(self.best.setting) if self.best else None
        if best is None:
            return ()
        others = [one for one in self.swept if one is not best and _known(self, one) >= 0]
        return tuple(one.setting for one in others if is_noise(self.gap(one, best)))

    def curve_of(self, setting: Setting) -> Curve:
        """The curve of a setting."""
        return next(one for one in self.curves if one.setting == setting)

    @cached_property
    def front(self) -> tuple[tuple[Setting, int], ...]:
        """(setting, place) of the points of all values that none beats in both megabytes and valid loss, cheapest first."""
        every = [point for one in self.swept for point in self._points(one)]
        costs = np.array([one.cost[place] for one, place in every])
        on = pareto(costs, np.array([one.errors[place] for one, place in every]), GAIN * self.scale)
        return tuple(
            (every[number][0].setting, every[number][1])
            for number in np.argsort(costs, kind="stable")
            if on[number]
        )

    def _points(self, curve: Curve) -> list[tuple[Curve, int]]:
        return [] if self.diverged(curve) else [(curve, place) for place in range(len(curve.rounds))]

    @cached_property
    def worth(self) -> tuple[Setting, ...]:
        """Values that, with the rounds they need, no point of another value beats in both megabytes and valid loss."""
        return tuple(one.setting for one in self.swept if self._stands(one))

    def _stands(self, curve: Curve) -> bool:
        needed = self.needed(curve)
        if needed is None:
            return False
        others = [point for one in self.swept if one is not curve for point in self._points(one)]
        points = [(curve, needed), *((one, at) for one, at in others if self._allowed(one)[at])]
        costs, errors = (np.array([getattr(one, name)[at] for one, at in points]) for name in ("cost", "errors"))
        return bool(pareto(costs, errors, GAIN * self.scale)[0])


def tradeoff(
    method: str,
    federation: Federation,
    *,
    rounds: int,
    option: str | None = None,
    values: Sequence[float] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    model: str | Model | None = None,
    plan: Plan = Plan(),
    norm: str = "share",
    budget_mb: float | None = None,
    budget_rounds: int | None = None,
    out: str | Path | None = None,
    progress: Callable[[StudyProgress], None] | None = None,
    **settings: Any,
) -> Tradeoff:
    """Sweep ``option`` of a method, by default the one it declares as its degree of collaboration.

    Without ``values`` they lie around where the option stands. ``settings`` are those of a run; without
    ``eval_every`` there are at most 20 evaluations. With ``out`` finished runs are kept there and are not run
    again.
    """
    sweep = plan_sweep(
        method,
        federation,
        rounds=rounds,
        option=option,
        values=values,
        seeds=seeds,
        model=model,
        plan=plan,
        norm=norm,
        budget=Budget(budget_mb, budget_rounds),
        **settings,
    )
    return play_sweep(sweep, out=out, progress=progress)


def play_sweep(
    sweep: Sweep,
    *,
    out: str | Path | None = None,
    progress: Callable[[StudyProgress], None] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Tradeoff:
    """All runs of a sweep that are not in the folder yet, and what follows from them."""
    if out is None:
        with tempfile.TemporaryDirectory() as scratch:
            return play_sweep(sweep, out=scratch, progress=progress, config=config)
    folder = Path(out)
    result = compare(
        dict(sweep.built),
        sweep.federation,
        rounds=sweep.rounds,
        seeds=sweep.seeds,
        out=folder,
        progress=_noting(folder, progress),
        config=config,
        keep_models=False,  # a sweep has many runs, and is about none of them
        **sweep.running,
    )
    curves = tuple(read_curve(folder, setting, sweep, result) for setting in sweep.settings)
    return Tradeoff(sweep, curves, result.metric, result.higher_is_better, result.threat, result.told)


def _noting(out: Path, progress: Callable[[StudyProgress], None] | None) -> Callable[[StudyProgress], None]:
    """What a study calls to say how far it is: the bytes so far go to a file beside the run's others."""

    def tell(now: StudyProgress) -> None:
        folder = run_folder(out, now.method, now.seed)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / BYTES_FILE).open("a") as file:
            file.write(f"{now.run.round},{now.run.num_bytes}\n")
        if progress is not None:
            progress(now)

    return tell


def read_curve(out: Path, setting: Setting, sweep: Sweep, result: Comparison) -> Curve:
    """The curve of a setting from the folders of its runs; liars and clients without valid rows do not count."""
    mine = result.honest.filter(pl.col("method") == setting.label, pl.col("seen"), pl.col("valid_rows") > 0)
    uids = mine["uid"].unique().sort()
    folders = [run_folder(out, setting.label, seed) for seed in sweep.seeds]
    records = [pl.read_parquet(folder / "record.parquet") for folder in folders]
    cost = sweep.costs[setting.label]
    losses, scores = (
        np.stack(
            [_valid(record, name, uids, cost.evaluated, at) for record, at in zip(records, folders, strict=True)]
        )
        for name in ("loss", result.metric)
    )
    steps = np.stack([_gradients(folder, cost.effort) for folder in folders])
    return Curve(
        setting,
        cost.evaluated,
        np.stack([_bytes(folder, cost.evaluated) for folder in folders]) / sweep.federation.num_clients / 1e6,
        None if np.isnan(steps).all() else np.nancumsum(steps, axis=1)[:, cost.evaluated - 1],
        losses,
        scores,
        replace(result, metric="loss").scores(setting.label),
        result.scores(setting.label),
        result.diverged(setting.label),
        int(np.isnan(steps).any(axis=0).sum()),
    )


def _valid(record: pl.DataFrame, metric: str, uids: pl.Series, rounds: np.ndarray, folder: Path) -> np.ndarray:
    """(rounds, clients) of a metric of the personal models on valid rows."""
    wanted = (pl.col("kind") == "personal") & (pl.col("split") == "valid") & (pl.col("metric") == metric)
    found = record.filter(wanted, pl.col("uid").is_in(uids.to_list())).sort("round", "uid")
    if found["round"].unique().sort().to_list() != rounds.tolist():
        raise BadFile(f"{folder} holds a run that was evaluated at other rounds; use another folder")
    values = found["value"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return np.asarray(values).reshape(len(rounds), len(uids))


def _bytes(folder: Path, rounds: np.ndarray) -> np.ndarray:
    """(rounds,) bytes of all clients up to there."""
    file = folder / BYTES_FILE
    lines = file.read_text().splitlines() if file.exists() else []
    known = {int(round_): int(number) for round_, _, number in (line.partition(",") for line in lines)}
    if not set(rounds.tolist()) <= set(known):
        raise BadFile(f"{folder} holds a run without its bytes by round ({BYTES_FILE}); use another folder")
    return np.array([known[round_] for round_ in rounds.tolist()], float)


def _gradients(folder: Path, effort: np.ndarray) -> np.ndarray:
    """(rounds,) gradient evaluations per client in every round; NaN where a round does not report its steps."""
    info = pl.read_parquet(folder / "info.parquet").filter(pl.col("name") == "steps")
    found = np.full(len(effort), np.nan)
    found[info["round"].to_numpy() - 1] = info["value"].to_numpy()
    return found * effort


def interval(values: np.ndarray) -> Interval:
    """The mean over clients with its interval, of which the bounds are NaN for one client: it cannot be resampled."""
    found = bootstrap(values)
    several = np.isfinite(np.atleast_2d(values)).any(axis=0).sum() > 1
    return found if several else replace(found, low=float("nan"), high=float("nan"))


def is_noise(gap: Interval) -> bool:
    """Whether a gap may be none; a gap without an interval says nothing."""
    return bool(np.isfinite(gap.low)) and not gap.excludes_zero


def _mean(losses: np.ndarray) -> float:
    """Over clients after seeds; infinite where one is no finite number."""
    return float(over_seeds(losses).mean()) if np.isfinite(losses).all() else float("inf")


def _known(result: Tradeoff, curve: Curve) -> int:
    """Where a curve is compared with others; -1 where nowhere."""
    place = result.place(curve)
    return -1 if place is None else place
