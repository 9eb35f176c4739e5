"""Cards of registered methods and personalizers: what they declare, and what is found by building one for a small federation.

Nothing here knows an entry by name. Whoever shows entries, in the terminal or on a page, reads it from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from plures.advise.decisions import COMMON
from plures.builders import build_model
from plures.data import Federation, load
from plures.engine import Runner, Settings, prepare
from plures.engine.phases import Span, least_rounds
from plures.method import Method
from plures.registry import METHODS, PERSONALIZERS, Entry
from plures.report.options import needed
from plures.types import Model, Plan
from plures.wording import counted

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
        if self.method.views.assign is not None:
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
    inner = METHODS[base].factory(model, **_fill_options(METHODS[base], federation)) if base else model
    method: Method = entry.factory(inner, **_fill_options(entry, federation))
    runner = prepare(method, federation, settings=Settings(rounds=least_rounds(method)))
    legs = legs_of(runner, model)
    return Card(entry, base, method, legs, text, federation.num_clients, frozenset(federation.facts))


def base_of(entry: Entry) -> str:
    """The method that a personalizer is shown around; nothing for a method."""
    return (entry.base or "fedavg") if entry.name in PERSONALIZERS and PERSONALIZERS[entry.name] is entry else ""


def _fill_options(entry: Entry, federation: Federation) -> dict[str, Any]:
    """What the federation tells an entry; what it does not tell, and must be told, is 1."""
    known = {"plan": Plan(), **federation.facts}
    given = {name: value for name, value in known.items() if name in entry.options}
    return {**dict.fromkeys(needed(entry), 1), **given}


def legs_of(runner: Runner, model: Model) -> tuple[Leg, ...]:
    """The phases of a run: those before training, training, and a closing round where there is one."""
    shapes = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in shapes)
    training = next(phase for phase in runner.phases if phase.main)

    def leg(phase: Span) -> Leg:
        traffic, said = runner.traffic(phase.method), _name_phase(phase, training)
        sizes = {name: getattr(traffic, name) / size for name in MESSAGES}
        return Leg(said, phase.stop - phase.start, phase.everyone, sizes)

    return tuple(leg(phase) for phase in runner.phases)


def _name_phase(phase: Span, training: Span) -> str:
    if phase.start == training.start:
        return TRAINING
    return CLOSING if phase.main else counted(phase.stop - phase.start, "round") + " before"
