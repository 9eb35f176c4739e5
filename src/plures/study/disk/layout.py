"""The schema of a study's folder: every name of a file, a folder and a column that is written or read, in one place.

    study.json  study.toml  command.txt  data.json        what was asked for, and of which data
    clients.parquet  clients.csv  leaderboard.csv  summary.json  overview.png  report.html
    advice.json  decisions.parquet      of other commands than a comparison
    references.parquet     what is not federated: trivial predictors, lines and trees
    runs/METHOD/seed-N/    record, info, clients, newcomers (.parquet), bytes.csv, done.json, checkpoint/
    tuning/                steps.json, trials.json, trials.parquet, chosen.json
    models/METHOD/seed-N/CLIENT/    model.safetensors, model.json

A folder with several studies has ``variants.json``, ``variants.csv`` and ``variants.parquet``, and a folder for each study.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from plures.errors import BadFile

STUDY, RESOLVED, COMMAND, DATA, SUMMARY = "study.json", "study.toml", "command.txt", "data.json", "summary.json"
CLIENTS, CLIENTS_CSV, LEADERBOARD, OVERVIEW = "clients.parquet", "clients.csv", "leaderboard.csv", "overview.png"
PAGE, ADVICE, DECISIONS = "report.html", "advice.json", "decisions.parquet"
RUNS, RECORD, INFO, NEWCOMERS, DONE = "runs", "record.parquet", "info.parquet", "newcomers.parquet", "done.json"
REFERENCES, BYTES = "references.parquet", "bytes.csv"
STATES = "checkpoint"
TUNING, TRIALS, TRIALS_TABLE, CHOSEN, STEPS = "tuning", "trials.json", "trials.parquet", "chosen.json", "steps.json"
MODELS, WEIGHTS, ABOUT = "models", "model.safetensors", "model.json"
VARIANTS, VARIANTS_CSV, VARIANTS_TABLE = "variants.json", "variants.csv", "variants.parquet"

Parsed = TypeVar("Parsed")

HEADER = "plures"
"""The key under which a table of a run says what it is of."""

ATTACKER = "attacker"
"""The column of clients that says who attacks; only there under attack."""

RENAMED = {"byzantine": ATTACKER}
"""Columns that version 0.1 called otherwise."""

LONGEST = 200
"""Characters of a folder's name; file systems take 255."""


def score_column(metric: str, *, split: str = "test", kind: str = "personal") -> str:
    """The column of a client's score in a table of clients.

    >>> score_column("accuracy")
    'personal_test_accuracy'
    """
    return f"{kind}_{split}_{metric}"


REQUIRED = (
    "uid", "name", "seen", "train_rows", "valid_rows", "test_rows", "bytes_down", "bytes_up", score_column("loss"),
)  # fmt: skip
"""What the table of clients of a run must have; "group" is empty where it has none."""


def metric_in(columns: Sequence[str]) -> str:
    """The metric of a table whose header does not say it: not the loss, if there is another one."""
    start = score_column("")
    found = [name.removeprefix(start) for name in columns if name.startswith(start)]
    if not found:
        raise BadFile("the runs have no test scores; they were stopped early, or written by another program")
    return next((name for name in found if name != "loss"), "loss")


def run_folder(out: Path, method: str, seed: int) -> Path:
    """Where one run of a study is kept: different labels have different folders, whatever is in them and however long they are."""
    name = quote(method, safe="=,+")
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 9]}~{zlib.crc32(method.encode()):08x}"
    return out / RUNS / undotted(name) / f"seed-{seed}"


def undotted(name: str) -> str:
    """A folder's name that is not one of those which lead elsewhere: ``.`` and ``..``."""
    return name if name.strip(".") else name.replace(".", "%2E")


def label_of(folder: Path) -> str:
    """The label of the method that a folder of runs is named for; the beginning of it where it is long."""
    return unquote(folder.name)


def count_finished(out: Path) -> int:
    """How many runs of a study are finished."""
    return len(list(out.glob(f"{RUNS}/*/*/{DONE}")))


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings by dotted names, those in tables too.

    >>> dict(flat({"rounds": 3, "plan": {"lr": 0.1}}))
    {'rounds': 3, 'plan.lr': 0.1}
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", one) for inner, one in flat(value))
        else:
            yield str(name), value


def read_json(file: Path) -> dict[str, Any]:
    """The values by name in a file that a study left."""

    def by_name(found: Any) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise TypeError("it should hold settings by name")
        return found

    return read_as(by_name, file)


def read_as(parse: Callable[[Any], Parsed], file: Path, *, advice: str = "") -> Parsed:
    """What ``parse`` makes of a file that a study left; a damaged one is refused, with ``advice``."""
    try:
        return parse(json.loads(file.read_text()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadFile(f"{file} is damaged: {error}{advice}") from error


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    """Write values as a whole or not at all: a reader never sees half of them."""
    write_bytes(file, json.dumps(values, indent=2).encode())


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file as a whole or not at all; its folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f"{file.name}.tmp")
    scratch.write_bytes(content)
    scratch.replace(file)
