"""Shakespeare's plays by role: the next character of what one role says.

A role's speeches, joined by newlines, are a text of n characters; newlines in front fill it up to a whole number of
windows. Row i has window i as targets and, as inputs, the same window one character earlier (a newline before the
first). So every character is a target exactly once, no window overlaps another, and padding is only ever in a role's
first window, which trains. Windows stay in the order of the play: the first ones train, the last ones test.
"""

from __future__ import annotations

import gzip
import json

import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Examples, Federation, assemble
from plures.data.files import DataFile, locate
from plures.data.splits import SHARES, by_order, rank_within
from plures.errors import BadValue

SOURCE = DataFile(
    file="shakespeare_by_speaker.json.gz",
    sha256="891d53ffce74fc6c57ea69c4fea02ef8c76673d9c4cbee3a13f202e8ab38834c",
    what="37 plays, the speeches of 1,109 roles",
    origin="the texts of Project Gutenberg",
)
FEW = 3


@registry.dataset(title="Shakespeare by role", paper="arXiv:1602.05629 (the task)")
def shakespeare(
    *, length: int = 80, min_characters: int = 0, data_dir: str | None = None, seed: int = 0
) -> Federation:
    """The next character in the speeches of 1,109 roles, in windows of ``length`` characters.

    Args:
        length: Characters in a window, that is in one row.
        min_characters: Fewest characters of a role that is kept (441 have 2,000 or more); 0 keeps all.
        data_dir: Folder in which the file lies; None takes that of the environment variable PLURES_DATA.
        seed: Changes nothing: nothing is drawn at random.
    """
    if length < 1:
        raise BadValue("length", length, "1 or more")
    with gzip.open(locate(SOURCE, data_dir), "rt", encoding="utf-8") as stream:
        stored = json.load(stream)
    texts = {role: "\n".join(stored["user_data"][role]) for role in stored["users"]}
    kept = {role: text for role, text in sorted(texts.items()) if len(text) >= min_characters}
    if not kept:
        most = max(map(len, texts.values()))
        raise BadValue("min_characters", min_characters, f"at most {most}, the characters of the longest role")
    letters = "".join(sorted(set("\n").union(*texts.values())))  # a newline comes first
    federation = windows_of(kept, letters, length)
    left_out = len(texts) - len(kept)
    if left_out:
        federation = federation.noted(f"{left_out} roles with fewer than {min_characters} characters are left out")
    return federation.noted(*notes_of(federation, [len(text) for text in kept.values()], length))


def windows_of(texts: dict[str, str], letters: str, length: int) -> Federation:
    """The federation of these texts, a client each."""
    targets = [text.rjust(-(-len(text) // length) * length, "\n") for text in texts.values()]
    owner = np.repeat(np.arange(len(targets)), [len(text) // length for text in targets])
    y, x = codes_of("".join(targets), letters), codes_of("".join("\n" + text[:-1] for text in targets), letters)
    place = rank_within(owner, np.arange(len(owner)))
    return assemble(
        Examples(x.reshape(-1, length), y.reshape(-1, length), owner, by_order(owner, place, SHARES)),
        names=tuple(texts),
        task="sequence",
        num_classes=len(letters),
        title="shakespeare",
    )


def codes_of(text: str, letters: str) -> NDArray[np.int32]:
    """The place of every character in the alphabet."""
    points, known = (np.frombuffer(one.encode("utf-32-le"), np.uint32) for one in (text, letters))
    table = np.zeros(int(known.max()) + 1, np.int32)
    table[known] = np.arange(len(known))
    return table[points]


def notes_of(federation: Federation, sizes: list[int], length: int) -> list[str]:
    """What was padded, and which roles are too short for all three splits."""
    filled = [-size % length for size in sizes]
    padded = f"{np.count_nonzero(filled)} roles have a first window with newlines in front, {sum(filled)} in all"
    short = np.flatnonzero(federation.count.sum(1) < FEW)
    if not len(short):
        return [padded]
    untested = int((federation.count[short, 2] == 0).sum())
    first = ", ".join(f"'{federation.names[role]}'" for role in short[:FEW])
    return [
        padded,
        f"{len(short)} roles have fewer than {FEW} windows and so no valid rows, {untested} of them no test rows "
        f"either: {first}{', ...' if len(short) > FEW else ''}",
    ]
