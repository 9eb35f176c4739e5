"""Atomic checkpoints: a folder appears under its final name only when all of it is on the disk.

Arrays go to safetensors, records to parquet; nothing is ever pickled.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from plures import tree
from plures.engine.identity import Identity
from plures.engine.record import Record, Scores, Visits
from plures.engine.state import State
from plures.errors import BadFile

if TYPE_CHECKING:
    import polars as pl

VERSION = 2
STATE, ABOUT, SCORES, INFO, PAST = "state.safetensors", "about.json", "scores.parquet", "info.parquet", "past.json"
OLD_PARTS = ("seed", "clients", "data")
"""What version 1 of a checkpoint says of its run that can still be compared."""
EARLIER = {"turns": "exchanges"}
"""What version 1 called otherwise."""


def save(folder: Path, state: State, record: Record, rows: list[Path], identity: Mapping[str, Any]) -> Path:
    """Write a checkpoint, then remove older ones; an error or a kill leaves the last one as it was."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"round-{int(state.round):08d}"
    for scrap in folder.glob("writing-*"):
        shutil.rmtree(scrap, ignore_errors=True)
    if final.exists():
        return final
    scratch = Path(tempfile.mkdtemp(prefix="writing-", dir=folder))
    try:
        save_file(_arrays(state), scratch / STATE)
        _write_record(scratch, record)
        for file in rows:
            shutil.copyfile(file, scratch / file.name)
        about = {"version": VERSION, "round": int(state.round), "identity": dict(identity)}
        (scratch / ABOUT).write_text(json.dumps(about))
        _to_disk(scratch)
        scratch.rename(final)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _to_disk(folder)
    for old in folder.glob("round-*"):
        if old != final:
            shutil.rmtree(old, ignore_errors=True)
    return final


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder, if there is one."""
    found = sorted(folder.glob("round-*"))
    return found[-1] if found else None


def round_of(path: Path, identity: Identity, *, but: tuple[str, ...] = (), old: bool = False) -> int:
    """The round a checkpoint was written after; another run's checkpoint is refused.

    Parts of the identity named in ``but`` may differ. ``old``: one of version 1, which says neither method nor model, is
    read if seed, clients and data are the same.
    """
    try:
        about = json.loads((path / ABOUT).read_text())
        version, done = about["version"], int(about["round"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BadFile(f"{path} is not a checkpoint: {error}") from error
    if version == 1 and old:
        said = {name: str(about.get(name)) for name in OLD_PARTS}
        Identity({name: identity.parts[name] for name in OLD_PARTS}).refuse_other(said, str(path))
        return done
    if version == 1:
        raise BadFile(f"{path} was written by version 0.1, which did not note method and model; use another folder")
    if version != VERSION or not isinstance(about.get("identity"), dict):
        raise BadFile(f"{path} has checkpoint version {version}; this release reads {VERSION}")
    identity.refuse_other(about["identity"], str(path), but=but)
    return done


def load(path: Path, template: Any) -> tuple[State, Record]:
    """The state and record of a checkpoint; ``template`` gives the structure."""
    try:
        arrays = _renamed(load_file(path / STATE))
    except (OSError, SafetensorError) as error:
        raise BadFile(f"{path} is damaged: {error}") from error
    if (path / "rows-0.bin").exists():
        template = template._replace(private=())
    wanted = tree.named(template)
    missing = [name for name in wanted if name not in arrays]
    if missing or len(wanted) != len(arrays):
        raise BadFile(f"{path} was written by another method or model (it has no '{[*missing, *wanted][0]}')")
    found = [_restored(arrays[name], leaf) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(template), found), _read_record(path)


def restore_rows(path: Path, folder: Path) -> None:
    """Copy a checkpoint's private rows back to the store's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in path.glob("rows-*.bin"):
        shutil.copyfile(file, folder / file.name)


def _arrays(state: State) -> dict[str, np.ndarray]:
    return {name: np.array(tree.plain(leaf), order="C") for name, leaf in tree.named(state).items()}


def _restored(array: np.ndarray, like: Any) -> Any:
    if not tree.is_key(like) and (array.shape != like.shape or array.dtype != like.dtype):
        raise BadFile(f"a checkpointed array is {array.dtype}{array.shape}, wanted {like.dtype}{like.shape}")
    return tree.from_plain(array, like)


def _write_record(folder: Path, record: Record) -> None:
    record.table().write_parquet(folder / SCORES)
    record.info_table().write_parquet(folder / INFO)
    past = [
        {**vars(one), "visits": one.visits.tolist(), "exchanges": one.exchanges.tolist()} for one in record.past
    ]
    (folder / PAST).write_text(json.dumps(past))


def _read_record(folder: Path) -> Record:
    import polars as pl

    try:
        blocks = list(_scores_in(pl.read_parquet(folder / SCORES)))
        info = tuple(pl.read_parquet(folder / INFO).iter_rows())
        past = json.loads((folder / PAST).read_text())
        return Record(tuple(blocks), info, tuple(_visits(_renamed(one)) for one in past))
    except (OSError, ValueError, KeyError, TypeError, StopIteration, pl.exceptions.PolarsError) as error:
        raise BadFile(f"the record in {folder} is damaged: {error}") from error


def _scores_in(scores: pl.DataFrame) -> Iterator[Scores]:
    for (round_, kind, split), part in scores.group_by(["round", "kind", "split"], maintain_order=True):
        by_metric = {str(name): one for (name,), one in part.group_by(["metric"], maintain_order=True)}
        uid = next(iter(by_metric.values()))["uid"].to_numpy()
        metrics = {name: one["value"].to_numpy() for name, one in by_metric.items()}
        yield Scores(int(str(round_)), str(kind), str(split), uid, metrics)


def _visits(found: dict[str, Any]) -> Visits:
    return Visits(**{**found, **{name: np.array(found[name]) for name in ("visits", "exchanges")}})


def _renamed(found: dict[str, Any]) -> dict[str, Any]:
    """What was written under a name that version 0.1 had for it."""
    return {EARLIER.get(name, name): value for name, value in found.items()}


def _to_disk(folder: Path) -> None:
    """Make sure names and contents survive a power cut."""
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
