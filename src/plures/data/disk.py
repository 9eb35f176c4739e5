"""Federations as folders: written whole or not at all, checked when read, mapped when larger than the memory.

    manifest.json   what it is: format, version, title, task, notes, and every array's file, dtype, shape, sha256
    clients.json    the clients' names
    clients.npz     start, count, uid, and where known group, domain, apart
    examples.npz    x, y

The archives are not compressed and hold no pickle, so numpy opens them too, and an array can be mapped where it
lies. An array's sha256 is that of its ``.npy`` member. Only rows that some client owns are written.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from plures._version import __version__
from plures.data.federation import TASKS, Federation
from plures.errors import BadData, BadFile

FORMAT = "plures-federation"
VERSION = 1
MANIFEST, NAMES, CLIENTS, EXAMPLES = "manifest.json", "clients.json", "clients.npz", "examples.npz"
PER_CLIENT = ("start", "count", "uid", "group", "domain", "apart")
FIELDS = {"apart": "held_out"}
"""What an array is called in a federation where that is not its name on disk."""
NEEDED = ("x", "y", "start", "count", "uid")
TEXTS = ("class_names", "notes")
NUMBERS = ("num_classes", "num_groups", "num_domains")
FACTS: dict[str, Any] = (
    dict.fromkeys(("title", "task", "unit"), str) | dict.fromkeys(NUMBERS, int) | dict.fromkeys(TEXTS, list)
)
LATER: dict[str, Any] = {"standardize_target": bool}
"""Facts that folders of earlier releases do not have; they are as the federation's defaults say."""
BLOCK_BYTES = 2**24
ALIGN = 64


def save(federation: Federation, folder: str | Path, *, overwrite: bool = False) -> Path:
    """The folder the federation was written to; what was there is replaced only with ``overwrite``.

    Everything is written to a scratch folder beside it and renamed at the end: a crash leaves no half file.
    """
    wrong = next(_contradictions(federation), None)
    if wrong:
        raise BadData(f"this federation cannot be saved: {wrong}")
    target = Path(folder).resolve()
    _check_target(target, folder, overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            fresh = Path(scratch) / "fresh"
            _write(federation, fresh)
            _put_in_place(fresh, target, Path(scratch) / "former")
    except OSError as error:
        raise BadFile(f"{folder} cannot be written: {error.strerror or error}") from error
    return Path(folder)


def open_federation(folder: str | Path, *, memory_map: bool | None = None, verify: bool = True) -> Federation:
    """The federation stored in a folder; damaged or changed files are refused.

    ``memory_map`` leaves the examples on disk and reads rows when they are used; None does so when they are
    larger than half the machine's memory. ``verify=False`` leaves out the sha256 of the arrays.
    """
    place = Path(folder)
    manifest = _read_manifest(place)
    arrays = {name: _describe(place, name, entry) for name, entry in manifest["arrays"].items()}
    if memory_map is None:
        memory_map = sum(arrays[name].num_bytes for name in ("x", "y")) > physical_memory() // 2
    found: dict[str, Any] = {
        field_of(name): _load(one, memory_map and name in ("x", "y"), verify) for name, one in arrays.items()
    }
    facts: dict[str, Any] = {name: tuple(manifest[name]) if name in TEXTS else manifest[name] for name in FACTS}
    facts |= {name: manifest[name] for name in LATER if name in manifest}
    federation = Federation(**found, **facts, names=_read_names(place, manifest["names"]))
    wrong = next(_contradictions(federation), None)
    if wrong:
        raise BadFile(f"{folder} is damaged: {wrong}")
    return federation


def is_federation(path: str | Path) -> bool:
    """Whether a path is a folder with the manifest of a federation, of whatever version."""
    try:
        return bool(_read_json(Path(path) / MANIFEST, dict).get("format") == FORMAT)
    except BadFile:
        return False


def physical_memory() -> int:
    """The bytes of memory of this machine; 8 GiB where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * 2**30


def field_of(name: str) -> str:
    """The field of a federation that an array on disk is."""
    return FIELDS.get(name, name)


def _contradictions(federation: Federation) -> Iterator[str]:
    """What is wrong with the federation's parts; only what comes first is sure to be said rightly."""
    x, y, start, count, uid = (getattr(federation, name) for name in ("x", "y", "start", "count", "uid"))
    number, names = len(uid), federation.names
    for name in PER_CLIENT:
        known, values = field_of(name), getattr(federation, field_of(name))
        shape = (number, 3) if name in ("start", "count") else (number,)
        if values is not None and values.shape != shape:
            yield f"{known} has the shape {values.shape}, not {shape}"
        if values is not None and values.dtype.kind not in ("b" if name == "apart" else "iu"):
            yield f"{known} has the dtype {values.dtype}"
    for name, values in (("x", x), ("y", y)):
        if not values.ndim or values.dtype.kind not in "fiub":
            yield f"{name} must hold numbers, a row per example, not {values.dtype} of shape {values.shape}"
    if len(x) != len(y):
        yield f"x has {len(x)} rows and y has {len(y)}"
    if (count < 0).any() or (start < 0).any() or (start > len(x) - count).any():
        yield f"some client's rows lie outside of the {len(x)} rows there are"
    if len(names) != number:
        yield f"there are {number} clients and {len(names)} names"
    if len(set(names)) != number:
        yield "two clients have one name"
    if len(np.unique(uid)) != number or (uid < 0).any():
        yield "clients' uids must differ and be 0 or more"
    for what in ("group", "domain"):
        given, most = getattr(federation, what), getattr(federation, f"num_{what}s")
        if given is not None and ((given < 0) | (given >= most)).any():
            yield f"some client's {what} is not in 0..{most - 1}"
    if federation.task not in TASKS:
        yield f"there is no task '{federation.task}'"


def _check_target(target: Path, folder: str | Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not is_federation(target):
        raise BadFile(f"{folder} is there already and is no stored federation; use another folder")
    if not overwrite:
        raise BadFile(f"{folder} holds a federation already; use another folder, or overwrite it")
    others = sorted({one.name for one in target.iterdir()} - {MANIFEST, NAMES, CLIENTS, EXAMPLES})
    if others:
        raise BadFile(f"{folder} holds other files too ({others[0]}), which would be lost; use another folder")


def _put_in_place(fresh: Path, target: Path, former: Path) -> None:
    """Rename the fresh folder to the target; what was there comes back if that fails or is interrupted."""
    try:
        if target.exists():
            target.rename(former)
        fresh.rename(target)
    except BaseException:
        if former.exists() and not target.exists():
            former.rename(target)
        raise


def _write(federation: Federation, folder: Path) -> None:
    """All files of a federation into a new folder."""
    folder.mkdir()
    runs, start = _own_rows(federation)
    rows = replace(federation, start=start)
    known = {name: getattr(rows, field_of(name)) for name in PER_CLIENT}
    per_client = {name: values for name, values in known.items() if values is not None}
    arrays = _write_archive(folder / CLIENTS, per_client, [(0, federation.num_clients)])
    arrays |= _write_archive(folder / EXAMPLES, {"x": federation.x, "y": federation.y}, runs)
    names = json.dumps(list(federation.names), indent=0).encode()
    (folder / NAMES).write_bytes(names)
    facts = {name: kind(getattr(federation, name)) for name, kind in (FACTS | LATER).items()}
    manifest = {"format": FORMAT, "version": VERSION, "plures": __version__, **facts}
    manifest |= {"arrays": arrays, "names": {"file": NAMES, "sha256": hashlib.sha256(names).hexdigest()}}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _own_rows(federation: Federation) -> tuple[list[tuple[int, int]], NDArray[Any]]:
    """(runs of rows that clients own, in the order they lie; where each client's splits start among those)."""
    start = federation.start.ravel().astype(np.int64)
    order = np.argsort(start, kind="stable")
    first, last = start[order], (start + federation.count.ravel())[order]
    reach = np.maximum.accumulate(last)
    new = np.concatenate([np.ones(min(len(first), 1), bool), first[1:] > reach[:-1]])
    begin = first[new]
    end = np.maximum.reduceat(last, np.flatnonzero(new)) if len(last) else last
    before = np.cumsum(end - begin) - (end - begin)
    run = np.cumsum(new) - 1
    based = np.empty_like(start)
    based[order] = first - begin[run] + before[run]
    runs = list(zip(begin.tolist(), end.tolist(), strict=True))
    return runs, based.reshape(federation.start.shape).astype(federation.start.dtype)


def _write_archive(path: Path, arrays: Mapping[str, Any], runs: list[tuple[int, int]]) -> dict[str, Any]:
    """Write the rows of each array in these runs; returns what the manifest says of the arrays."""
    rows = sum(end - begin for begin, end in runs)
    entries = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, values in arrays.items():
            digest, shape = hashlib.sha256(), (rows, *values.shape[1:])
            with archive.open(_align(archive, f"{name}.npy"), "w", force_zip64=True) as member:
                for piece in _pieces(values, shape, runs):
                    digest.update(piece)
                    member.write(piece)
            kind = np.dtype(values.dtype).str
            entries[name] = {"file": path.name, "dtype": kind, "shape": list(shape), "sha256": digest.hexdigest()}
    return entries


def _align(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """A member whose content will start at a multiple of 64 bytes, so that it can be mapped as it lies."""
    info = zipfile.ZipInfo(name)
    # The local header is 30 bytes, the name, our padding field (4 and up) and 20 bytes of sizes.
    taken = archive.start_dir + 30 + len(name) + 4 + 20
    info.extra = struct.pack("<HH", 0xD935, -taken % ALIGN) + bytes(-taken % ALIGN)
    return info


def _pieces(values: Any, shape: tuple[int, ...], runs: list[tuple[int, int]]) -> Iterator[Any]:
    """The bytes of a ``.npy`` file: its header, then a block of rows at a time."""
    header = io.BytesIO()
    kind = npy.dtype_to_descr(np.dtype(values.dtype))
    npy.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    yield header.getvalue()
    step = max(BLOCK_BYTES // max(values[:1].nbytes, 1), 1)
    for begin, end in runs:
        for first in range(begin, end, step):
            block = np.ascontiguousarray(values[first : min(first + step, end)])
            yield block.reshape(-1).view(np.uint8)


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, with every field there and of its type."""
    file = folder / MANIFEST
    if not folder.is_dir():
        raise BadFile(f"there is no folder {folder}; give the folder of a stored federation")
    if not file.is_file():
        raise BadFile(f"{folder} holds no federation (there is no {MANIFEST} in it)")
    manifest = _read_json(file, dict)
    if manifest.get("format") != FORMAT:
        raise BadFile(f"{file} does not describe a federation (its format is {manifest.get('format')!r})")
    version = manifest.get("version")
    if not isinstance(version, int) or version < 1:
        raise BadFile(f"{file} is damaged: {version!r} is no version")
    if version > VERSION:
        made = f"version {version}, this release reads {VERSION}"
        raise BadFile(f"{folder} was made by a newer plures ({made}); update plures to open it")
    for name, kind in (FACTS | {"arrays": dict, "names": dict}).items():
        if not isinstance(manifest.get(name), kind):
            raise BadFile(f"{file} is damaged: it has no '{name}' of type {kind.__name__}")
    for name, kind in LATER.items():
        if not isinstance(manifest.get(name, kind()), kind):
            raise BadFile(f"{file} is damaged: its '{name}' is not of type {kind.__name__}")
    named = set(manifest["arrays"])
    if not set(NEEDED) <= named <= {*NEEDED, *PER_CLIENT}:
        raise BadFile(f"{file} is damaged: it names the arrays {', '.join(sorted(named))}")
    for name in TEXTS:
        if not all(isinstance(line, str) for line in manifest[name]):
            raise BadFile(f"{file} is damaged: its {name} should be lines of text")
    return manifest


def _read_json(file: Path, kind: type) -> Any:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"{file} is damaged: {error}") from error
    if not isinstance(found, kind):
        raise BadFile(f"{file} is damaged: it should hold a {kind.__name__}")
    return found


def _read_names(folder: Path, entry: dict[str, Any]) -> tuple[str, ...]:
    file = _file_of(folder, entry)
    if hashlib.sha256(file.read_bytes()).hexdigest() != entry.get("sha256"):
        raise BadFile(f"{file} was changed or damaged (its sha256 is another); save or get it anew")
    return tuple(str(name) for name in _read_json(file, list))


def _file_of(folder: Path, entry: Any) -> Path:
    """The file an entry of the manifest names, which must lie in the folder."""
    name = entry.get("file") if isinstance(entry, dict) else None
    if name not in (NAMES, CLIENTS, EXAMPLES):
        raise BadFile(f"{folder / MANIFEST} is damaged: {name!r} is no file of a federation")
    if not (folder / name).is_file():
        raise BadFile(f"{folder} is not whole: there is no {name} in it")
    return folder / name


class _Described(NamedTuple):
    """An array as the manifest describes it."""

    name: str
    file: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    sha256: str

    @property
    def num_bytes(self) -> int:
        """The size of its content."""
        return math.prod(self.shape) * self.dtype.itemsize


def _describe(folder: Path, name: str, entry: Any) -> _Described:
    file = _file_of(folder, entry)
    kind, shape, digest = (entry.get(field) for field in ("dtype", "shape", "sha256"))
    sound = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not sound or not re.fullmatch("[<>|]([fiu][1248]|f16|b1)", str(kind)):
        raise BadFile(f"{folder / MANIFEST} is damaged: {name} has the dtype {kind!r} and the shape {shape!r}")
    return _Described(name, file, np.dtype(kind), tuple(shape), digest)


def _load(wanted: _Described, mapped: bool, verify: bool) -> NDArray[Any]:
    """The array, read or mapped, once it is known to be what the manifest says."""
    try:
        with wanted.file.open("rb") as file:
            begin, offset = _find(file, wanted)
            shape, kind = wanted.shape, wanted.dtype
            values = np.memmap(wanted.file, kind, "r", offset, shape) if mapped else np.empty(shape, kind)
            file.seek(begin)
            digest = hashlib.sha256(file.read(offset - begin))
            if verify or not mapped:
                for block in _blocks(file, wanted.num_bytes, None if mapped else values):
                    if verify:
                        digest.update(block)
    except OSError as error:
        raise BadFile(f"{wanted.file} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # A damaged archive makes its readers fail in many ways.
        raise BadFile(f"{wanted.file} is cut off or damaged: {error}") from error
    if verify and digest.hexdigest() != wanted.sha256:
        raise BadFile(f"{wanted.file} was changed or damaged (the sha256 of {wanted.name} is another); get it anew")
    return values


def _find(file: io.BufferedReader, wanted: _Described) -> tuple[int, int]:
    """Where the array's ``.npy`` member begins in its archive, and where its content does."""
    with zipfile.ZipFile(file) as archive:
        info = archive.getinfo(f"{wanted.name}.npy")
    file.seek(info.header_offset + 26)
    begin = info.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
    file.seek(begin)
    version = npy.read_magic(file)
    shape, by_columns, kind = npy.read_array_header_1_0(file)
    offset = file.tell()
    if (version, shape, by_columns, kind) != ((1, 0), wanted.shape, False, wanted.dtype):
        raise ValueError(f"{wanted.name} is {kind} of shape {shape}, not {wanted.dtype} of shape {wanted.shape}")
    if offset + wanted.num_bytes != begin + info.file_size:
        raise ValueError(f"{wanted.name} is not as long as its shape says")
    return begin, offset


def _blocks(file: io.BufferedReader, num_bytes: int, values: NDArray[Any] | None) -> Iterator[memoryview]:
    """The next bytes of a file block by block, put into ``values`` where those are given."""
    room = np.empty(min(BLOCK_BYTES, num_bytes), np.uint8) if values is None else values.reshape(-1).view(np.uint8)
    for first in range(0, num_bytes, BLOCK_BYTES):
        size = min(BLOCK_BYTES, num_bytes - first)
        block = (room[:size] if values is None else room[first : first + size]).data
        if file.readinto(block) != size:
            raise EOFError("it ends too early")
        yield block
