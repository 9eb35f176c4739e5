"""Numbers of things, units and lists in plain English: one home for all who speak to people."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 40


UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "round"), counted(1200, "round")
    ('1 round', '1,200 rounds')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def unit_of(most_mb: float) -> tuple[str, float]:
    """(name, how many make a megabyte) of the unit in which such traffic is read best."""
    return ("MB", 1.0) if most_mb >= 0.1 else ("kB", 1e3)


def said_mb(mb: float) -> str:
    """Traffic with its unit.

    >>> said_mb(2.5), said_mb(0.0125)
    ('2.5 MB', '12.5 kB')
    """
    unit, per_mb = unit_of(mb)
    return f"{mb * per_mb:.3g} {unit}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e", "f", "g"])
    'a, b, c, d, e and 2 more'
    """
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name) for name in names[:most]) + rest


def joined(names: Sequence[str], most: int = 3) -> str:
    """Some names as in a sentence; how many more, where they are many.

    >>> joined(["a"]), joined(["a", "b"]), joined(["a", "b", "c", "d"])
    ('a', 'a and b', 'a, b, c and 1 more')
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([part for part in (", ".join(names[:-1]), *names[-1:]) if part])


def shown(value: object) -> str:
    """A value from the user's data in one line, cut short if it is long.

    >>> shown("two\\nlines"), shown("x" * 99)
    ('two lines', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...')
    """
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def bytes_in_words(number: float) -> str:
    """A number of bytes in the unit in which it is read best.

    >>> bytes_in_words(1234), bytes_in_words(2e8)
    ('1.23 kB', '0.2 GB')
    """
    unit, size = next((known for known in UNITS if number >= known[1] / 10), UNITS[-1])
    return f"{number / size:.3g} {unit}"
