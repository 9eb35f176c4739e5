"""The last state of a study's runs, kept so that a client's model can be made from it later."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from plures import tree
from plures.data import Federation
from plures.engine import Run, Settings, checkpoint, prepare
from plures.engine.state import Phase, first_state, next_state, phases, private_shape
from plures.errors import BadFile, MethodWarning
from plures.study.folder import tuned_mark
from plures.types import Method, Tree

STATES = "checkpoint"
MOST_BYTES = 256_000_000


def server_shape(chain: list[Phase], num_clients: int) -> Tree:
    """The shapes of the server state with which the last phase of a chain begins."""

    def begun() -> Tree:
        key = jax.random.key(0)
        state = first_state(chain[0].method, key, num_clients, with_rows=False)
        for phase in chain[1:]:
            state = next_state(phase, key, state, with_rows=False)
        return state.server

    return jax.eval_shape(begun)


def state_bytes(method: Method, num_clients: int, rounds: int) -> int:
    """Bytes of a run's last state, from shapes alone: the server's, and a row of every client."""
    chain = phases(method, rounds)
    server = server_shape(chain, num_clients)
    return tree.num_bytes(server) + num_clients * tree.num_bytes(private_shape(chain[-1].method, server))


def keeping_all(
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


def kept_bytes(out: Path) -> int:
    """Bytes on the disk of all the states that a study's folder keeps."""
    return sum(file.stat().st_size for file in out.glob(f"runs/*/*/{STATES}/**/*") if file.is_file())


def drop_states(folder: Path) -> None:
    """Remove the checkpoints of a finished run whose state is not to be kept."""
    shutil.rmtree(folder / STATES, ignore_errors=True)


def kept_run(
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
    about = done_of(folder)
    _check_data(about, folder, federation)
    if tuned is not None and f"{tuned_mark(tuned)}, data " not in str(about.get("mark")):
        raise BadFile(
            f"the run in {folder} was made with another choice of tuning than {tuned} ({about.get('mark')}); "
            "run the study again into another folder"
        )
    at_the_end = f"round-{settings.rounds:08d}"
    if not (folder / STATES / at_the_end).is_dir():
        raise BadFile(
            f"{folder} kept no models; run the study again with --keep-models (keep_models = true) into another folder"
        )
    there = replace(settings, checkpoint=folder / STATES, checkpoint_every=None)
    hidden = None if method.transductive else unseen
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MethodWarning)  # said when the run was made
        return prepare(method, federation, unseen=hidden, settings=there).run()


def done_of(folder: Path) -> dict[str, Any]:
    """What a finished run says of itself."""
    file = folder / "done.json"
    if not file.exists():
        raise BadFile(f"{folder} holds no finished run; finish the study with plures resume first")
    try:
        about: dict[str, Any] = json.loads(file.read_text())
    except ValueError as error:
        raise BadFile(f"{file} is damaged: {error}") from error
    return about


def has_models(folder: Path) -> bool:
    """Whether a folder holds a finished run with its last state."""
    return (folder / "done.json").exists() and checkpoint.latest(folder / STATES) is not None


def _check_data(about: dict[str, Any], folder: Path, federation: Federation) -> None:
    before = str(about.get("mark")).rpartition(", data ")[2]
    if before != federation.fingerprint:
        raise BadFile(
            f"the data changed since the run in {folder} was made (fingerprint {before}, now "
            f"{federation.fingerprint}); a client's model is made from the kept state and the data of then"
        )
