"""A study on its data: every part of it built once, and everything that follows works with these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plures.builders import default_model
from plures.data import Federation
from plures.method import Channel, Forecast, Method
from plures.study.grid import forecasts
from plures.study.tuning.hyperparameters import rungs_of
from plures.study.tuning.trial import Rung
from plures.types import Model

if TYPE_CHECKING:
    from plures.app.study import Study


@dataclass(frozen=True, eq=False)
class PreparedStudy:
    """``methods`` are by their texts; ``left_out`` are those of ``all`` that do not fit, with the reason."""

    study: Study
    seen: Federation
    unseen: Federation | None
    model: Model
    methods: Mapping[str, Method]
    left_out: Mapping[str, str]
    channels: tuple[Channel, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The study as it was asked for, its methods named where they were ``all``."""
        values = self.study.model_dump(mode="json")
        return {**values, "methods": list(self.methods)} if self.study.takes_all else values

    @property
    def resolved(self) -> dict[str, Any]:
        """Plain values with every default filled in and the methods named; a study made of them comes to the same."""
        study, values = self.study, self.settings
        values["methods"] = list(self.methods)
        values["model"] = study.model or default_model(self.seen)
        if study.data.hold_out is None:
            values["data"]["hold_out"] = "auto"
        if study.tune is not None:
            values["tune"]["strategy"] = "halving" if len(self.rungs) > 1 else "random"
            values["tune"]["seeds"] = list(study.tune.seeds or study.seeds[:1])
        return values

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """How trials are cut down; every method gets the same."""
        tune = self.study.tune
        assert tune is not None
        built = self.methods.values()
        return rungs_of(built, trials=tune.trials, rounds=self.study.rounds, strategy=tune.strategy)

    @property
    def running(self) -> dict[str, Any]:
        """The settings of every run, for ``compare`` and ``tune``."""
        return {**self.study.running, "channels": self.channels}

    @property
    def training(self) -> dict[str, Any]:
        """How methods are built and trained, for commands that build methods of their own."""
        study = self.study
        own = {"model": study.model, "plan": study.plan.build(), "norm": study.norm, "seeds": study.seeds}
        return {**own, **self.running}

    def forecasts(self) -> dict[str, Forecast]:
        """What methods say before they run."""
        return forecasts(self.methods, self.seen, self.channels, self.study.cohort)
