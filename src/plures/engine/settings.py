"""How a run is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from plures.engine.cohort import Cohort
from plures.engine.executors import Executor
from plures.errors import BadValue, UnknownChoice
from plures.method import Channel


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is run; none of it but ``rounds``, ``patience``, ``seed``, ``cohort`` and ``channels`` changes results.

    Args:
        rounds: Communication rounds in all: warm-ups before training and a closing round after it count too.
        patience: Evaluations without an improvement of the mean valid loss by 0.5 % after which the run ends, ``rounds``
            being the most it is played for; None plays all rounds. Warm-ups are played whole, and a closing round, which
            keeps its number, follows at once. An improvement is seen where there is an evaluation: see ``eval_every``.
        seed: Seed of all randomness of the run: starts, cohorts, batches, noise.
        cohort: Who takes part in a round: a number of clients drawn evenly, "weighted:10" for 10 drawn in proportion
            to their rows, "all" or None for everyone.
        channels: What happens to uploads on their way to the server, in this order: attacks, clipping, losses.
        executor: How clients are computed: "vectorized" all at once, "chunked:8" eight at a time, "one_by_one", or
            "auto", which picks by size and device.
        eval_every: Rounds from one evaluation to the next; None evaluates at the end alone.
        checkpoint: A folder in which the state is kept; a run found there is resumed. None keeps nothing.
        checkpoint_every: Rounds from one checkpoint to the next; None saves at the end alone.
        store: Where clients' private rows live: "memory", or a folder for those that do not fit.
    """

    rounds: int
    seed: int = 0
    cohort: Cohort | int | str | None = None
    channels: tuple[Channel, ...] = ()
    executor: Executor | str = "auto"
    eval_every: int | None = None
    patience: int | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int | None = None
    store: str | Path = "memory"

    def __post_init__(self) -> None:
        for name in ("rounds", "eval_every", "patience", "checkpoint_every"):
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
