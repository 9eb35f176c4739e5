"""One search for the step size of a study, shared by all its methods so that nobody is favored.

    ceiling    1 / L, where L is the curvature of the training loss at its start (``curvature``)
    grid       five step sizes around it, each 10^(1/3) = 2.15 times the one before
    race       FedAvg with each of them, for a quarter of the rounds and at least five; one compiled program for all
    wider      by one step while the best is at an edge, by a factor of ten while all fail, four times at most
    choice     by the mean over clients of the valid loss; of those within 1 % of the best, the smallest step

Training alone has a race of its own, so that this end of the comparison is honest; every other method takes FedAvg's step.
What was found is kept in the study's folder, and made smaller for who breaks down. Attacks and other channels are left out: what they do to uploads says nothing of how far a client may step. Without valid
rows it is the ceiling alone. Test rows are not there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from plures.builders import build_model, default_model
from plures.data import Federation
from plures.engine import Settings
from plures.engine.identity import Identity, identify
from plures.method import Method
from plures.study.comparison import ALONE, GLOBAL
from plures.study.curvature import curvature_step
from plures.study.disk import layout
from plures.study.disk.runs import IDENTITY, differences, refuse_other
from plures.study.grid import StudyProgress, honest_rows, teller
from plures.study.smaller_steps import SMALLER, TIMES
from plures.study.sweep import SweptOption, SweptValue, number_text
from plures.study.tuning.degree_race import LEAST_ROUNDS, race_degree, raced_option
from plures.study.tuning.outcomes import KeptTrials, Outcome, outcome_of, read_chosen, without_test, write_chosen
from plures.study.tuning.trial import Trial, TrialSetup
from plures.types import Model, Plan

AUTO: Final = "auto"
"""The step size of a plan that is to be found."""

PER_DECADE = 3
AROUND = 2
WIDER = 4
SHARE, SHORTEST = 4, 5
TOLERANCE = 0.01
UNKNOWN = 0.1
"""The step size where nothing can be known of it."""


@dataclass(frozen=True)
class StepSizes:
    """What the search found: ``common`` is every method's step size, but for training alone."""

    common: float
    alone: float
    said: tuple[str, ...]
    rounds: int
    seconds: float
    texts: Mapping[str, str] = field(default_factory=dict)
    """Methods with the degree of collaboration that a race found, by their texts as given."""

    def of(self, text: str) -> float:
        """The step size of a method, by its text."""
        return self.alone if _is_alone(text) else self.common


def find_step_sizes(
    methods: Sequence[str],
    federation: Federation,
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    model: str | Model | None = None,
    plan: Plan = Plan(),
    norm: str = "share",
    out: str | Path | None = None,
    progress: Callable[[StudyProgress], None] | None = None,
    degrees: bool = True,
    **settings: Any,
) -> StepSizes:
    """The step sizes of a study of these methods; ``settings`` are those of its runs, the step size of ``plan`` is not read.

    With ``degrees`` also the degrees of collaboration that are left at their defaults (``degree_race``). With ``out`` all is kept
    in its folder, and is not searched again.
    """
    given = model or default_model(federation)
    setup = TrialSetup(
        federation=without_test(federation),
        model=given if isinstance(given, Model) else build_model(given, federation),
        plan=replace(plan, lr=UNKNOWN),
        norm=norm,
        ranges={},
        seed=seeds[0],
        seeds=(seeds[0],),
        running={name: one for name, one in settings.items() if name in ("cohort", "executor")},
    )
    search = _Search(setup, max(SHORTEST, rounds // SHARE), KeptTrials.of(out), progress)
    ends = [GLOBAL] if not any(map(_is_alone, methods)) else [GLOBAL, ALONE]
    raced = {text: one for text in methods if degrees and rounds >= LEAST_ROUNDS and (one := raced_option(text))}
    identity = search.identity(ends, rounds, list(raced))
    before = _read(out, identity)
    if before is not None:
        return before
    found = search.with_degrees(search.sizes(ends), raced, rounds)
    if out is not None:
        about = {**asdict(found), IDENTITY: dict(identity.parts)}
        layout.write_json(Path(out) / layout.TUNING / layout.STEPS, about)
    return found


@dataclass(frozen=True, eq=False)
class _Search:
    """The races of a study."""

    setup: TrialSetup
    rounds: int
    shelf: KeptTrials
    progress: Callable[[StudyProgress], None] | None

    def sizes(self, ends: Sequence[str]) -> StepSizes:
        """The step size of every end, and what is to be said of it."""
        began = time.perf_counter()
        ceiling = curvature_step(self.setup.model, self.setup.plan, self.setup.federation, seed=self.setup.seed)
        center = UNKNOWN if ceiling is None else ceiling
        honest = honest_rows(self.setup.federation, self.setup.settings(self.rounds))
        if not self.setup.federation.count[honest, 1].any():
            lr = float(f"{center:.2g}")
            how = "the curvature of the training loss" if ceiling else "no data: there is no curvature"
            line = f"step size {number_text(lr)} from {how} alone: there are no valid rows to choose by"
            return StepSizes(lr, lr, (line,), 0, time.perf_counter() - began)
        raced = {end: self.race(end, center) for end in ends}
        chosen = {end: choose(found) for end, found in raced.items()}
        spent = {end: self.rounds * len(found) for end, found in raced.items()}
        said = [_said(end, chosen[end], raced[end], center, spent[end]) for end in ends]
        total, seconds = sum(spent.values()), time.perf_counter() - began
        said[-1] += f" ({seconds:.0f} s in all)"
        lrs = {end: rung_center(center) if lr is None else lr for end, lr in chosen.items()}
        return StepSizes(lrs[GLOBAL], lrs.get(ALONE, lrs[GLOBAL]), tuple(said), total, seconds)

    def with_degrees(self, sizes: StepSizes, raced: Mapping[str, SweptOption], rounds: int) -> StepSizes:
        """The same with the degrees that races find; none where there are no valid rows to find them by."""
        if not sizes.rounds:
            return sizes
        began, texts, said = time.perf_counter(), dict[str, str](), list[str]()
        for text, degree in raced.items():

            def play(degree: SweptOption, value: SweptValue, number: int, text: str = text) -> Outcome:
                lr, numbers = sizes.of(text), {(degree.index, degree.option): value.value}
                method = self.setup.build(value.label, lr)
                trial = Trial(number, value.label, lr, {}, method, shape=text, numbers=numbers)
                return self.played(trial, f"{degree.option} of {text}", rounds)

            texts[text], line = race_degree(text, degree, play)
            said.append(line)
        if said:
            said[-1] += f" ({time.perf_counter() - began:.0f} s in all)"
        return replace(sizes, texts=texts, said=(*sizes.said, *said))

    def race(self, end: str, center: float) -> dict[float, Outcome]:
        """What every step size came to, in the order they were tried."""
        middle = nearest_rung(center)
        rungs = list(range(middle - AROUND, middle + AROUND + 1))
        found = {step(rung): self.trial(end, step(rung), number) for number, rung in enumerate(rungs)}
        for _ in range(WIDER):
            rung = next_rung(found, rungs)
            if rung is None:
                break
            rungs.append(rung)
            found[step(rung)] = self.trial(end, step(rung), len(rungs) - 1)
        return found

    def trial(self, end: str, lr: float, number: int) -> Outcome:
        """A short run with one step size."""
        return self.played(
            Trial(number, end, lr, {}, self.setup.build(end, lr), shape=end), f"step size of {end}", self.rounds
        )

    def played(self, trial: Trial, what: str, rounds: int) -> Outcome:
        """What a trial comes to; one that was kept is not run again."""
        assert trial.method is not None
        settings = self.setup.settings(rounds, seed=self.setup.seed)
        name = f"{what}: {trial.text}, {trial.lr:g}, {rounds} rounds"
        identity = identify(trial.method, self.setup.federation, settings) if self.shelf.folder else Identity({})
        outcome = self.shelf.kept(name, identity) if self.shelf.folder else None
        if outcome is None:
            tell = teller(self.progress, what, self.setup.seed, trial.number, 2 * AROUND + 1 + WIDER)
            outcome = outcome_of(trial.method, "", [settings], [tell], partial(self.setup.run, trial))
            if self.shelf.folder:
                self.shelf.put(name, trial.text, trial.lr, identity, outcome)
        return outcome

    def identity(self, ends: Sequence[str], rounds: int, raced: Sequence[str]) -> Identity:
        """What the search is known by."""
        settings: Settings = self.setup.settings(self.rounds, seed=self.setup.seed)
        parts = identify(self.setup.build(GLOBAL, UNKNOWN), self.setup.federation, settings).parts
        return Identity(
            {**parts, "ends": ", ".join(ends), "study": f"{rounds} rounds", "degrees": ", ".join(raced)}
        )


def step(rung: int) -> float:
    """The step size of a rung: three to a decade, of two digits.

    >>> [step(rung) for rung in range(-3, 1)]
    [0.1, 0.22, 0.46, 1.0]
    """
    return float(f"{10 ** (rung / PER_DECADE):.2g}")


def nearest_rung(lr: float) -> int:
    """The rung nearest to a step size; what data change a little changes no rung, mostly."""
    return round(PER_DECADE * math.log10(lr))


def rung_center(center: float) -> float:
    """The smallest step of the grid around a center: where nothing came to a sound end, caution."""
    return step(nearest_rung(center) - AROUND)


def next_rung(found: Mapping[float, Outcome], rungs: Sequence[int]) -> int | None:
    """The rung to try next: beyond the edge that the best one is at, far below where all failed; None where it is inside."""
    sound = {rung: one.loss for rung in rungs if not (one := found[step(rung)]).failed and one.loss is not None}
    if not sound:
        return min(rungs) - PER_DECADE
    best = min(sound, key=lambda rung: (sound[rung], rung))
    if best == min(rungs):
        return best - 1
    return best + 1 if best == max(rungs) else None


def choose(found: Mapping[float, Outcome]) -> float | None:
    """The smallest step whose valid loss is within the tolerance of the best; None where none came to a sound end."""
    sound = {lr: one.loss for lr, one in found.items() if not one.failed and one.loss is not None}
    if not sound:
        return None
    best = min(sound.values())
    return min(lr for lr, loss in sound.items() if loss <= best + TOLERANCE * abs(best))


def _said(end: str, lr: float | None, found: Mapping[float, Outcome], center: float, rounds: int) -> str:
    span = f"{number_text(min(found))} to {number_text(max(found))}"
    if lr is None:
        lowest = number_text(rung_center(center))
        return f"step size {lowest} of {end}: no step from {span} came to a sound end in {rounds} rounds"
    how = f"found by a race of {end} over {len(found)} steps from {span}, by valid loss, in {rounds} rounds"
    return f"step size {number_text(lr)} {how}"


def _is_alone(text: str) -> bool:
    return text.partition("|")[0].partition(":")[0].strip() == ALONE


def _read(out: str | Path | None, identity: Identity) -> StepSizes | None:
    """What was found before in a folder, for the same search; what was found from other data is refused."""
    file = None if out is None else Path(out) / layout.TUNING / layout.STEPS
    if file is None or not file.exists():
        return None

    def parse(about: Any) -> tuple[tuple[str | None, str | None], StepSizes]:
        before = differences(identity, about.pop(IDENTITY))
        return before, StepSizes(**{**about, "said": tuple(about["said"])})

    (settings, data), found = layout.read_as(parse, file, advice="; remove it to search again")
    if settings is not None:
        return None
    refuse_other(None, data, "", f"the step sizes in {file} were found")
    return found


Chosen = dict[str, tuple[str, float]]
"""By label: a method's text, and its step size."""


@dataclass(frozen=True, eq=False)
class FoundSteps:
    """What every method is trained with; ``build(text, lr)`` makes it. ``times``: how often whose step was quartered."""

    chosen: Chosen
    times: dict[str, int]
    build: Callable[[str, float], Method]
    out: Path | None
    said: tuple[str, ...]

    @property
    def now(self) -> Chosen:
        """The step sizes as they are now."""
        return {name: (text, lr / SMALLER ** self.times.get(name, 0)) for name, (text, lr) in self.chosen.items()}

    def methods(self) -> dict[str, Method]:
        """The methods, ready to run."""
        return {label: self.build(text, lr) for label, (text, lr) in self.now.items()}

    def again(self, label: str) -> tuple[Method, float] | None:
        """The method with a quarter of its step; None where that was done often enough."""
        if self.times.get(label, 0) >= TIMES:
            return None
        self.times[label] = self.times.get(label, 0) + 1
        self.keep()
        text, lr = self.now[label]
        return self.build(text, lr), lr

    def keep(self) -> None:
        """Write what was chosen, so that going on, exporting and the page know it."""
        if self.out is None:
            return
        file = self.out / layout.TUNING / layout.CHOSEN
        before = layout.read_json(file) if file.exists() else {}
        chosen = {**read_chosen(self.out), **self.now}
        said = {"said": list(self.said)} if self.said else {}
        write_chosen(self.out, {"said": [], **before, **said, "chosen": chosen, "quartered": self.times})


def steps_of(
    found: StepSizes, texts: Sequence[str], build: Callable[[str, float], Method], out: Path | None
) -> FoundSteps:
    """The step sizes that were found, for methods by their texts; they are kept when ``keep`` is called."""
    chosen = {text: (found.texts.get(text, text), found.of(text)) for text in texts}
    return FoundSteps(chosen, quartered(out), build, out, found.said)


def steps_of_tuned(
    chosen: Mapping[str, tuple[str, float]], build: Callable[[str, float], Method], out: Path, times: dict[str, int]
) -> FoundSteps:
    """The step sizes that tuning chose; ``times`` are those of before."""
    return _kept(FoundSteps(dict(chosen), times, build, out, ()))


def quartered(out: Path | None) -> dict[str, int]:
    """How often whose step size was quartered in the study of a folder."""
    file = None if out is None else out / layout.TUNING / layout.CHOSEN
    if file is None or not file.exists():
        return {}
    read_chosen(file.parents[1])
    return layout.read_as(
        lambda found: {str(label): int(one) for label, one in found.get("quartered", {}).items()}, file
    )


def _kept(found: FoundSteps) -> FoundSteps:
    found.keep()
    return found
