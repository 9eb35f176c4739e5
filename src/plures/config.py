"""Studies from TOML files: validated before anything starts, all mistakes at once."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import optax
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plures import data
from plures.data import Federation
from plures.engine.cohort import cohort
from plures.engine.executors import executor
from plures.errors import BadFile, BadValue, UnknownChoice, UserError
from plures.keys import root
from plures.registry import DATASETS, WORLDS
from plures.study import build_channel, build_method, build_model, default_methods, default_model
from plures.types import Plan


class Part(BaseModel):
    """A section of a study: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataPart(Part):
    """Which federation, and how many clients are held out of training."""

    name: str = "digits"
    hold_out: int = Field(default=8, ge=0)
    hold_out_seed: int = 0
    options: dict[str, Any] = {}


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
    methods: tuple[str, ...] | None = Field(default=None, min_length=1)
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    rounds: int = Field(default=60, ge=1, strict=True)
    cohort: int | str = "all"
    channels: tuple[str, ...] = ()
    executor: str = "auto"
    eval_every: int = Field(default=10, ge=1)
    checkpoint_every: int | None = Field(default=None, ge=1)

    def federations(self) -> tuple[Federation, Federation | None]:
        """(seen, unseen) clients."""
        if self.data.name not in DATASETS and self.data.name not in WORLDS:
            raise UnknownChoice("data set", self.data.name, [*DATASETS, *WORLDS])
        whole = data.load(self.data.name, **self.data.options)
        if self.data.hold_out == 0:
            return whole, None
        if self.data.hold_out >= whole.num_clients:
            raise BadValue("hold_out", self.data.hold_out, f"less than the {whole.num_clients} clients there are")
        return whole.hold_out(num_clients=self.data.hold_out, seed=self.data.hold_out_seed)

    def check(self) -> None:
        """Build everything once and raise one error that lists every mistake."""
        mistakes: list[UserError] = []

        def tried(build: Callable[[], Any]) -> Any:
            try:
                return build()
            except UserError as error:
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
            model = model or build_model(default_model(seen), seen)
            for text in self.methods or default_methods(seen):
                tried(partial(build_method, text, model, plan=self.plan.build(), facts=seen.facts))
        for text in self.channels:
            tried(partial(build_channel, text))
        if len(mistakes) == 1:
            raise mistakes[0]
        if mistakes:
            raise UserError("; ".join(str(error) for error in mistakes))


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
    wanted = mistake["msg"].removeprefix("Input should be ").replace("a valid tuple", "a list")
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
