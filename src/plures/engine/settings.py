"""How a run is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from plures.engine.cohort import Cohort
from plures.engine.executors import Executor
from plures.errors import BadValue, UnknownChoice
from plures.types import Channel


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is run; none of it but ``rounds``, ``seed``, ``cohort`` and ``channels`` changes results.

    ``rounds`` counts all communication rounds, preludes included. ``store`` is "memory" or a folder for private
    rows that do not fit. ``checkpoint`` is a folder; a run found there is resumed.
    """

    rounds: int
    seed: int = 0
    cohort: Cohort | int | str | None = None
    channels: tuple[Channel, ...] = ()
    executor: Executor | str = "auto"
    eval_every: int | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int | None = None
    store: str | Path = "memory"

    def __post_init__(self) -> None:
        for name in ("rounds", "eval_every", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadValue(name, value, "1 or more")
        if not isinstance(self.seed, int):
            raise BadValue("seed", self.seed, "a whole number")
        if self.checkpoint_every is not None and self.checkpoint is None:
            raise BadValue("checkpoint", None, "a folder when checkpoint_every is set")
        if not isinstance(self.channels, tuple):
            raise BadValue("channels", self.channels, "a tuple of channels")

    @staticmethod
    def of(found: Mapping[str, Any]) -> Settings:
        """Settings from plain values; a name that is no setting is refused."""
        known = [one.name for one in fields(Settings)]
        for name in found:
            if name not in known:
                raise UnknownChoice("setting of a run", name, known)
        return Settings(**found)
