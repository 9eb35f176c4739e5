"""Fair tuning: every method gets the same number of trials and of trained rounds, and is judged on valid rows alone.

A trial is a setting: the plan's step size, the degree of collaboration that the method and its personalizers declare, and
whatever options are named. The first trial is the setting as given; the others are drawn, evenly on a logarithmic scale.

    random     every trial is run for all rounds
    halving    every trial is run for a fraction of the rounds; the best quarter goes on to four times as many, and so on
               up to all rounds (successive halving; Jamieson, Talwalkar, AISTATS 2016, arXiv 1502.07943)

Runs are not continued but begun anew with more rounds: some methods close with a round of their own, and every method should
pay the same. Halving trusts the order of trials after few rounds, which favors large steps; random search does not.

Test rows are not there: trials run on the federation without them. Drawing a handful of numbers and sorting them needs no
library; one for hyper-parameters, such as Optuna, would add a store and samplers that learn from earlier trials, so that what
one method is tried with would depend on how its earlier trials went, and its draws would not be those of ``plures.keys``.

Trials that differ in numbers alone share their programs: the step size, and options of methods that do not need to know them
while they are built. Other options are constants, and each value is compiled anew, which takes most of the time with small
models.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import jax
import polars as pl

from plures.builders import build_model, default_model
from plures.data import Federation
from plures.engine import Progress, Settings
from plures.engine.check import check_fit
from plures.engine.identity import Identity, identify
from plures.engine.phases import least_rounds
from plures.errors import BadData, BadValue, UnknownChoice, UserError
from plures.keys import Purpose, derive, root
from plures.method import Method
from plures.study.grid import StudyProgress, honest_rows, teller
from plures.study.sweep import number_text
from plures.study.tuning.outcomes import KeptTrials, Outcome, outcome_of, without_test
from plures.study.tuning.search_space import Dimension, Range, check_range, draw_setting, numbers_in, space_of
from plures.study.tuning.trial import Rung, Trial, TrialSetup
from plures.types import Model, Plan

FACTOR = 4
SHORTEST = 5
ATTEMPTS = 20


@dataclass(frozen=True, eq=False)
class Tuned:
    """What tuning chose: ``chosen`` is {method as given: (its text with the chosen options, step size)}.

    ``built`` has the chosen methods under the labels as given, ready for ``compare``; ``table`` has a row per trial.
    """

    chosen: Mapping[str, tuple[str, float]]
    built: Mapping[str, Method]
    table: pl.DataFrame
    said: tuple[str, ...]
    rungs: tuple[Rung, ...]


def tune(
    methods: Sequence[str] | Mapping[str, Method],
    federation: Federation,
    *,
    rounds: int,
    trials: int = 8,
    strategy: str | None = None,
    search: Mapping[str, Range] | None = None,
    seed: int = 0,
    seeds: Sequence[int] = (0,),
    model: str | Model | None = None,
    plan: Plan = Plan(),
    norm: str = "share",
    out: str | Path | None = None,
    progress: Callable[[StudyProgress], None] | None = None,
    **settings: Any,
) -> Tuned:
    """The best setting of every method by the mean over clients of the personal valid score, with one budget for all.

    Methods are given by their texts, with the method that each of them names where it is built already.
    ``strategy`` is "halving" or "random"; None is halving where rounds and trials allow it. ``search`` has ranges by name,
    "lr" or an option such as "ditto.lam"; ``seed`` is that of the draws, ``seeds`` those of the runs. Clients without
    valid rows do not count. With ``out`` finished trials are kept in its folder tuning, and are not run again.
    """
    limits = Settings.of({"rounds": rounds, **settings})
    _check(list(methods), federation, limits, seeds, trials, search or {})
    given = model or default_model(federation)
    ready = dict(methods) if isinstance(methods, Mapping) else {}
    made = given if isinstance(given, Model) else build_model(given, federation)
    made = next((method.model for method in ready.values()), made)
    setup = TrialSetup(
        federation=without_test(federation),
        model=made,
        plan=plan,
        norm=norm,
        ranges=dict(search or {}),
        seed=seed,
        seeds=tuple(seeds),
        running={name: value for name, value in settings.items() if name != "eval_every"},
    )
    as_given = ready or {text: setup.build(text, plan.lr) for text in methods}
    rungs = rungs_of(as_given.values(), trials=trials, rounds=rounds, strategy=strategy)
    for method in as_given.values():
        check_fit(method, setup.federation, setup.settings(rungs[0].rounds))
    settled = {text: _trials(setup, text, as_given[text], trials, rungs[0].rounds) for text in methods}
    shelf = KeptTrials.of(out)
    done, total = count(), len(methods) * len(setup.seeds) * sum(rung.trials for rung in rungs)

    def next_teller(label: str, seed: int) -> Callable[[Progress], None]:
        return teller(progress, label, seed, next(done), total)

    played = {text: _play(setup, text, settled[text], rungs, shelf, next_teller) for text in methods}
    forced = _forced_said(as_given, rungs, rungs_of((), trials=trials, rounds=rounds, strategy=strategy))
    result = _result(setup, rungs, settled, played, forced)
    shelf.close(result.table, _about(result, setup.model.score))
    return result


def rungs_of(
    methods: Iterable[Method], *, trials: int, rounds: int, strategy: str | None = None
) -> tuple[Rung, ...]:
    """How many trials are run for how many rounds, the same for every method; one rung is random search.

    Every method must get as many rounds as it needs, and at least five, on the first rung.
    """
    if strategy not in (None, "halving", "random"):
        raise UnknownChoice("strategy", str(strategy), ["halving", "random"])
    least, depth = max([SHORTEST, *(least_rounds(one) for one in methods)]), 0
    while trials // FACTOR**depth >= FACTOR and rounds // FACTOR ** (depth + 1) >= least:
        depth += 1
    if strategy == "halving" and not depth:
        able = f"random, or {FACTOR} trials or more and {FACTOR * least} rounds or more"
        raise BadValue("strategy", f"halving with {trials} trials and {rounds} rounds", able)
    if strategy == "random":
        depth = 0
    sizes = [trials, *(max(2, trials // FACTOR**step) for step in range(1, depth + 1))]
    return tuple(Rung(size, rounds // FACTOR ** (depth - step)) for step, size in enumerate(sizes))


def check_valid_rows(federation: Federation, settings: Settings) -> None:
    """Refuse clients of whom none has valid rows."""
    if not federation.count[honest_rows(federation, settings), 1].any():
        raise BadData("no client has valid rows, by which settings are chosen; split the data with a valid share")


def _check(
    methods: Sequence[str],
    federation: Federation,
    limits: Settings,
    seeds: Sequence[int],
    trials: int,
    search: Mapping[str, Range],
) -> None:
    for name, given in (("methods", list(methods)), ("seeds", list(seeds))):
        if not given or len(set(given)) < len(given):
            raise BadValue(name, given, "a list with at least one entry and without repeats")
    check_valid_rows(federation, limits)
    if not isinstance(trials, int) or trials < 1:
        raise BadValue("trials", trials, "1 or more")
    for name, (low, high) in search.items():
        if not 0 < low <= high < math.inf:
            raise BadValue(name, (low, high), "two positive numbers, the lower one first")
        check_range(methods, name, search)


def _trials(setup: TrialSetup, text: str, as_given: Method, number: int, rounds: int) -> list[Trial]:
    """The settings to try; what a method refuses is drawn again."""
    space = space_of(text, setup.plan, setup.ranges)
    values = {one.name: one.degree.center for one in space if one.degree is not None}
    found = [Trial(0, text, setup.plan.lr, values, as_given, shape=text)]
    return found + [_trial(setup, text, space, one, rounds) for one in range(1, number)]


def _trial(setup: TrialSetup, text: str, space: Sequence[Dimension], number: int, rounds: int) -> Trial:
    key = derive(root(setup.seed), Purpose.TUNE, number, zlib.crc32(text.encode()))
    for attempt in range(ATTEMPTS):
        now, lr, values = draw_setting(text, space, jax.random.fold_in(key, attempt))
        try:
            method = setup.build(now, lr)
            check_fit(method, setup.federation, setup.settings(rounds))
            return Trial(number, now, lr, values, method, attempt, "", *numbers_in(text, space, values))
        except UserError as error:
            reason = str(error)
    return Trial(number, now, lr, values, None, ATTEMPTS, reason)


def _play(
    setup: TrialSetup,
    text: str,
    trials: list[Trial],
    rungs: Sequence[Rung],
    shelf: KeptTrials,
    next_teller: Callable[[str, int], Callable[[Progress], None]],
) -> dict[int, Outcome]:
    """The last outcome of every trial: on each rung the best of the rung before."""
    found: dict[int, Outcome] = {}
    going = trials
    for rung in rungs:
        going = going[: rung.trials]
        names = {trial.number: f"{text}, trial {trial.number}, {rung.rounds} rounds" for trial in going}
        tells = {one.number: [next_teller(f"tuning {text}", seed) for seed in setup.seeds] for one in going}
        # One length of a compiled loop for all rungs: evaluations come as often on the later ones.
        runs = [setup.settings(rung.rounds, seed=seed, every=rungs[0].rounds) for seed in setup.seeds]
        known = {one.number: _identity(setup, one, runs[0]) for one in going} if shelf.folder else {}
        kept = {number: shelf.kept(names[number], identity) for number, identity in known.items()}
        for trial in going:
            outcome, before = kept.get(trial.number), found.get(trial.number)
            if outcome is None:
                run = partial(setup.run, trial)
                outcome = outcome_of(trial.method, trial.reason, runs, tells[trial.number], run)
                if shelf.folder:
                    shelf.put(names[trial.number], trial.text, trial.lr, known[trial.number], outcome)
            found[trial.number] = replace(outcome, seconds=outcome.seconds + (before.seconds if before else 0.0))
        going = _ranked(setup, going, found)
    return found


def _ranked(setup: TrialSetup, trials: Iterable[Trial], found: Mapping[int, Outcome]) -> list[Trial]:
    """Trials that came to an end, the best first; of equal ones the one with the lower valid loss, then the earlier."""
    sign = -1.0 if setup.model.higher_is_better else 1.0
    sound = [one for one in trials if not found[one.number].failed]

    def rank(one: Trial) -> tuple[float, float, int]:
        outcome = found[one.number]
        return sign * float(outcome.score or 0.0), float(outcome.loss or 0.0), one.number

    return sorted(sound, key=rank)


def _result(
    setup: TrialSetup,
    rungs: tuple[Rung, ...],
    settled: Mapping[str, list[Trial]],
    played: Mapping[str, Mapping[int, Outcome]],
    forced: Sequence[str],
) -> Tuned:
    best = {text: _best(setup, trials, played[text]) for text, trials in settled.items()}
    rows, said = [], [_budget_said(setup, rungs), *forced]
    for text, trials in settled.items():
        rows += [_row(text, one, played[text][one.number], rungs[-1], chosen=one is best[text]) for one in trials]
        said += _method_said(setup, text, trials, played[text], best[text])
    built = {text: one.method or setup.build(text, setup.plan.lr) for text, one in best.items()}
    chosen = {text: (one.text, one.lr) for text, one in best.items()}
    return Tuned(chosen, built, pl.DataFrame(rows, infer_schema_length=None), tuple(said), rungs)


def _best(setup: TrialSetup, trials: list[Trial], found: Mapping[int, Outcome]) -> Trial:
    """The best of those that were run for longest; the setting as given if all failed."""
    sound = [one for one in trials if not found[one.number].failed]
    longest = max((found[one.number].rounds for one in sound), default=0)
    ranked = _ranked(setup, (one for one in sound if found[one.number].rounds == longest), found)
    return ranked[0] if ranked else trials[0]


def _row(text: str, trial: Trial, found: Outcome, last: Rung, *, chosen: bool) -> dict[str, Any]:
    """A trial in the table; its outcome in a word or a reason: kept to the end, dropped on the way, or what went wrong."""
    values = {name: float(one) if isinstance(one, int | float) else None for name, one in trial.values.items()}
    setting = {"method": text, "trial": trial.number, "setting": trial.text, "lr": trial.lr, **values}
    scores = {"rounds": found.rounds, "valid_score": found.score, "valid_loss": found.loss}
    outcome = found.failed or ("kept" if found.rounds == last.rounds else "dropped")
    ends = {"outcome": outcome, "chosen": chosen, "redrawn": trial.redrawn, "seconds": found.seconds}
    return {**setting, **scores, **ends}


def _budget_said(setup: TrialSetup, rungs: Sequence[Rung]) -> str:
    total = len(setup.seeds) * sum(rung.trials * rung.rounds for rung in rungs)
    first, *others = rungs
    then = "".join(f", then the best {one.trials} for {one.rounds}" for one in others)
    how = f"halving: {first.trials} for {first.rounds} rounds{then}" if others else "random search"
    seeds = "" if len(setup.seeds) == 1 else f" with {len(setup.seeds)} seeds"
    by = f"the mean over clients of the personal valid {setup.model.score}"
    return f"tuning: each method: {first.trials} trials, {total} rounds ({how}{seeds}); chosen by {by}"


def _forced_said(as_given: Mapping[str, Method], rungs: Sequence[Rung], free: Sequence[Rung]) -> list[str]:
    """Which method is why the rungs are not those that the others alone would get, if one is."""
    if tuple(rungs) == tuple(free):
        return []
    slowest = max(as_given, key=lambda text: least_rounds(as_given[text]))
    instead = ", ".join(f"{one.trials} for {one.rounds}" for one in free)
    needs = f"{slowest} needs {least_rounds(as_given[slowest])} rounds or more"
    return [f"tuning: {needs}, so that no trial of any method is shorter (else: {instead})"]


def _method_said(
    setup: TrialSetup, text: str, trials: Sequence[Trial], found: Mapping[int, Outcome], best: Trial
) -> list[str]:
    given, chosen = found[0], found[best.number]
    if chosen.failed:
        lines = [f"{text}: as given, since no trial came to a sound end (as given: {given.failed})"]
    elif best.number == 0:
        lines = [f"{text}: as given, lr={number_text(best.lr)} (valid {setup.model.score} {chosen.score:.3f})"]
    else:
        options = [f"{name}={number_text(value)}" for name, value in best.values.items()]
        before = given.failed or f"{given.score:.3f}"
        when = "" if given.failed or given.rounds == chosen.rounds else f" after {given.rounds} rounds"
        scores = f"valid {setup.model.score} {chosen.score:.3f}, as given {before}{when}"
        lines = [f"{text}: {', '.join([*options, f'lr={number_text(best.lr)}'])} ({scores})"]
    redrawn = sum(one.redrawn for one in trials)
    lines += [f"{text}: {redrawn} drawn settings were refused and drawn again"] if redrawn else []
    lost = [f"{one.number} ({found[one.number].failed})" for one in trials if found[one.number].failed]
    return lines + ([f"{text}: trials that failed: {', '.join(lost)}"] if lost else [])


def _identity(setup: TrialSetup, trial: Trial, settings: Settings) -> Identity:
    """What the runs of a trial are known by; without a method they are known by what was refused."""
    seeds = {"seed": str(list(setup.seeds))}
    if trial.method is None:
        return Identity({"method": f"{trial.text}, lr {trial.lr:g}, refused: {trial.reason}", **seeds})
    return Identity({**identify(trial.method, setup.federation, settings).parts, **seeds})


def _about(result: Tuned, metric: str) -> dict[str, Any]:
    """The choice, for a file."""
    return {
        "rungs": [rung._asdict() for rung in result.rungs],
        "metric": metric,
        "chosen": result.chosen,
        "said": list(result.said),
    }
