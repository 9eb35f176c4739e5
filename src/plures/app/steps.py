"""The step sizes of a study that leaves them to the data: found once, kept in its folder, made smaller for who breaks down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plures.method import Method
from plures.study.disk import layout
from plures.study.smaller_steps import SMALLER, TIMES
from plures.study.tuning.outcomes import read_chosen, write_chosen
from plures.study.tuning.step_size import StepSizes

Chosen = dict[str, tuple[str, float]]
"""By label: a method's text, and its step size."""


@dataclass(frozen=True, eq=False)
class FoundSteps:
    """What every method is trained with; ``build(text, lr)`` makes it. ``times``: how often whose step was quartered."""

    chosen: Chosen
    times: dict[str, int]
    build: Callable[[str, float], Method]
    out: Path | None
    said: tuple[str, ...]

    @property
    def now(self) -> Chosen:
        """The step sizes as they are now."""
        return {name: (text, lr / SMALLER ** self.times.get(name, 0)) for name, (text, lr) in self.chosen.items()}

    def methods(self) -> dict[str, Method]:
        """The methods, ready to run."""
        return {label: self.build(text, lr) for label, (text, lr) in self.now.items()}

    def again(self, label: str) -> tuple[Method, float] | None:
        """The method with a quarter of its step; None where that was done often enough."""
        if self.times.get(label, 0) >= TIMES:
            return None
        self.times[label] = self.times.get(label, 0) + 1
        self.keep()
        text, lr = self.now[label]
        return self.build(text, lr), lr

    def keep(self) -> None:
        """Write what was chosen, so that going on, exporting and the page know it."""
        if self.out is None:
            return
        file = self.out / layout.TUNING / layout.CHOSEN
        before = layout.read_json(file) if file.exists() else {}
        chosen = {**read_chosen(self.out), **self.now}
        write_chosen(self.out, {"said": list(self.said), **before, "chosen": chosen, "quartered": self.times})


def steps_of(
    found: StepSizes, texts: Sequence[str], build: Callable[[str, float], Method], out: Path | None
) -> FoundSteps:
    """The step sizes that were found, for methods by their texts."""
    chosen = {text: (text, found.of(text)) for text in texts}
    return _kept(FoundSteps(chosen, quartered(out), build, out, found.said))


def steps_of_tuned(
    chosen: Mapping[str, tuple[str, float]], build: Callable[[str, float], Method], out: Path, times: dict[str, int]
) -> FoundSteps:
    """The step sizes that tuning chose; ``times`` are those of before."""
    return _kept(FoundSteps(dict(chosen), times, build, out, ()))


def quartered(out: Path | None) -> dict[str, int]:
    """How often whose step size was quartered in the study of a folder."""
    file = None if out is None else out / layout.TUNING / layout.CHOSEN
    if file is None or not file.exists():
        return {}
    read_chosen(file.parents[1])
    return layout.read_as(
        lambda found: {str(label): int(one) for label, one in found.get("quartered", {}).items()}, file
    )


def _kept(found: FoundSteps) -> FoundSteps:
    found.keep()
    return found
