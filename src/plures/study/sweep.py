"""A sweep of one option of a method: which option, through which values, all checked before anything runs.

"ditto"                the option that the method declares as its degree of collaboration
"fedavg|mapper"        the last part that declares one; "mapper.lam" names the part too
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Any, TypeAlias

import numpy as np

from plures.data import Federation
from plures.engine import Runner, Settings, prepare
from plures.errors import BadData, BadValue, UnknownChoice, Unsupported, UserError
from plures.registry import METHODS, PERSONALIZERS, Named
from plures.study.compare import check_given
from plures.study.fronts import Budget
from plures.study.spec import build_method, build_model, default_model
from plures.types import Method, Model, Plan

ENDS = ("local_only", "fedavg")
"""Beside every sweep: no collaboration, and one model for all."""

EVALUATIONS = 20
AROUND, AROUND_WHOLE = range(-4, 5), range(-3, 4)


@dataclass(frozen=True)
class Setting:
    """A method of the sweep. ``kind`` is "value", "auto" (the option chooses for itself) or "end" (a reference)."""

    label: str
    said: str
    kind: str
    value: float | None = None


@dataclass(frozen=True)
class Degree:
    """The option that is swept: ``named`` is the part of the text that has it, at ``place`` between the bars."""

    text: str
    place: int
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
        name, _, rest = parts[self.place].strip().partition(":")
        pairs = [pair.strip() for pair in rest.split(",") if pair.strip()]
        kept = [pair for pair in pairs if pair.partition("=")[0].strip() != self.option]
        kept += [] if value is None else [f"{self.option}={value}"]
        parts[self.place] = f"{name}:{','.join(kept)}" if kept else name
        return "|".join(part.strip() for part in parts)

    def setting(self, value: float) -> Setting:
        """The method at one value."""
        said = said_number(value)
        return Setting(self.label(said), said, "value", float(value))

    @property
    def auto(self) -> Setting | None:
        """The method where the option chooses for itself, if it may."""
        if not _is_number(self.center):
            given = self.named.options.get(self.option)
            return Setting(self.label(None if given is None else str(given)), "auto", "auto")
        return Setting(self.label("auto"), "auto", "auto") if str in self.kinds else None

    @property
    def grid(self) -> list[float]:
        """Values around where the option stands; over five decades where that is no positive number."""
        whole, center = float not in self.kinds, self.center
        if not _is_number(center) or not 0 < center < math.inf:
            return [1, 2, 4, 8, 16] if whole else [_rounded(10 ** (k / 2), 1) for k in range(-6, 5)]
        if whole:
            return sorted({max(1, round(center * 2.0**k)) for k in AROUND_WHOLE})
        return [_rounded(center * 4.0**k, 2) for k in AROUND]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """Everything about a sweep that is ready to run; ``left_out`` are values of the grid that the method refuses.

    ``asked``: the options of the command line that say on which data, with which model and by which plan.
    """

    degree: Degree
    settings: tuple[Setting, ...]
    built: Mapping[str, Method]
    federation: Federation
    rounds: int
    seeds: tuple[int, ...]
    budget: Budget
    running: Mapping[str, Any]
    costs: Mapping[str, Cost]
    left_out: tuple[str, ...] = ()
    asked: str = ""


@dataclass(frozen=True, eq=False)
class Cost:
    """What is known of a run before it starts.

    ``evaluated`` are the rounds after which it is scored; ``effort`` (rounds,) is by what the mean number of steps in the
    cohort is multiplied to be one per client, NaN where a round has unknown turns; ``least_mb`` is what a client sends and
    receives at least up to the first evaluation.
    """

    evaluated: np.ndarray
    effort: np.ndarray
    least_mb: float


Ready: TypeAlias = tuple[Method, Cost]


def find_degree(text: str, option: str | None = None) -> Degree:
    """The option to sweep: the one named, else the last that a part of the text declares."""
    first, *others = text.split("|")
    named = [Named.parse(first, METHODS), *(Named.parse(other, PERSONALIZERS) for other in others)]
    if option is None:
        declared = [place for place, one in enumerate(named) if one.entry.degree]
        if not declared:
            raise Unsupported(_undeclared(text, named))
        return Degree(text, declared[-1], named[declared[-1]], named[declared[-1]].entry.degree)
    owner, _, name = option.rpartition(".")
    if owner and owner not in [one.entry.name for one in named]:
        raise UnknownChoice(f"part of {text}", owner, [one.entry.name for one in named])
    mine = [(place, one) for place, one in enumerate(named) if owner in ("", one.entry.name)]
    able = [(place, one) for place, one in mine if name in one.entry.options]
    if not able:
        raise UnknownChoice(f"option of {text}", name, {known for _, one in mine for known in one.entry.options})
    numbers = [place for place, one in able if _takes_numbers(one, name)]
    if not numbers:
        raise BadValue("option", name, f"one that takes a number: {_numeric([one for _, one in mine])}")
    return Degree(text, numbers[-1], named[numbers[-1]], name)


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
    **running: Any,
) -> Sweep:
    """A sweep with every mistake found that can be found before the first run."""
    if running.get("eval_every") is None:
        running["eval_every"] = often(rounds)
    limits = Settings.of({"rounds": rounds, **running, "checkpoint": "checked"})
    degree = find_degree(text, option)
    check_given([text], seeds, federation, limits)
    if not federation.count[:, 1].any():
        raise BadData("no client has valid rows, by which values are chosen; split the data with a valid share")
    given = None if values is None else _checked_values(values)
    chosen = model if isinstance(model, Model) else build_model(model or default_model(federation), federation)
    in_bytes = budget.mb is not None
    ready_of = partial(
        _ready, federation=federation, model=chosen, plan=plan, norm=norm, limits=limits, in_bytes=in_bytes
    )
    made, left_out = _made(degree, given, ready_of)
    _check_budget(budget, [cost for _, cost in made.values()])
    made |= {Setting(name, name, "end"): ready_of(name) for name in ENDS}
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
    )


def often(rounds: int) -> int:
    """Rounds between evaluations, for at most 20 of them.

    >>> often(60), often(30), often(5)
    (3, 2, 1)
    """
    return max(1, -(-rounds // EVALUATIONS))


def _ready(
    label: str, *, federation: Federation, model: Model, plan: Plan, norm: str, limits: Settings, in_bytes: bool
) -> Ready:
    """A method checked against the federation and the settings, and what it will cost."""
    method = build_method(label, model, plan=plan, facts=federation.known, norm=norm)
    return method, _cost(prepare(method, federation, settings=limits), limits, in_bytes=in_bytes)


def _made(
    degree: Degree, given: list[float] | None, ready_of: Callable[[str], Ready]
) -> tuple[dict[Setting, Ready], list[str]]:
    """Every value and auto, and what was left out: values of the grid that are refused; a given one must do."""
    made, left_out = dict[Setting, Ready](), list[str]()
    refusal: UserError | None = None
    for setting in map(degree.setting, degree.grid if given is None else given):
        try:
            made[setting] = ready_of(setting.label)
        except UserError as error:
            if given is not None:
                raise
            refusal = error
            left_out.append(setting.said)
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


def _cost(runner: Runner, limits: Settings, *, in_bytes: bool) -> Cost:
    every, rounds = limits.eval_every or limits.rounds, limits.rounds
    main = [r for phase in runner.phases if phase.main for r in range(phase.start + 1, phase.stop + 1)]
    evaluated = np.array([r for r in main if r % every == 0 or r == rounds])
    effort = np.full(rounds, np.nan)
    for phase in runner.phases:
        share = runner.setup(phase).cohort.size(runner.num_seen) / runner.num_seen
        turns = phase.method.turns
        effort[phase.start : phase.stop] = share * turns if isinstance(turns, int) else np.nan
    return Cost(evaluated, effort, _least_mb(runner, int(evaluated[0])) if in_bytes else 0.0)


def _least_mb(runner: Runner, upto: int) -> float:
    """Megabytes per client up to a round: at least so many, exactly so many where everyone takes part."""
    total = 0.0
    for phase in runner.phases:
        played = min(upto, phase.stop) - phase.start
        if played > 0:
            found, turns = runner.traffic(phase.method), phase.method.turns
            share = runner.setup(phase).cohort.size(runner.num_seen) / runner.num_seen
            exchanged = (turns if isinstance(turns, int) else 1) * (found.down + found.up) + found.answer
            total += share * (played * exchanged + found.join)
    return total / 1e6


def _check_budget(budget: Budget, costs: Sequence[Cost]) -> None:
    """Refuse a budget under which nothing was evaluated yet."""
    first = min(int(cost.evaluated[0]) for cost in costs)
    if budget.rounds is not None and budget.rounds < first:
        raise BadValue("budget_rounds", budget.rounds, f"at least {first}, the first round that is evaluated")
    least = min(cost.least_mb for cost in costs)
    if budget.mb is not None and budget.mb < least:
        wanted = f"at least {_rounded_up(least)}, what the cheapest value needs up to its first evaluation"
        raise BadValue("budget_mb", budget.mb, f"{wanted} (round {first}; eval_every says how often)")


def _checked_values(values: Sequence[float]) -> list[float]:
    given = list(values)
    if not given:
        raise BadValue("values", given, "a list with at least one number")
    for value in given:
        if not _is_number(value) or not math.isfinite(value):
            raise BadValue("values", value, "finite numbers, such as 0.01,0.1,1")
    if len({said_number(value) for value in given}) < len(given):
        raise BadValue("values", given, "a list without repeats")
    return sorted(given)


def said_number(value: float) -> str:
    """A number as a text that is read back as the same number, to twelve digits.

    >>> said_number(2.0), said_number(0.1), said_number(1e-5)
    ('2', '0.1', '1e-05')
    """
    return f"{value:.12g}"


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _rounded_up(value: float) -> float:
    """To three digits, never down.

    >>> _rounded_up(0.00012341), _rounded_up(2.0)
    (0.000124, 2.0)
    """
    unit = 10.0 ** (math.floor(math.log10(value)) - 2) if value > 0 else 1.0
    return _rounded(math.ceil(value / unit) * unit, 3)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _kinds(named: Named, option: str) -> tuple[Any, ...]:
    hint = typing.get_type_hints(named.entry.factory)[option]
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
