"""Studies from TOML files: validated before anything starts, all mistakes at once."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import optax
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from plures.data import DataSpec, Federation
from plures.data.loading import known_set
from plures.engine import Settings
from plures.engine.cohort import cohort
from plures.engine.executors import executor
from plures.engine.liars import bound, check_liars, spoiled
from plures.errors import BadFile, BadValue, UnknownChoice, Unsupported, UserError
from plures.keys import root
from plures.study import build_attack, build_channel, build_method, build_model, default_methods, default_model
from plures.types import Channel, Method, Model, Plan


class Part(BaseModel):
    """A section of a study: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataPart(Part):
    """Which federation, and which clients are held out of training.

    ``name`` is a data set or world with partitioners joined by ``|``, or the path of own data; ``options`` are
    those of the set, or of the table (target, client and so on).
    """

    name: str = "digits"
    hold_out: Any = None
    hold_out_seed: int = 0
    data_dir: str | None = None
    options: dict[str, Any] = {}

    @field_validator("hold_out")
    @classmethod
    def _check_hold_out(cls, given: Any) -> Any:
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if number and 0 <= given < float("inf") and (given < 1 or given == int(given)):
            return int(given) if given == int(given) else given
        if given is None or (isinstance(given, list | tuple) and all(isinstance(one, str) for one in given)):
            return given
        raise ValueError("a number of clients, a share below 1, or a list of names")

    @property
    def spec(self) -> DataSpec:
        """What is to be loaded."""
        options, entry = dict(self.options), known_set(self.name)
        if self.data_dir is not None and entry is not None and "data_dir" in entry.options:
            options["data_dir"] = self.data_dir
        return DataSpec(text=self.name, options=options, hold_out=self.hold_out, seed=self.hold_out_seed)


class PlanPart(Part):
    """Local optimization; ``batch = 0`` is full batch."""

    epochs: int = Field(default=2, ge=0)
    steps: int | None = Field(default=None, ge=0)
    batch: int = Field(default=10, ge=0)
    lr: float = Field(default=0.1, gt=0)
    optimizer: Literal["sgd", "adam", "momentum"] = "sgd"

    def build(self) -> Plan:
        """The plan this section describes."""
        makers = {"sgd": optax.sgd, "adam": optax.adam, "momentum": _momentum}
        return Plan(
            epochs=self.epochs,
            steps=self.steps,
            batch=self.batch or None,
            lr=self.lr,
            optimizer=makers[self.optimizer],
        )


class Study(Part):
    """A whole study; the defaults are those of ``plures compare``."""

    data: DataPart = DataPart()
    model: str | None = None
    plan: PlanPart = PlanPart()
    norm: Literal["share", "local", "affine", "recalibrate"] = "share"
    methods: tuple[str, ...] | None = Field(default=None, min_length=1)
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    rounds: int = Field(default=60, ge=1, strict=True)
    cohort: int | str = "all"
    channels: tuple[str, ...] = ()
    attack: tuple[str, ...] = ()
    executor: str = "auto"
    eval_every: int = Field(default=10, ge=1)
    checkpoint_every: int | None = Field(default=None, ge=1)

    @field_validator("attack", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    def all_channels(self, seen: Federation) -> tuple[Channel, ...]:
        """What happens to uploads on the way: lies first, they are told by clients."""
        lies = [build_attack(text, seen.known) for text in self.attack]
        return (*lies, *(build_channel(text, seen.known) for text in self.channels))

    def _built(self, text: str, model: Model, seen: Federation) -> Method:
        return build_method(text, model, plan=self.plan.build(), facts=seen.known, norm=self.norm)

    def _check_lies(self, seen: Federation, model: Model) -> None:
        """Refuse attacks by nobody or by all, on data they are not for, or by more than a method is made for."""
        settings = Settings(rounds=self.rounds, cohort=self.cohort, channels=self.all_channels(seen))
        spoiled(bound(settings.channels, seen.num_clients), seen)
        for text in self.methods or default_methods(seen):
            method = self._built(text, model, seen)
            check_liars(method, settings, seen.num_clients, label=text)

    def federations(self) -> tuple[Federation, Federation | None]:
        """(seen, unseen) clients."""
        return self.data.spec.load()

    def check(self) -> tuple[Federation, Federation | None]:
        """(seen, unseen) clients, after everything was built once; one error lists every mistake."""
        mistakes: list[UserError] = []

        def tried(build: Callable[[], Any], *, unless: tuple[type[UserError], ...] = ()) -> Any:
            try:
                return build()
            except UserError as error:
                if not isinstance(error, unless):
                    mistakes.append(error)
                return None

        for name, given in (("methods", self.methods or ()), ("seeds", self.seeds)):
            if len(set(given)) < len(given):
                mistakes.append(BadValue(name, list(given), "a list without repeats"))
        for seed in self.seeds:
            tried(partial(root, seed))
        found = tried(self.federations)
        tried(lambda: executor(self.executor))
        chosen = tried(lambda: cohort(self.cohort))
        if found is not None:
            seen = found[0]
            if chosen is not None:
                tried(lambda: chosen.size(seen.num_clients))
            model = tried(lambda: build_model(self.model or default_model(seen), seen))
            # With another model than the one meant, names and options can be checked, but not whether they go together.
            others = (Unsupported,) if model is None else ()
            model = model or build_model(default_model(seen), seen)
            for text in self.methods or default_methods(seen):
                tried(partial(self._built, text, model, seen), unless=others)
        facts = None if found is None else seen.known
        for build, texts in ((build_attack, self.attack), (build_channel, self.channels)):
            for text in texts:
                tried(partial(build, text, facts))
        if not mistakes:
            tried(lambda: self._check_lies(seen, model))
        if len(mistakes) == 1:
            raise mistakes[0]
        if mistakes:
            raise UserError("; ".join(str(error) for error in mistakes))
        loaded: tuple[Federation, Federation | None] = found
        return loaded


def read_study(path: Path) -> Study:
    """The study a TOML file describes."""
    if not path.exists():
        raise BadFile(f"there is no file {path}; give the path of a study in TOML")
    try:
        text = path.read_text()
        found = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise BadFile(f"{path} is not valid TOML: {error}") from error
    return make_study(found, where=str(path))


def make_study(found: dict[str, Any], *, where: str = "the study") -> Study:
    """A study from plain values; every mistake is named in one line."""
    try:
        return Study.model_validate(found)
    except ValidationError as error:
        mistakes = dict.fromkeys(_said(one) for one in error.errors())
        raise BadFile(f"{where}: " + "; ".join(mistakes)) from error


def _said(mistake: Any) -> str:
    place = ".".join(str(step) for step in mistake["loc"] if step not in ("int", "str"))
    if mistake["type"] == "extra_forbidden":
        known = _fields_at(mistake["loc"][:-1])
        return str(UnknownChoice("setting", str(mistake["loc"][-1]), known))
    wanted = mistake["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    wanted = wanted.replace("a valid tuple", "a list")
    if mistake["type"] == "too_short":
        wanted = "a list with at least one entry"
    return str(BadValue(place, mistake["input"], wanted[0].lower() + wanted[1:]))


def _fields_at(place: tuple[Any, ...]) -> list[str]:
    part: Any = Study
    for step in place:
        part = part.model_fields[step].annotation
    return list(part.model_fields)


def _momentum(lr: float) -> optax.GradientTransformation:
    return optax.sgd(lr, momentum=0.9)
