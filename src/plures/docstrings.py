"""What a docstring says of each argument, in Google's form: the one place where an option is explained.

Args:
    lam: Strength of the proximal term; 0 trains alone.
    plan: How clients train locally,
        in as many lines as it takes.
"""

from __future__ import annotations

import inspect
import re
from itertools import takewhile
from typing import Any

_TITLE = "Args:"
_NAME = re.compile(r"(\w+): +(\S.*)")


def argument_sentences(described: Any) -> dict[str, str]:
    """The sentences of a function's or a class's arguments, by their names.

    >>> def ditto(*, lam: float) -> None:
    ...     '''Personal models.
    ...
    ...     Args:
    ...         lam: Strength of the proximal term;
    ...             0 trains alone.
    ...     '''
    >>> argument_sentences(ditto)
    {'lam': 'Strength of the proximal term; 0 trains alone.'}
    """
    _, section, _ = _split(described)
    text = inspect.cleandoc("\n" + "\n".join(section))
    found = dict[str, str]()
    name = ""
    for line in filter(None, text.splitlines()):
        start = _NAME.match(line)
        if start:
            name, first = start.groups()
            found[name] = first
        elif line.startswith(" ") and name:
            found[name] += f" {line.strip()}"
        else:
            raise ValueError(f"{described.__name__}: {line!r} in its {_TITLE} is no 'name: A sentence.'")
    return found


def prose(described: Any) -> str:
    """A docstring without its first line and without its section of arguments."""
    before, _, after = _split(described)
    return "\n".join([*before[1:], *after]).strip()


def _split(described: Any) -> tuple[list[str], list[str], list[str]]:
    """The lines before the section of arguments, its own, and those after it."""
    lines = (inspect.getdoc(described) or "").splitlines()
    if _TITLE not in lines:
        return lines, [], []
    title = lines.index(_TITLE)
    section = list(takewhile(lambda line: not line or line.startswith(" "), lines[title + 1 :]))
    return lines[:title], section, lines[title + 1 + len(section) :]
