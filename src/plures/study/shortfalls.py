"""Methods that fall short of the two ends of a study, a line for each: by how much, why, and what to set.

What to set follows from what methods declare of themselves: the option that says how much clients collaborate
(``Entry.degree``), and the setting at which they are training alone or one model for all (``Entry.limits``).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plures.errors import UserError
from plures.registry import Named
from plures.study.comparison import ALONE, GLOBAL, Comparison
from plures.study.recommendation import ENDS, LOSS, Choice
from plures.study.sweep import find_swept_option, parts_of

NOISE = 2.5
"""How many times as large a shortfall that may be noise must be."""

WHY = {
    ALONE: "clients differ more than it lets their models differ",
    GLOBAL: "clients are more alike than it makes use of",
}


@dataclass(frozen=True)
class Shortfall:
    """A method that is below the better end by ``gap``, in the unit of the score on the rows that choose."""

    method: str
    end: str
    gap: float
    said: str


def shortfalls(result: Comparison) -> list[Shortfall]:
    """The methods that are below the better of training alone and one model for all, the ends themselves left out.

    Means on the rows that choose decide: below by more than 2 % of the score's range where they can be told from the best
    method, by more than 5 % otherwise.
    """
    choice = Choice(result)
    ends = [name for name in choice.sound if name in ENDS]
    return list(_found(choice, ends[0])) if ends else []


def _found(choice: Choice, end: str) -> Iterator[Shortfall]:
    sign = 1.0 if choice.result.higher_is_better else -1.0
    behind = choice.result.behind[choice.split]
    for name in choice.sound:
        gap = sign * (choice.means[end] - choice.means[name])
        if name not in ENDS and gap > LOSS * choice.span * (1.0 if name in behind else NOISE):
            score = f"{gap:.{choice.result.digits}f} below {end} on {choice.split} rows"
            yield Shortfall(name, end, gap, f"{name}: {score}: {WHY[end]}; {remedy(name, end)}")


def remedy(name: str, end: str) -> str:
    """What to set, for a method by its text, so that it comes nearer to an end.

    >>> remedy("ditto:lam=2", "local_only")
    'ditto:lam=0.0 is training alone, plures tradeoff -m ditto finds the best lam'
    >>> remedy("scaffold", "local_only")
    'scaffold|finetune lets every client depart from it'
    >>> remedy("ditto", "fedavg")
    'plures tradeoff -m ditto finds the best lam'
    >>> remedy("a method by hand", "fedavg")
    'take fedavg'
    """
    try:
        named = parts_of(name)
    except UserError:
        return f"take {end}"
    plain = "|".join(one.entry.name for one in named)
    said = [_limit(named, plain, end)]
    if any(one.entry.degree for one in named):
        said.append(f"plures tradeoff -m {shlex.quote(plain)} finds the best {find_swept_option(plain).option}")
    elif end == ALONE:
        said.append(f"{plain}|finetune lets every client depart from it")
    return ", ".join(one for one in said if one) or f"take {end}"


def _limit(named: Sequence[Named], plain: str, end: str) -> str:
    """The options with which a method is an end, where it says so of itself; of a personalizer it is FedAvg that is meant."""
    if len(named) > 1 and (end, named[0].entry.name) != (GLOBAL, GLOBAL):
        return ""
    for limit in named[-1].entry.limits:
        if limit.same_served_as == end and limit.world == "clients" and limit.options and not limit.its_options:
            given = [f"{name}={str(value).lower()}" for name, value in limit.options.items()]
            return f"{plain}:{','.join(given)} is {ENDS[end]}"
    return ""
