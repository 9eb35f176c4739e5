"""What tuning searches: the step size, the degrees that methods declare, options that are named; and draws from it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax

from plures.errors import BadValue, UnknownChoice, UserError
from plures.study.sweep import SweptOption, find_swept_option, number_text, parts_of
from plures.types import Key, Plan

LR_AROUND = 10.0

Range = tuple[float, float]


class Dimension(NamedTuple):
    """What is drawn: the step size, or an option."""

    name: str
    low: float
    high: float
    degree: SweptOption | None = None

    def value(self, key: Key) -> float:
        """A number in the range, evenly on a logarithmic scale, to three digits."""
        share = float(jax.random.uniform(jax.random.fold_in(key, zlib.crc32(self.name.encode()))))
        drawn = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        if self.degree is not None and float not in self.degree.kinds:
            return min(max(round(drawn), math.ceil(self.low)), math.floor(self.high))
        return min(max(float(f"{drawn:.3g}"), self.low), self.high)


def space_of(text: str, plan: Plan, ranges: Mapping[str, Range]) -> list[Dimension]:
    """What is drawn for a method: the step size, declared degrees, and options that are named."""
    declared = [
        SweptOption(text, place, one, one.entry.degree)
        for place, one in enumerate(parts_of(text))
        if one.entry.degree
    ]
    spans = {(one.index, one.option): (one, (one.grid[0], one.grid[-1])) for one in declared}
    for name, span in ranges.items():
        degree = None if name == "lr" else _found(text, name)
        if degree is not None:
            spans[degree.index, degree.option] = (degree, span)
    lr = ranges.get("lr", (plan.lr / LR_AROUND, plan.lr * LR_AROUND))
    options = [Dimension(f"{one.named.entry.name}.{one.option}", *span, degree=one) for one, span in spans.values()]
    return [Dimension("lr", *lr), *options]


def draw_setting(text: str, space: Sequence[Dimension], key: Key) -> tuple[str, float, dict[str, float]]:
    """A setting: the method's text with its options, the step size, and the values of the options."""
    values = {one.name: one.value(key) for one in space}
    for one in space:
        if one.degree is not None:
            text = replace(one.degree, text=text).label(number_text(values[one.name]))
    lr = values.pop("lr")
    return text, lr, values


def numbers_in(
    text: str, space: Sequence[Dimension], values: Mapping[str, float]
) -> tuple[str, dict[tuple[int, str], float]]:
    """What of a setting makes another program, as a text, and the numbers that need not, by their places in it.

    Whole numbers count things: with another number of clusters shapes are others.
    """
    options = [(one.degree, values[one.name]) for one in space if one.degree is not None]
    for degree, value in options:
        if float not in degree.kinds:
            text = replace(degree, text=text).label(number_text(value))
    return text, {(degree.index, degree.option): value for degree, value in options if float in degree.kinds}


def check_range(methods: Sequence[str], name: str, ranges: Mapping[str, Range]) -> None:
    """Refuse a range of something that no method has, without a value it could take, or given by another name too."""
    if name == "lr":
        return
    degrees = {text: degree for text in methods if (degree := _found(text, name)) is not None}
    for text, degree in degrees.items():
        if float not in degree.kinds and math.ceil(ranges[name][0]) > math.floor(ranges[name][1]):
            raise BadValue(name, list(ranges[name]), "a range with a whole number in it")
        _check_once(text, degree, name, ranges)
    if degrees:
        return
    parts = [one for text in methods for one in parts_of(text)]
    known = {f"{one.entry.name}.{option}" for one in parts for option in one.entry.options}
    able = {option for option in known if any(_found(text, option) is not None for text in methods)}
    owned = {option for option in able if option.startswith(f"{name.partition('.')[0]}.")}
    raise UnknownChoice("option to tune", name, {"lr", *(owned or able)})


def _check_once(text: str, degree: SweptOption, name: str, ranges: Mapping[str, Range]) -> None:
    """Refuse an option that goes by two names, such as lam and ditto.lam."""
    for other in ranges:
        same = None if other in ("lr", name) else _found(text, other)
        if same is not None and (same.index, same.option) == (degree.index, degree.option):
            first, second = sorted((name, other))
            raise BadValue(second, list(ranges[second]), f"given once, but {first} is the same option of {text}")


def _found(text: str, option: str) -> SweptOption | None:
    """The option of that name, if a part of the text has it and it takes numbers."""
    try:
        return find_swept_option(text, option)
    except UserError:
        return None
