"""A race for the degree of collaboration of every method that declares one as a number and was given none.

    values    the default times 16^k, k = -2 .. 2; then four times more and four times less than the best of them
    race      each for the rounds of the study, with the step size that was found and one seed; one compiled program for all
    choice    by the mean over clients of the valid loss; of those within 1 % of the best, the one nearest to the default

A default is a number in the unit of the loss, and no number fits all clients: where they differ it holds them back, where they
are alike it lets them drift apart. Options that count things (clusters, epochs) and those that choose for themselves ("auto")
are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from plures.errors import BadFile, UserError
from plures.study.sweep import SweptOption, SweptValue, number_text, parts_of
from plures.study.tuning.outcomes import Outcome

LEAST_ROUNDS = 20
"""In fewer rounds a common model is not yet worth to be held near."""

TOLERANCE = 0.01
COARSE = 2

Play = Callable[[SweptOption, SweptValue, int], Outcome]
"""What a value comes to; the number is how many were tried before."""


def raced_option(text: str) -> SweptOption | None:
    """The option to race of a method by its text: the last positive number that it leaves at its default; None without one."""
    parts = enumerate(parts_of(text))
    declared = [SweptOption(text, index, one, one.entry.degree) for index, one in parts if one.entry.degree]
    return next(filter(_is_left, reversed(declared)), None)


def _is_left(degree: SweptOption) -> bool:
    """Whether an option is a positive number, and was left at its default."""
    center = degree.center
    is_number = isinstance(center, int | float) and not isinstance(center, bool)
    return (
        degree.option not in degree.named.options and float in degree.kinds and is_number and 0 < center < math.inf
    )


def race_degree(text: str, degree: SweptOption, play: Play) -> tuple[str, str]:
    """The method's text with the value that came out best, and what is to be said of it; as given where all failed."""
    values, found = degree.grid, dict[float, Outcome]()

    def run(indices: Sequence[int]) -> None:
        for index in indices:
            if 0 <= index < len(values) and values[index] not in found:
                found[values[index]] = _outcome(degree, values[index], len(found), play)

    run(range(0, len(values), COARSE))
    coarse = choose(found, degree.center)
    if coarse is None:
        return text, f"{text}: {degree.option} as given: no value of a race came to a sound end"
    middle = values.index(coarse)
    run([middle - 1, middle + 1])
    best = choose(found, degree.center)
    assert best is not None
    ran = {value: one.rounds for value, one in found.items() if one.rounds}  # others were refused
    span = f"{number_text(min(ran))} to {number_text(max(ran))}"
    how = f"found by a race over {len(ran)} values from {span}, by valid loss, in {sum(ran.values())} rounds"
    return degree.value_at(best).label, f"{text}: {degree.option}={number_text(best)} {how}"


def _outcome(degree: SweptOption, value: float, number: int, play: Play) -> Outcome:
    """What a value comes to; one that the method refuses has failed."""
    try:
        return play(degree, degree.value_at(value), number)
    except BadFile:
        raise
    except UserError as error:
        return Outcome(0, failed=str(error))


def choose(found: Mapping[float, Outcome], default: float) -> float | None:
    """Of the values whose valid loss is within the tolerance of the best, the one nearest to the default; None if all failed.

    >>> losses = {0.1: 0.5, 1.0: 0.301, 10.0: 0.3}
    >>> choose({value: Outcome(60, 0.9, loss) for value, loss in losses.items()}, 0.1)
    1.0
    """
    sound = {value: one.loss for value, one in found.items() if not one.failed and one.loss is not None}
    if not sound:
        return None
    best = min(sound.values())
    near = [value for value, loss in sound.items() if loss <= best + TOLERANCE * abs(best)]
    return min(near, key=lambda value: abs(math.log(value / default)))
