"""Which files make up the user's data: one table, or a folder with a file per client."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from plures.data.tables.messages import in_order
from plures.errors import BadData, BadFile
from plures.wording import listed

TEXT = (".csv", ".tsv")
SUFFIXES = (*TEXT, ".parquet", ".npz")
NEEDS = "give a .csv or .parquet table, or a folder with a .csv, .parquet or .npz file per client"


@dataclass(frozen=True)
class Files:
    """The files in the order of their clients; ``per_client`` tells a folder from one table."""

    title: str
    paths: tuple[Path, ...]
    per_client: bool
    notes: tuple[str, ...] = ()

    @property
    def clients(self) -> tuple[str, ...]:
        """The client's name of each file."""
        return tuple(path.stem for path in self.paths)

    @property
    def arrays(self) -> bool:
        """Whether the files hold arrays (NPZ) instead of tables."""
        return self.paths[0].suffix.lower() == ".npz"

    @property
    def written(self) -> bool:
        """Whether the files hold text alone (CSV), without types."""
        return self.paths[0].suffix.lower() in TEXT


def find_files(path: str | Path) -> Files:
    """The files at a path, or an error that says what is wrong with it."""
    found = Path(path).expanduser()
    if found.is_dir():
        return _folder(found)
    if not found.is_file():
        raise BadFile(f"there is no file or folder {path}; {NEEDS}")
    if found.suffix.lower() == ".npz":
        raise BadFile(f"{path} is one NPZ file, which holds one client; give the folder with a file per client")
    if found.suffix.lower() not in SUFFIXES:
        raise BadFile(f"{path} has the unknown suffix '{found.suffix}'; {NEEDS}")
    return Files(found.stem, (found,), per_client=False)


def _folder(folder: Path) -> Files:
    inside = sorted(folder.iterdir())
    paths = [path for path in inside if _is_ours(path)]
    if not paths:
        raise BadFile(f"the folder {folder} holds no CSV, Parquet or NPZ file; {NEEDS}")
    _check_names(paths)
    others = [path.name for path in inside if not _is_ours(path)]
    notes = [f"ignored in the folder (hidden, or no CSV, Parquet or NPZ file): {listed(others)}"] if others else []
    by_client = {path.stem: path for path in paths}
    ordered = tuple(by_client[name] for name in in_order(by_client))
    return Files(folder.resolve().name, ordered, per_client=True, notes=(*notes, *_copies(paths)))


def _copies(paths: list[Path]) -> list[str]:
    """A note on files that hold the same bytes: one client twice, under two names?"""
    same: dict[str, list[str]] = {}
    for path in paths:
        same.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), []).append(path.name)
    return [f"the same bytes stand in {listed(names)}" for names in same.values() if len(names) > 1]


def _is_ours(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.suffix.lower() in SUFFIXES


def _check_names(paths: list[Path]) -> None:
    """Refuse two files of one client, and files of two kinds."""
    first: dict[str, Path] = {}
    for path in paths:
        other = first.setdefault(path.stem, path)
        if other is not path:
            raise BadData(f"{other.name} and {path.name} are both the client '{path.stem}'; keep one of them")
    for path in paths:
        if path.suffix.lower() != paths[0].suffix.lower():
            raise BadData(f"{paths[0].name} and {path.name} are of two kinds; a folder holds files of one kind")
