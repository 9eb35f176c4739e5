"""Errors for the person at the keyboard: what is wrong, what was given, what would do.

``UserError`` and its children are the user's to mend (the command line exits with 1 and prints one line).
Anything else that escapes is a defect of ours (exit 2, with a traceback).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PluresError(Exception):
    """Any error this library raises on purpose."""


class UserError(PluresError):
    """Something the user gave cannot work; the message says what would."""


class UnknownChoice(UserError):
    """A name that is not in the list of known names.

    >>> raise UnknownChoice("method", "fedporx", ["ditto", "fedprox"])
    Traceback (most recent call last):
    plures.errors.UnknownChoice: no method is called 'fedporx'; did you mean 'fedprox'? Known: ditto, fedprox
    """

    def __init__(self, kind: str, given: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(given, names, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        super().__init__(f"no {kind} is called '{given}'{hint} Known: {', '.join(names) or 'none'}")


class BadValue(UserError):
    """A value outside what its option takes.

    >>> raise BadValue("share", 0.7, "a number in [0, 0.5)")
    Traceback (most recent call last):
    plures.errors.BadValue: share must be a number in [0, 0.5), got 0.7
    """

    def __init__(self, name: str, given: object, wanted: str) -> None:
        super().__init__(f"{name} must be {wanted}, got {given!r}")


class BadData(UserError):
    """Data that contradict themselves or the task."""


class BadFile(UserError):
    """A file that is missing, damaged or not what it should be."""


class Unsupported(UserError):
    """A combination of sound parts that has no meaning together."""


class MethodWarning(UserWarning):
    """A run ended, but not as its method hopes: clusters that nobody chose, say."""


class ClientFailure(PluresError):
    """A method's function failed for one client; names stage, round, client and the shapes it was given."""


def require(fine: bool, name: str, given: object, wanted: str) -> None:
    """Refuse a value that is not fine.

    >>> require(0 <= 0.7 < 0.5, "share", 0.7, "a number in [0, 0.5)")
    Traceback (most recent call last):
    plures.errors.BadValue: share must be a number in [0, 0.5), got 0.7
    """
    if not fine:
        raise BadValue(name, given, wanted)


def require_least(least: int, **given: float | None) -> None:
    """Refuse numbers below the least, by name; None stands for a number that was left out.

    >>> require_least(1, warm=5, race=0)
    Traceback (most recent call last):
    plures.errors.BadValue: race must be 1 or more, got 0
    """
    for name, number in given.items():
        require(number is None or number >= least, name, number, f"{least} or more")


def require_choice(kind: str, given: str, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones.

    >>> require_choice("rule", "fix", ("fixed", "projected"))
    Traceback (most recent call last):
    plures.errors.UnknownChoice: no rule is called 'fix'; did you mean 'fixed'? Known: fixed, projected
    """
    if given not in known:
        raise UnknownChoice(kind, given, known)
