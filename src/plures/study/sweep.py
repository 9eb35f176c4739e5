"""A sweep of one option of a method: which option, through which values, all checked before anything runs.

"ditto"                the option that the method declares as its degree of collaboration
"fedavg|mapper"        the last part that declares one; "mapper.lam" names the part too
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeAlias

import numpy as np

from plures.builders import build_method, build_model, default_model
from plures.data import Federation
from plures.engine import Runner, Settings, prepare
from plures.errors import BadData, BadValue, UnknownChoice, Unsupported, UserError
from plures.method import Method
from plures.registry import METHODS, PERSONALIZERS, Named
from plures.study.fronts import Budget
from plures.study.grid import check_given
from plures.types import Model, Plan

ENDS = ("local_only", "fedavg")
"""Beside every sweep: no collaboration, and one model for all."""

EVALUATIONS = 20
AROUND, AROUND_WHOLE = range(-4, 5), range(-3, 4)


@dataclass(frozen=True)
class SweptValue:
    """A method of the sweep. ``kind`` is "value", "auto" (the option chooses for itself) or "end" (a reference)."""

    label: str
    text: str
    kind: str
    value: float | None = None


@dataclass(frozen=True)
class SweptOption:
    """The option that is swept: ``named`` is the part of the text that has it, the ``index``-th between the bars."""

    text: str
    index: int
    named: Named
    option: str

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types the option takes."""
        return _kinds(self.named, self.option)

    @property
    def center(self) -> Any:
        """Where the option stands: as given in the text, else its default."""
        return self.named.options.get(self.option, self.named.entry.options[self.option].default)

    def label(self, value: str | None) -> str:
        """The method's text with the option set to a value; None leaves it out."""
        parts = self.text.split("|")
        name, _, rest = parts[self.index].strip().partition(":")
        pairs = [pair.strip() for pair in rest.split(",") if pair.strip()]
        kept = [pair for pair in pairs if pair.partition("=")[0].strip() != self.option]
        kept += [] if value is None else [f"{self.option}={value}"]
        parts[self.index] = f"{name}:{','.join(kept)}" if kept else name
        return "|".join(part.strip() for part in parts)

    def value_at(self, value: float) -> SweptValue:
        """The method at one value."""
        text = number_text(value)
        return SweptValue(self.label(text), text, "value", float(value))

    @property
    def auto(self) -> SweptValue | None:
        """The method where the option chooses for itself, if it may."""
        if not _is_number(self.center):
            given = self.named.options.get(self.option)
            return SweptValue(self.label(None if given is None else str(given)), "auto", "auto")
        return SweptValue(self.label("auto"), "auto", "auto") if str in self.kinds else None

    @property
    def grid(self) -> list[float]:
        """Values around where the option stands; over five decades where that is no positive number."""
        whole, center = float not in self.kinds, self.center
        if not _is_number(center) or not 0 < center < math.inf:
            return [1, 2, 4, 8, 16] if whole else [_round_to(10 ** (k / 2), 1) for k in range(-6, 5)]
        if whole:
            return sorted({max(1, round(center * 2.0**k)) for k in AROUND_WHOLE})
        return [_round_to(center * 4.0**k, 2) for k in AROUND]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """Everything about a sweep that is ready to run; ``left_out`` are values of the grid that the method refuses.

    ``asked``: the options of the command line that say on which data, with which model and by which plan.
    """

    degree: SweptOption
    settings: tuple[SweptValue, ...]
    built: Mapping[str, Method]
    federation: Federation
    rounds: int
    seeds: tuple[int, ...]
    budget: Budget
    running: Mapping[str, Any]
    costs: Mapping[str, RunCost]
    left_out: tuple[str, ...] = ()
    asked: str = ""


@dataclass(frozen=True, eq=False)
class RunCost:
    """What is known of a run before it starts.

    ``evaluated`` are the rounds after which it is scored; ``effort`` (rounds,) is by what the mean number of steps in the
    cohort is multiplied to be one per client, NaN where a round has unknown exchanges; ``least_mb`` is what a client sends and
    receives at least up to the first evaluation.
    """

    evaluated: np.ndarray
    effort: np.ndarray
    least_mb: float


Ready: TypeAlias = tuple[Method, RunCost]
"""A method checked against the federation and the settings, and what it will cost."""


def parts_of(text: str) -> list[Named]:
    """The method and the personalizers that a text names."""
    first, *others = text.split("|")
    return [Named.parse(first, METHODS), *(Named.parse(other, PERSONALIZERS) for other in others)]


def find_swept_option(text: str, option: str | None = None) -> SweptOption:
    """The option to sweep: the one named, else the last that a part of the text declares."""
    named = parts_of(text)
    owner, _, name = (option or "").rpartition(".")
    if option is None:
        able = [index for index, one in enumerate(named) if one.entry.degree]
        if not able:
            raise Unsupported(_undeclared(text, named))
        return SweptOption(text, able[-1], named[able[-1]], named[able[-1]].entry.degree)
    if owner and owner not in [one.entry.name for one in named]:
        raise UnknownChoice(f"part of {text}", owner, [one.entry.name for one in named])
    mine = [index for index, one in enumerate(named) if owner in ("", one.entry.name)]
    able = [index for index in mine if name in named[index].entry.options]
    if not able:
        known = {known for index in mine for known in named[index].entry.options}
        raise UnknownChoice(f"option of {text}", name, known)
    numbers = [index for index in able if _takes_numbers(named[index], name)]
    if not numbers:
        raise BadValue("option", name, f"one that takes a number: {_numeric([named[index] for index in mine])}")
    return SweptOption(text, numbers[-1], named[numbers[-1]], name)


def plan_sweep(
    text: str,
    federation: Federation,
    *,
    rounds: int,
    option: str | None = None,
    values: Sequence[float] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    model: str | Model | None = None,
    plan: Plan = Plan(),
    norm: str = "share",
    budget: Budget = Budget(),
    asked: str = "",
    **running: Any,
) -> Sweep:
    """A sweep with every mistake found that can be found before the first run."""
    if running.get("eval_every") is None:
        running["eval_every"] = often(rounds)
    limits = Settings.of({"rounds": rounds, **running, "checkpoint": "checked"})
    degree = find_swept_option(text, option)
    check_given([text], seeds, federation, limits)
    if not federation.count[:, 1].any():
        raise BadData("no client has valid rows, by which values are chosen; split the data with a valid share")
    given = None if values is None else _check_values(values)
    chosen = model if isinstance(model, Model) else build_model(model or default_model(federation), federation)

    def ready_of(label: str) -> Ready:
        method = build_method(label, chosen, plan=plan, facts=federation.known, norm=norm)
        return method, _cost(prepare(method, federation, settings=limits), limits, in_bytes=budget.mb is not None)

    made, left_out = _build_settings(degree, given, ready_of)
    _check_budget(budget, [cost for _, cost in made.values()])
    made |= {SweptValue(name, name, "end"): ready_of(name) for name in ENDS}
    return Sweep(
        degree=degree,
        settings=tuple(made),
        built={one.label: method for one, (method, _) in made.items()},
        federation=federation,
        rounds=rounds,
        seeds=tuple(seeds),
        budget=budget,
        running=running,
        costs={one.label: cost for one, (_, cost) in made.items()},
        left_out=tuple(left_out),
        asked=asked,
    )


def often(rounds: int) -> int:
    """Rounds between evaluations, for at most 20 of them.

    >>> often(60), often(30), often(5)
    (3, 2, 1)
    """
    return max(1, -(-rounds // EVALUATIONS))


def _build_settings(
    degree: SweptOption, given: list[float] | None, ready_of: Callable[[str], Ready]
) -> tuple[dict[SweptValue, Ready], list[str]]:
    """Every value and auto, and what was left out: values of the grid that are refused; a given one must do."""
    made, left_out = dict[SweptValue, Ready](), list[str]()
    refusal: UserError | None = None
    for setting in map(degree.value_at, degree.grid if given is None else given):
        try:
            made[setting] = ready_of(setting.label)
        except UserError as error:
            if given is not None:
                raise
            refusal = error
            left_out.append(setting.text)
    if refusal is not None and len(made) < 2:
        raise refusal
    auto = degree.auto
    if auto is not None:
        try:
            made[auto] = ready_of(auto.label)
        except UserError:
            if not _is_number(degree.center):
                raise
    return made, left_out


def _cost(runner: Runner, limits: Settings, *, in_bytes: bool) -> RunCost:
    every, rounds = limits.eval_every or limits.rounds, limits.rounds
    main = [r for phase in runner.phases if phase.main for r in range(phase.start + 1, phase.stop + 1)]
    evaluated = np.array([r for r in main if r % every == 0 or r == rounds])
    effort = np.full(rounds, np.nan)
    for phase in runner.phases:
        share = runner.setup(phase).cohort.size(runner.num_seen) / runner.num_seen
        exchanges = phase.method.traits.exchanges
        effort[phase.start : phase.stop] = share * exchanges if isinstance(exchanges, int) else np.nan
    return RunCost(evaluated, effort, _least_mb(runner, int(evaluated[0])) if in_bytes else 0.0)


def _least_mb(runner: Runner, upto: int) -> float:
    """Megabytes per client up to a round: at least so many, exactly so many where everyone takes part."""
    total = 0.0
    for phase in runner.phases:
        rounds = min(upto, phase.stop) - phase.start
        if rounds > 0:
            found, exchanges = runner.traffic(phase.method), phase.method.traits.exchanges
            share = runner.setup(phase).cohort.size(runner.num_seen) / runner.num_seen
            exchanged = (exchanges if isinstance(exchanges, int) else 1) * (found.down + found.up) + found.answer
            total += share * (rounds * exchanged + found.join)
    return total / 1e6


def _check_budget(budget: Budget, costs: Sequence[RunCost]) -> None:
    """Refuse a budget under which nothing was evaluated yet."""
    first = min(int(cost.evaluated[0]) for cost in costs)
    if budget.rounds is not None and budget.rounds < first:
        raise BadValue("budget_rounds", budget.rounds, f"at least {first}, the first round that is evaluated")
    least = min(cost.least_mb for cost in costs)
    if budget.mb is not None and budget.mb < least:
        wanted = f"at least {_round_up(least)}, what the cheapest value needs up to its first evaluation"
        raise BadValue("budget_mb", budget.mb, f"{wanted} (round {first}; eval_every says how often)")


def _check_values(values: Sequence[float]) -> list[float]:
    given = list(values)
    if not given:
        raise BadValue("values", given, "a list with at least one number")
    for value in given:
        if not _is_number(value) or not math.isfinite(value):
            raise BadValue("values", value, "finite numbers, such as 0.01,0.1,1")
    if len({number_text(value) for value in given}) < len(given):
        raise BadValue("values", given, "a list without repeats")
    return sorted(given)


def number_text(value: float) -> str:
    """A number as a text that is read back as the same number, to twelve digits.

    >>> number_text(2.0), number_text(0.1), number_text(1e-5)
    ('2', '0.1', '1e-05')
    """
    return f"{value:.12g}"


def _round_to(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _round_up(value: float) -> float:
    """To three digits, never down.

    >>> _round_up(0.00012341), _round_up(2.0)
    (0.000124, 2.0)
    """
    unit = 10.0 ** (math.floor(math.log10(value)) - 2) if value > 0 else 1.0
    return _round_to(math.ceil(value / unit) * unit, 3)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _kinds(named: Named, option: str) -> tuple[Any, ...]:
    hint = named.entry.hints[option]
    return typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)


def _takes_numbers(named: Named, option: str) -> bool:
    return bool({int, float} & {kind for kind in _kinds(named, option) if isinstance(kind, type)})


def _numeric(named: Sequence[Named]) -> str:
    """The options of some parts that take numbers."""
    return ", ".join(sorted({name for one in named for name in one.entry.options if _takes_numbers(one, name)}))


def _undeclared(text: str, named: Sequence[Named]) -> str:
    entries = [*METHODS.values(), *PERSONALIZERS.values()]
    known = ", ".join(f"{entry.name} ({entry.degree})" for entry in entries if entry.degree)
    own = _numeric(named) or "it has none"
    said = f"name a number of its own with --option ({own}), or take one that does: {known}"
    return f"{text} declares no degree of collaboration; {said}"
