"""The sections of a study."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import optax
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from plures.data import DataSpec
from plures.data.loading import registered_data
from plures.study.disk.layout import flat
from plures.study.tuning.step_size import AUTO, UNKNOWN
from plures.types import Plan


class StudySection(BaseModel):
    """A section of a study: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Seed = Annotated[int, Field(strict=True)]


class DataPart(StudySection):
    """Which federation, and which clients are held out of training.

    ``name`` is a data set or world with partitioners joined by ``|``, or the path of own data; ``options`` are
    those of the set, or of the table (target, client and so on). ``hold_out = "auto"`` leaves it to the data.
    """

    name: str = "digits"
    hold_out: Any = None
    hold_out_seed: int = Field(default=0, ge=0, lt=2**32, strict=True)
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
        if given == "auto":
            return None
        raise ValueError("a number of clients, a share below 1, or a list of names")

    @property
    def spec(self) -> DataSpec:
        """What is to be loaded."""
        options, entry = dict(self.options), registered_data(self.name)
        if self.data_dir is not None and entry is not None and "data_dir" in entry.options:
            options["data_dir"] = self.data_dir
        return DataSpec(text=self.name, options=options, hold_out=self.hold_out, seed=self.hold_out_seed)


def _momentum(lr: float) -> optax.GradientTransformation:
    return optax.sgd(lr, momentum=0.9)


OPTIMIZERS: Mapping[str, Any] = {"sgd": optax.sgd, "adam": optax.adam, "momentum": _momentum}


def _checked_lr(given: Any) -> Any:
    if given == AUTO:
        return given
    try:
        number = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        number = math.nan
    if number <= 0:
        raise ValueError("greater than 0")
    if not number < math.inf:
        raise ValueError('a positive number or "auto"')
    return number


class PlanPart(StudySection):
    """Local optimization; ``batch = 0`` is full batch, and ``lr = "auto"`` is found from the data before a comparison."""

    epochs: int = Field(default=2, ge=0)
    steps: int | None = Field(default=None, ge=0)
    batch: int = Field(default=10, ge=0)
    lr: Annotated[float | Literal["auto"], BeforeValidator(_checked_lr)] = AUTO
    optimizer: Literal["sgd", "adam", "momentum"] = "sgd"

    @property
    def finds_lr(self) -> bool:
        """Whether the step size is to be found from the data."""
        return self.lr == AUTO

    def build(self, lr: float | None = None) -> Plan:
        """The plan this section describes, with a step size that was found; where none was, with the usual one."""
        step = lr or (UNKNOWN if self.finds_lr else self.lr)
        own = {**dict(self), "batch": self.batch or None, "optimizer": OPTIMIZERS[self.optimizer]}
        return Plan(**{**own, "lr": step})


def _checked_span(given: Any) -> Any:
    pair = isinstance(given, list | tuple) and len(given) == 2
    numbers = pair and all(isinstance(one, int | float) and not isinstance(one, bool) for one in given)
    if not (numbers and 0 < given[0] <= given[1] < float("inf")):
        raise ValueError("two positive numbers, the lower one first")
    return given


Span = Annotated[tuple[float, float], BeforeValidator(_checked_span)]


class TunePart(StudySection):
    """How much every method is tuned on valid rows before the comparison, the same for all.

    ``strategy`` is halving where there are rounds and trials enough, unless it is said. ``seeds`` are those that trials
    run with, else the first of the study. ``search`` has ranges, for ``lr`` and for options such as ``ditto.lam``.
    """

    trials: int = Field(default=8, ge=1, strict=True)
    strategy: Literal["halving", "random"] | None = None
    seed: int = Field(default=0, ge=0, lt=2**32, strict=True)
    seeds: tuple[Seed, ...] | None = Field(default=None, min_length=1)
    search: dict[str, Span] = {}

    @field_validator("search", mode="before")
    @classmethod
    def _without_tables(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        found = list(flat(given))
        twice = [name for number, (name, _) in enumerate(found) if name in dict(found[:number])]
        if twice:
            why = f"{twice[0]} is there with and without quotes"
            raise ValueError(f"a section in which each range is given once ({why})")
        return dict(found)
