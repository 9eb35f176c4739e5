"""Data files that the user keeps: found in a named folder, checked by their hash, read without pickle.

The folder is ``data_dir`` or, where the file is not there, that of the environment variable PLURES_DATA.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plures.errors import BadFile

VARIABLE = "PLURES_DATA"
HOW = f"name its folder with --data-dir DIR or {VARIABLE}; docs/data-sets.md lists keys and hashes"


@dataclass(frozen=True)
class DataFile:
    """A file's name, its hash, what it holds and where that comes from."""

    file: str
    sha256: str
    what: str
    origin: str

    @property
    def wanted(self) -> str:
        """What to get and from where, to end an error with."""
        return f"get {self.file} ({self.what}; from {self.origin}) and {HOW}"


def locate(source: DataFile, data_dir: str | None = None) -> Path:
    """The path of the file, its hash checked."""
    named = folders(data_dir)
    if not named:
        raise BadFile(f"no data folder is named; {source.wanted}")
    paths = [folder / source.file for folder in named]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise BadFile(f"there is no {source.file} in {' or '.join(map(str, named))}; {source.wanted}")
    if not path.stat().st_size:
        raise BadFile(f"{path} is empty (0 bytes); {source.wanted}")
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from error
    if found != source.sha256:
        hashes = f"its sha256 is {found}, not {source.sha256}"
        raise BadFile(f"{path} is another file or damaged: {hashes}; {source.wanted}")
    return path


def folders(data_dir: str | None) -> list[Path]:
    """The folders to look in: the one given, then that of the environment variable."""
    return [Path(folder).expanduser() for folder in (data_dir, os.environ.get(VARIABLE)) if folder]


def read_npz(path: Path, keys: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """The arrays of these keys; objects that need pickle are refused."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {key: stored[key] for key in keys}
    except KeyError as error:
        raise BadFile(f"{path} lacks an array: {error.args[0]}; it should hold {', '.join(keys)}") from error
    # A single stored array is no context manager (TypeError); the others are what a damaged archive raises.
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise BadFile(f"{path} is damaged or no npz file: {error}; it should hold {', '.join(keys)}") from error
