"""The last state of a study's runs, kept so that a client's model can be made from it later."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from plures import tree
from plures.data import Federation
from plures.engine import Run, Settings, checkpoint, prepare
from plures.engine.identity import identify
from plures.engine.phases import spans_of
from plures.engine.state import private_shape, server_shape
from plures.errors import BadFile, MethodWarning
from plures.method import Method
from plures.study.disk import layout
from plures.study.disk.runs import IDENTITY, check_made, old_mark

MOST_BYTES = 256_000_000


def state_bytes(method: Method, num_clients: int, rounds: int) -> int:
    """Bytes of a run's last state, from shapes alone: the server's, and a row of every client."""
    chain = spans_of(method, rounds)
    server = server_shape(chain, num_clients)
    return tree.num_bytes(server) + num_clients * tree.num_bytes(private_shape(chain[-1].method, server))


def which_keep(
    methods: Mapping[str, Method], num_clients: int, rounds: int, keep: bool | None
) -> tuple[dict[str, bool], dict[str, list[str]]]:
    """By method, whether the last state of its runs is kept, and what is to be said of that.

    ``keep`` None keeps what is of moderate size.
    """
    if keep is not None:
        return dict.fromkeys(methods, keep), {name: [] for name in methods}
    sizes = {name: state_bytes(method, num_clients, rounds) for name, method in methods.items()}
    keeps = {name: size <= MOST_BYTES for name, size in sizes.items()}
    said = "models are not kept, they take {:,.0f} MB per run; --keep-models (keep_models = true) keeps them"
    notes = {name: [] if keeps[name] else [said.format(size / 1e6)] for name, size in sizes.items()}
    return keeps, notes


def states_bytes(out: Path) -> int:
    """Bytes on the disk of all the states that a study's folder keeps."""
    return sum(
        file.stat().st_size for file in out.glob(f"{layout.RUNS}/*/*/{layout.STATES}/**/*") if file.is_file()
    )


def drop_states(folder: Path) -> None:
    """Remove the checkpoints of a finished run whose state is not to be kept."""
    shutil.rmtree(folder / layout.STATES, ignore_errors=True)


def open_run(
    folder: Path,
    method: Method,
    federation: Federation,
    *,
    settings: Settings,
    unseen: Federation | None = None,
    tuned: str | None = None,
) -> Run:
    """The finished run in a folder of a study as it ended: its state is loaded, no round is played.

    ``settings`` are those the run was made with, ``tuned`` is the text that tuning chose for it. The data are needed because
    methods may train when they serve.
    """
    about = read_done(folder)
    mark = old_mark(method, federation, settings, tuned)
    try:
        check_made(folder, about, identify(method, federation, settings, unseen=unseen), mark)
    except BadFile as error:
        said = str(error).removesuffix("; use another folder")
        raise BadFile(
            f"{said}; a client's model is made from the kept state, the method and the data of then"
        ) from error
    last = checkpoint.latest(folder / layout.STATES)
    early = settings.patience is not None  # the run is finished, whenever that was
    if last is None or not (early or last.name == f"round-{settings.rounds:08d}"):
        raise BadFile(
            f"{folder} kept no models; run the study again with --keep-models (keep_models = true) into another folder"
        )
    there = replace(settings, checkpoint=folder / layout.STATES, checkpoint_every=None)
    with warnings.catch_warnings(action="ignore", category=MethodWarning):  # said when the run was made
        runner = prepare(method, federation, unseen=unseen, settings=there)
        return replace(runner, old_checkpoints=IDENTITY not in about).run()


def read_done(folder: Path) -> dict[str, Any]:
    """What a finished run says of itself."""
    file = folder / layout.DONE
    if not file.exists():
        raise BadFile(f"{folder} holds no finished run; finish the study with plures resume first")
    return layout.read_json(file)


def has_models(folder: Path) -> bool:
    """Whether a folder holds a finished run with its last state."""
    return (folder / layout.DONE).exists() and checkpoint.latest(folder / layout.STATES) is not None
