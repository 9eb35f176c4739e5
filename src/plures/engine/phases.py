"""The phases of a method, laid out on the rounds of a run."""

from __future__ import annotations

from typing import NamedTuple

from plures.method import Method, Phase


class Span(NamedTuple):
    """A phase in a run: its method is played for the rounds [start, stop).

    ``main``: it is what the run is about, or closes it; only such spans are scored, warm-ups are not.
    """

    method: Method
    start: int
    stop: int
    phase: Phase
    main: bool

    @property
    def everyone(self) -> bool:
        """Whether all clients take part in every round."""
        return self.phase.everyone or self.method.traits.full_cohort


def spans_of(method: Method, rounds: int) -> list[Span]:
    """All phases of a method in order; ``rounds`` counts them all."""
    left, start, main = rounds - least_rounds(method) + 1, 0, False
    spans = []
    for phase, played in zip(method.phases, methods_of(method), strict=True):
        main = main or phase.rounds is None
        stop = start + (left if phase.rounds is None else phase.rounds)
        spans.append(Span(played, start, stop, phase, main))
        start = stop
    return spans


def methods_of(method: Method) -> list[Method]:
    """The methods of all phases in order, the method itself among them."""
    return [phase.method or method for phase in method.phases]


def least_rounds(method: Method) -> int:
    """The fewest rounds of a run in which every phase of the method has its rounds, or at least one."""
    return 1 + sum(phase.rounds or 0 for phase in method.phases)
