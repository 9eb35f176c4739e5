"""What is known of registered methods and personalizers: what they declare, and what is found by building one.

Nothing here knows an entry by name. Whoever shows entries, in the terminal or on a page, reads it from here.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from plures.contract import subjects
from plures.data import Federation, load
from plures.engine import Runner, Settings, prepare
from plures.engine.state import Phase, least_rounds
from plures.registry import METHODS, PERSONALIZERS, Entry
from plures.study.fronts import counted
from plures.study.guidance import COMMON
from plures.study.spec import build_model
from plures.types import Method, Model, Plan

MESSAGES = {
    "join": "extra download at first contact",
    "down": "download before training",
    "up": "upload",
    "answer": "second download of a round, after the merge",
    "serve": "download to be served",
}

TRAINING, CLOSING = "training", "closing round"


class Leg(NamedTuple):
    """A phase of a run, in words: its rounds (at least), and the bytes of its messages in units of the model."""

    said: str
    rounds: int
    full_cohort: bool
    sizes: Mapping[str, float]


@dataclass(frozen=True)
class Card:
    """An entry, and what was found by building it for a federation and a model.

    ``base`` is the method a personalizer was put around for it. ``told`` are options that the federation knows.
    """

    entry: Entry
    base: str
    method: Method
    legs: tuple[Leg, ...]
    model: str
    num_clients: int
    told: frozenset[str]

    @property
    def training(self) -> Leg:
        """The phase that the run is about."""
        return next(leg for leg in self.legs if leg.said == TRAINING)

    @property
    def rounds_before(self) -> int:
        """How many rounds come before training."""
        return sum(leg.rounds for leg in self.legs[: self.legs.index(self.training)])

    @property
    def label(self) -> str:
        """What a user types: ``fedavg|finetune``, with whatever the federation does not tell."""
        missing = [f"{name}=1" for name in needed(self.entry) if name not in self.told]
        own = self.entry.name + (f":{','.join(missing)}" if missing else "")
        return f"{self.base}|{own}" if self.base else own

    @property
    def family(self) -> str:
        """The heading it stands under."""
        if self.base:
            return "Personalizers"
        if "baseline" in self.entry.tags:
            return "For reference"
        if self.entry.name in COMMON:
            return "One model for all"
        if self.method.assign is not None:
            return "Clusters"
        return "Parts and layers" if self.entry.tags & {"parts", "norm"} else "A model for each"


def all_cards() -> list[Card]:
    """The cards of all methods, then of all personalizers."""
    federation = small_digits()
    return [card_of(entry, federation) for registry in (METHODS, PERSONALIZERS) for entry in registry.values()]


def small_digits() -> Federation:
    """The clients for which entries are built."""
    return load("digits", num_clients=8)


def card_of(entry: Entry, federation: Federation) -> Card:
    """The card of an entry, from a method that is built for a federation and never run."""
    text, base = "mlp_norm" if "norm" in entry.tags else "mlp:hidden=64", base_of(entry)
    model = build_model(text, federation)
    inner = METHODS[base].factory(model, **_filled(METHODS[base], federation)) if base else model
    method: Method = entry.factory(inner, **_filled(entry, federation))
    runner = prepare(method, federation, settings=Settings(rounds=least_rounds(method)))
    legs = legs_of(runner, model)
    return Card(entry, base, method, legs, text, federation.num_clients, frozenset(federation.facts))


def base_of(entry: Entry) -> str:
    """The method that the contract suite puts a personalizer around; nothing for a method."""
    return next((one.name.partition("|")[0] for one in subjects() if one.entry is entry and "|" in one.name), "")


def needed(entry: Entry) -> list[str]:
    """The options without a default."""
    return [name for name, one in entry.options.items() if one.default is one.empty]


def _filled(entry: Entry, federation: Federation) -> dict[str, Any]:
    """What the federation tells an entry; what it does not tell, and must be told, is 1."""
    known = {"plan": Plan(), **federation.facts}
    given = {name: value for name, value in known.items() if name in entry.options}
    return {**dict.fromkeys(needed(entry), 1), **given}


def legs_of(runner: Runner, model: Model) -> tuple[Leg, ...]:
    """The phases of a run: those before training, training, and a closing round where there is one."""
    shapes = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in shapes)
    training = next(phase for phase in runner.phases if phase.main)

    def leg(phase: Phase) -> Leg:
        traffic, said = runner.traffic(phase.method), _said(phase, training)
        sizes = {name: getattr(traffic, name) / size for name in MESSAGES}
        return Leg(said, phase.stop - phase.start, phase.everyone or phase.method.full_cohort, sizes)

    return tuple(leg(phase) for phase in runner.phases)


def _said(phase: Phase, training: Phase) -> str:
    if phase.start == training.start:
        return TRAINING
    return CLOSING if phase.main else counted(phase.stop - phase.start, "round") + " before"


def option_rows(entry: Entry) -> list[tuple[str, str, str]]:
    """(name, type, default) of every option."""
    return [(name, _typed(one.annotation), _default(one)) for name, one in entry.options.items()]


def _typed(annotation: Any) -> str:
    """An annotation in words.

    >>> _typed("float | str | None")
    'float, str or None'
    """
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    *first, last = text.split(" | ")
    return f"{', '.join(first)} or {last}" if first else last


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return "(from the data)"
    if isinstance(value, Plan):
        return f"epochs {value.epochs}, batch {value.batch}, lr {value.lr}, {value.optimizer.__name__}"
    return str(value)


def line_kind(line: str) -> str:
    """Whether a line of a docstring is "nothing", "words" or a "formula": one that is indented or has wide gaps."""
    if not line:
        return "nothing"
    return "formula" if re.search(r"^\s|\S\s{2,}\S", line) else "words"


def formula_of(entry: Entry) -> str:
    """What an entry's file says of it."""
    return sys.modules[entry.factory.__module__].__doc__ or ""


def more_of(entry: Entry) -> str:
    """What the factory says beyond its first line."""
    return (inspect.getdoc(entry.factory) or "").partition("\n")[2].strip()
