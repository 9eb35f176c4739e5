"""Cards of registered methods and personalizers: what they declare, and what is found by building one for a small federation.

Nothing here knows an entry by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from plures.advise.decisions import COMMON
from plures.data import Federation
from plures.engine.phases import Span
from plures.method import Method
from plures.registry import METHODS, PERSONALIZERS, Entry
from plures.report.entries import build_entry, small_digits
from plures.report.options import needed
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


def card_of(entry: Entry, federation: Federation) -> Card:
    """The card of an entry: its phases are those before training, training, and a closing round where there is one."""
    built = build_entry(entry, federation)
    phases = built.runner.phases
    training = next(phase for phase in phases if phase.main)
    legs = tuple(
        Leg(_name_phase(one, training), one.stop - one.start, one.everyone, built.sizes(one.method))
        for one in phases
    )
    told = frozenset(federation.facts)
    return Card(entry, built.base, built.runner.method, legs, built.model, federation.num_clients, told)


def _name_phase(phase: Span, training: Span) -> str:
    if phase.start == training.start:
        return TRAINING
    return CLOSING if phase.main else counted(phase.stop - phase.start, "round") + " before"
