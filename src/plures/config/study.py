"""A whole study, and what it comes to on its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, field_validator

from plures.config.check import ALL, inspect
from plures.config.parts import DataPart, Part, PlanPart, Seed, TunePart
from plures.config.source import Findings, Source
from plures.data import Federation
from plures.engine import Settings
from plures.engine.check import check_fit
from plures.engine.liars import check_liars
from plures.errors import Unsupported, UserError
from plures.registry import METHODS
from plures.study import build_attack, build_channel, build_method, build_model, default_methods, default_model
from plures.study.tuning import rungs_of
from plures.types import Channel, Method, Model


class Chosen(NamedTuple):
    """The methods of a study by name, and those of ``all`` that were left out, with the reason."""

    names: tuple[str, ...]
    left_out: Mapping[str, str]


def _checked_cohort(given: Any) -> Any:
    # One objection instead of pydantic's two, which would name places of its own.
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise ValueError("a valid integer or a valid string")
    return given


class Study(Part):
    """A whole study; the defaults are those of ``plures compare``. ``methods = "all"`` is all that fit."""

    data: DataPart = DataPart()
    model: str | None = None
    plan: PlanPart = PlanPart()
    norm: Literal["share", "local", "affine", "recalibrate"] = "share"
    methods: tuple[str, ...] | None = Field(default=None, min_length=1)
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    rounds: int = Field(default=60, ge=1, strict=True)
    cohort: Annotated[int | str, BeforeValidator(_checked_cohort)] = "all"
    channels: tuple[str, ...] = ()
    attack: tuple[str, ...] = ()
    executor: str = "auto"
    eval_every: int = Field(default=10, ge=1)
    checkpoint_every: int | None = Field(default=None, ge=1)
    keep_models: bool | None = None
    together: bool | None = None
    track: tuple[str, ...] = ()
    tune: TunePart | None = None

    @field_validator("attack", "track", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @field_validator("methods", mode="before")
    @classmethod
    def _every_one(cls, given: Any) -> Any:
        return (ALL,) if given == ALL else given

    def all_channels(self, seen: Federation) -> tuple[Channel, ...]:
        """What happens to uploads on the way: lies first, they are told by clients."""
        lies = [build_attack(text, seen.known) for text in self.attack]
        return (*lies, *(build_channel(text, seen.known) for text in self.channels))

    def built(self, text: str, model: Model, seen: Federation) -> Method:
        """The method a text names, as this study trains it."""
        return build_method(text, model, plan=self.plan.build(), facts=seen.known, norm=self.norm)

    def fitting(self, text: str, model: Model, seen: Federation) -> Method:
        """The same, refused unless it is for this model, these clients, rounds and liars."""
        method = self.built(text, model, seen)
        settings = Settings(rounds=self.rounds, cohort=self.cohort, channels=self.all_channels(seen))
        check_fit(method, seen, settings)
        check_liars(method, settings, seen.num_clients)
        return method

    def federations(self) -> tuple[Federation, Federation | None]:
        """(seen, unseen) clients."""
        return self.data.spec.load()

    def check(self, source: Source | None = None) -> tuple[Federation, Federation | None]:
        """(seen, unseen) clients, after everything was built once; one error lists every mistake.

        ``source`` is the file that the study was read from: mistakes are then shown with their lines.
        """
        findings = Findings()
        loaded = inspect(self, findings)
        if findings.mistakes or loaded is None:
            findings.refuse(source)
        return loaded

    def chosen(self, seen: Federation) -> Chosen:
        """The methods that the study comes to on these clients."""
        given = self.methods or default_methods(seen)
        if ALL not in given:
            return Chosen(tuple(given), {})
        model = build_model(self.model or default_model(seen), seen)
        names, left_out = dict.fromkeys(text for text in given if text != ALL), dict[str, str]()
        for name in METHODS:
            try:
                self.fitting(name, model, seen)
                names[name] = None
            except UserError as error:
                left_out[name] = str(error)
        if not names:
            raise Unsupported(f"no method fits: {'; '.join(f'{name}: {why}' for name, why in left_out.items())}")
        return Chosen(tuple(names), left_out)

    def resolved(self, seen: Federation) -> dict[str, Any]:
        """Plain values with every default filled in and the methods named; a study made of them comes to the same."""
        values = self.model_dump(mode="json")
        values["methods"] = list(self.chosen(seen).names)
        values["model"] = self.model or default_model(seen)
        if self.data.hold_out is None:
            values["data"]["hold_out"] = "auto"
        if self.tune is not None:
            rungs = self.rungs(values["methods"], seen)
            values["tune"]["strategy"] = "halving" if len(rungs) > 1 else "random"
            values["tune"]["seeds"] = list(self.tune.seeds or self.seeds[:1])
        return values

    def rungs(self, names: tuple[str, ...] | list[str], seen: Federation) -> Any:
        """How trials are cut down; every method gets the same."""
        assert self.tune is not None
        model = build_model(self.model or default_model(seen), seen)
        built = [self.built(text, model, seen) for text in names]
        return rungs_of(built, trials=self.tune.trials, rounds=self.rounds, strategy=self.tune.strategy)
