"""Federations in LEAF's JSON format: {"users", "num_samples", "user_data": {user: {"x", "y"}}}.

Read are a single file, a folder with train.json and test.json, or one with train/*.json and test/*.json. Given
training rows are split into train and valid, given test rows are test; the rows of a single file are split anew.
Users of test files alone are unseen: they are held out, with rows of all three splits.

Numbers become arrays. Text (windows, and the character after each) becomes the task "sequence": the targets are
the window one character later. LEAF's windows overlap, so a text's valid rows share characters with its train rows.

Caldas et al.: LEAF, a benchmark for federated settings. arXiv 1812.01097.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Federation, from_arrays
from plures.data.files import folders
from plures.data.holdout import mark_held_out
from plures.data.sets.shakespeare import codes_of
from plures.data.splits import SHARES, by_order, stratified
from plures.errors import BadData, BadFile, BadValue, Unsupported
from plures.keys import Purpose, derive, root
from plures.types import Key

PARTS = ("train", "test")
LAYOUT = "a LEAF file, or a folder with train.json and test.json or with train/*.json and test/*.json"
WITHOUT_TEST = (0.75, 0.25, 0.0)
FEMNIST_PIXELS = 784
SHOWN = 3


class Samples(NamedTuple):
    """What one file says of one user: inputs, labels, and who that is, for messages."""

    x: list[Any]
    y: list[Any]
    who: str


class LeafRows(NamedTuple):
    """All rows of all files: inputs, labels, the user's name, and whether they were given as test rows."""

    x: NDArray[Any]
    y: NDArray[Any]
    user: NDArray[Any]
    is_test: NDArray[np.bool_]
    letters: str = ""


@registry.dataset(title="LEAF files", paper="arXiv:1812.01097")
def leaf(
    *,
    path: str = "",
    shape: tuple[int, ...] = (),
    num_classes: int | None = None,
    invert: bool = False,
    data_dir: str | None = None,
    seed: int = 0,
) -> Federation:
    """The users of LEAF's JSON files (FEMNIST, synthetic, Shakespeare and the like), a client each.

    Args:
        path: A JSON file, or a folder with train and test files; one that is not there is looked for in the data
            folder.
        shape: Shape of one input, such as 28x28x1; without it 784 numbers become 28x28 and others stay as they are.
        num_classes: How many classes there are; None infers them from the labels that occur (FEMNIST has 62).
        invert: Whether to turn x into 1 - x: FEMNIST has a white background, MNIST a black one.
        data_dir: Folder in which a relative path is looked for too; None takes that of the environment variable
            PLURES_DATA.
        seed: Seed of the split of rows that the files do not split themselves.
    """
    files = files_of(path, data_dir)
    given = {part: read_part([file for which, file in files if which == part]) for part in PARTS}
    rows = rows_of(given)
    if rows.letters:
        check_text(rows.letters, shape, num_classes, invert)
    else:
        rows = rows._replace(x=shape_inputs(rows.x, shape, invert))
    codes = split_of(derive(root(seed), Purpose.SPLIT), rows, single=len(files) == 1)
    federation = from_arrays(
        rows.x,
        rows.y,
        rows.user,
        task="sequence" if rows.letters else "classification",
        num_classes=len(rows.letters) or None if num_classes is None else num_classes,
        split=codes,
        title=f"leaf {Path(path).name}",
    )
    held_out = ~np.isin(federation.names, rows.user[~rows.is_test])
    return mark_held_out(federation, held_out).noted(*notes_of(given, single=len(files) == 1))


def files_of(path: str, data_dir: str | None = None) -> list[tuple[str, Path]]:
    """("train" or "test", file) of all files at a path; a single file holds training rows."""
    if not path:
        raise BadValue("path", path, LAYOUT)
    tried = [Path(path).expanduser(), *(folder / path for folder in folders(data_dir))]
    place = next((one for one in tried if one.exists()), tried[0])
    if place.is_file():
        return [("train", place)]
    if not place.is_dir():
        raise BadFile(f"there is no file or folder {path}; path should be {LAYOUT}")
    found = []
    for part in PARTS:
        files = [*place.glob(f"{part}.json"), *sorted(place.glob(f"{part}/*.json"))]
        if not files:
            raise BadFile(f"{path} has no {part}.json and no {part}/*.json; path should be {LAYOUT}")
        found += [(part, file) for file in files]
    return found


def read_part(files: list[Path]) -> dict[str, Samples]:
    """The users of several files together; a user of two files is refused."""
    merged: dict[str, Samples] = {}
    for file in files:
        for user, samples in read_users(file).items():
            if user in merged:
                twice = f"{samples.who} is also {merged[user].who}"
                raise BadData(f"{twice}; give a user's rows of a split in one file")
            merged[user] = samples
    return merged


def read_users(file: Path) -> dict[str, Samples]:
    """The users of one file; contradictions within it are refused."""
    stored = read_json(file)
    users, sizes, data = (stored[key] for key in ("users", "num_samples", "user_data"))
    _check(file, all(isinstance(user, str) for user in users), "a user's name is not text")
    _check(file, len(set(users)) == len(users), "a user is listed twice in 'users'")
    _check(file, len(users) == len(sizes), f"{len(users)} users but {len(sizes)} entries in 'num_samples'")
    _check(file, set(users) == set(data), "'users' and 'user_data' name different users")
    found = {}
    for user, size in zip(users, sizes, strict=True):
        entry: Any = data[user] if isinstance(data[user], dict) else {}
        x, y = entry.get("x"), entry.get("y")
        _check(file, isinstance(x, list) and isinstance(y, list), f"user '{user}' lacks a list 'x' or 'y'")
        fits = len(x) == len(y) == size
        _check(file, fits, f"user '{user}' has {len(x)} inputs, {len(y)} labels and 'num_samples' {size}")
        found[user] = Samples(x, y, f"user '{user}' in {file}")
    return found


def read_json(file: Path) -> dict[str, Any]:
    """The contents of a file, with the three keys of the format."""
    if not file.stat().st_size:
        raise BadFile(f"{file} is empty (0 bytes); write the LEAF file anew")
    try:
        stored = json.loads(file.read_bytes(), object_pairs_hook=_without_repeats)
    except (ValueError, OSError) as error:
        raise BadFile(f"{file} is damaged: {error}") from error
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    sound = isinstance(stored, dict) and all(isinstance(stored.get(key), kind) for key, kind in kinds.items())
    _check(file, sound, "it should hold the lists 'users' and 'num_samples' and the table 'user_data'")
    return dict(stored)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' is there twice")
    return found


def _check(file: Path, sound: bool, problem: str) -> None:
    if not sound:
        raise BadFile(f"{file} is no sound LEAF file: {problem}")


def rows_of(given: dict[str, dict[str, Samples]]) -> LeafRows:
    """The rows of all users that have any."""
    parts = [(part == "test", user, one) for part in PARTS for user, one in given[part].items() if one.x]
    if not any(not is_test for is_test, _, _ in parts):
        raise BadData("no user has training rows; give at least one that has")
    samples = [one for _, _, one in parts]
    sizes = [len(one.x) for one in samples]
    is_text = [isinstance(one.x[0], str) for one in samples]
    if len(set(is_text)) > 1:
        other = samples[is_text.index(not is_text[0])].who
        raise BadData(f"{other} has text where others have numbers, or the reverse")
    x, y, letters = text(samples) if is_text[0] else (*numbers(samples), "")
    user = np.repeat([user for _, user, _ in parts], sizes)
    return LeafRows(x, y, user, np.repeat([is_test for is_test, _, _ in parts], sizes), letters)


def numbers(samples: list[Samples]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Inputs and labels of all users; rows of different lengths are refused."""
    x, y = [_array(one.x, "x", one.who) for one in samples], []
    for values, one in zip(x, samples, strict=True):
        if values.shape[1:] != x[0].shape[1:]:
            shapes = f"{values.shape[1:]} where those of {samples[0].who} are {x[0].shape[1:]}"
            raise BadData(f"the inputs of {one.who} are {shapes}; all must be alike")
        labels = _array(one.y, "y", one.who)
        if labels.ndim != 1 or (labels != np.floor(labels)).any():
            raise BadData(f"y of {one.who} must be one whole number per row")
        y.append(labels.astype(np.int32))
    return np.concatenate(x), np.concatenate(y)


def _array(values: list[Any], what: str, who: str) -> NDArray[np.float32]:
    try:
        return np.asarray(values, np.float32)
    except (ValueError, TypeError) as error:
        raise BadData(f"{what} of {who} must be numbers, equally many in every row") from error


def shape_inputs(x: NDArray[np.float32], shape: tuple[int, ...], invert: bool) -> NDArray[np.float32]:
    """Inputs in the shape asked for; 784 numbers are 28x28 without asking."""
    width = int(np.prod(x.shape[1:], dtype=int))
    if not shape:
        shape = (28, 28) if x.shape[1:] == (FEMNIST_PIXELS,) else x.shape[1:]
    if min(shape, default=1) < 1 or int(np.prod(shape, dtype=int)) != width:
        raise BadValue("shape", shape, f"sizes whose product is the {width} numbers of an input")
    x = x.reshape(len(x), *shape)
    return 1 - x if invert else x


def text(samples: list[Samples]) -> tuple[NDArray[np.int32], NDArray[np.int32], str]:
    """Windows, the windows one character later, and the alphabet: all characters there are, in order."""
    length = len(samples[0].x[0])
    for one in samples:
        if not (length and _all_text(one.x, length) and _all_text(one.y, 1)):
            wanted = f"windows of {max(length, 1)} characters and one character after each"
            raise BadData(f"{one.who} must have {wanted}")
    windows = "".join(window for one in samples for window in one.x)
    after = "".join(character for one in samples for character in one.y)
    letters = "".join(sorted(set(windows) | set(after)))
    x = codes_of(windows, letters).reshape(-1, length)
    return x, np.concatenate([x[:, 1:], codes_of(after, letters)[:, None]], axis=1), letters


def _all_text(values: list[Any], length: int) -> bool:
    return all(isinstance(value, str) and len(value) == length for value in values)


def check_text(letters: str, shape: tuple[int, ...], num_classes: int | None, invert: bool) -> None:
    """Refuse options that mean nothing for text."""
    if shape or invert:
        raise Unsupported("shape and invert are for numbers, but these inputs are text; leave them out")
    if num_classes is not None and num_classes < len(letters):
        raise BadValue("num_classes", num_classes, f"at least {len(letters)}, the characters of the text")


def split_of(key: Key, rows: LeafRows, *, single: bool) -> NDArray[np.int64]:
    """The split of every row: given test rows stay test, unless all rows of their user are to be split."""
    keys = jax.random.split(key)
    whole = ~np.isin(rows.user, rows.user[~rows.is_test]) | single
    codes = np.full(len(rows.user), 2)
    for key_part, part, shares in ((keys[0], whole, SHARES), (keys[1], ~rows.is_test & ~whole, WITHOUT_TEST)):
        chosen = np.flatnonzero(part)
        if len(chosen) and rows.letters:
            codes[chosen] = by_order(rows.user[chosen], chosen, shares)
        elif len(chosen):
            codes[chosen] = stratified(key_part, rows.user[chosen], rows.y[chosen], shares)
    return codes


def notes_of(given: dict[str, dict[str, Samples]], *, single: bool) -> list[str]:
    """Which users are without rows, or in one kind of file only."""
    train, test = ({user for user, one in given[part].items() if one.x} for part in PARTS)
    said = [
        ("without rows left out", {user for part in PARTS for user in given[part]} - train - test),
        ("of test files only, held out as unseen", test - train),
        ("of training files only, without test rows", set() if single else train - test),
    ]
    return [f"{len(users)} users {what}: {_some(users)}" for what, users in said if users]


def _some(users: set[str]) -> str:
    first = ", ".join(f"'{user}'" for user in sorted(users)[:SHOWN])
    return first if len(users) <= SHOWN else f"{first}, ..."
