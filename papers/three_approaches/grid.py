"""{FedAvg, Agnostic, HypCluster} x {none, FineTune, Dapper, Mapper} on writers, seen and unseen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from papers.three_approaches.follow import follow
from plures.aggregate.averaging import Averaging
from plures.data import Federation, load
from plures.engine import Run, Settings, prepare
from plures.errors import BadFile
from plures.method import Method
from plures.methods.agnostic import agnostic
from plures.methods.clustering.hypcluster import hypcluster
from plures.methods.clustering.starting_centers import ClusterStart
from plures.methods.fedavg import fedavg
from plures.models.cnn import emnist_cnn
from plures.personalize.dapper import GRID, dapper
from plures.personalize.finetune import finetune
from plures.personalize.mapper import mapper
from plures.types import Plan
from plures.wrap.fold_tuning import FoldTuning

BASES = ("FedAvg", "Agnostic", "HypCluster")
PERSONALIZERS = ("initial", "FineTune", "Dapper", "Mapper")
EXTRA = "Dapper, nothing sent"

# Tables 2 and 3 of the paper: EMNIST-62, 2,500 seen and 900 unseen writers, accuracy in percent.
PAPER = {
    "seen": {
        "FedAvg": (84.3, 90.0, 90.1, 90.0),
        "Agnostic": (84.6, 89.9, 90.0, 89.9),
        "HypCluster": (89.1, 90.2, 90.3, 90.1),
    },
    "unseen": {
        "FedAvg": (84.1, 90.3, 90.3, 90.2),
        "Agnostic": (84.5, 90.1, 90.2, 90.1),
        "HypCluster": (88.8, 90.1, 90.1, 89.9),
    },
}


@dataclass(frozen=True)
class Scale:
    """How much of the experiment is played."""

    rounds: int
    cohort: int
    seen: int | None  # writers, None for all
    unseen: int | None
    lams: tuple[float, ...]
    folds: int
    warm: int
    candidates: int
    starts: int
    seeds: int
    extra: bool


SCALES = {
    "small": Scale(20, 5, 10, 5, (0.0, 0.5, 1.0), 2, 5, 4, 1, 1, False),
    "full": Scale(1000, 20, None, None, GRID, 5, 100, 16, 4, 3, True),
}


@dataclass(frozen=True)
class Cell:
    """One entry of the grid: a number per client, seen ones first."""

    accuracy: np.ndarray
    loss: np.ndarray
    facts: Mapping[str, np.ndarray]
    seconds: float


@dataclass(frozen=True)
class Played:
    """The grid for one seed."""

    cells: Mapping[tuple[str, str], Cell]
    seen: np.ndarray  # (clients,) whether the client took part in training
    test_rows: np.ndarray
    students: np.ndarray
    training: Mapping[str, float]  # seconds per base
    examples: Mapping[str, float]  # rows trained on, per base
    device: str
    scale: str  # the settings it was played with


def writers(scale: Scale) -> tuple[Federation, Federation]:
    """The writers that take part and those set apart; at the small scale the first few of each."""
    seen, unseen = load("mnist-writers").hold_out()
    few = seen.take(np.arange(scale.seen or seen.num_clients))
    apart = unseen.take(np.arange(scale.unseen or unseen.num_clients))
    return _counted_from(few, 0), _counted_from(apart, few.num_clients)


def _counted_from(federation: Federation, first: int) -> Federation:
    return replace(federation, uid=first + np.arange(federation.num_clients))


def bases(scale: Scale, shape: tuple[int, ...]) -> dict[str, Method]:
    """The three initial models with the paper's settings: batch 20, one epoch, server momentum 0.9."""
    model = emnist_cnn(shape, 10)
    return {
        "FedAvg": fedavg(model, plan=Plan(lr=0.05), averaging=Averaging(momentum=0.9)),
        "Agnostic": agnostic(model, num_domains=2, plan=Plan(lr=0.05), domain_lr=0.05, momentum=0.9),
        "HypCluster": hypcluster(
            model,
            num_clusters=2,
            plan=Plan(lr=0.03),
            averaging=Averaging(momentum=0.9),
            start=ClusterStart(warm=scale.warm, num_candidates=scale.candidates, num_starts=scale.starts, race=20),
        ),
    }


def personalizers(scale: Scale, federation: Federation) -> dict[str, Callable[[Method], Method]]:
    """The ways to serve a base, with the paper's settings: the sets are public, so rows may be shared."""
    search: dict[str, Any] = {"lams": scale.lams, "folds": scale.folds, "epochs": 1, "lr": 0.04}
    found: dict[str, Callable[[Method], Method]] = {
        "FineTune": lambda base: finetune(base, tuning=FoldTuning(epochs=5, lr=0.01)),
        "Dapper": lambda base: dapper(
            base, source="raw", ratio=5, allow_raw_sharing=True, example=federation.example, **search
        ),
        "Mapper": lambda base: mapper(base, epochs=1, lr=0.03, folds=scale.folds),
    }
    if scale.extra:
        found[EXTRA] = lambda base: dapper(base, source="generative", **search)
    return found


@dataclass(frozen=True, eq=False)
class Grid:
    """The writers and all methods, built once: seeds share what was compiled."""

    scale: Scale
    seen: Federation
    unseen: Federation
    methods: Mapping[str, Mapping[str, Method]]  # base -> way to serve it


def build(scale: Scale) -> Grid:
    """Everything the experiment needs."""
    seen, unseen = writers(scale)
    ways = personalizers(scale, seen)
    methods = {
        name: {"initial": base, **{way: personal(base) for way, personal in ways.items()}}
        for name, base in bases(scale, seen.shape).items()
    }
    return Grid(scale, seen, unseen, methods)


def play(grid: Grid, seed: int, tell: Callable[[str], None]) -> Played:
    """Every cell for one seed: each base is trained once and served in all ways."""
    scale, cells = grid.scale, {}
    training, examples = {}, {}
    settings = Settings(rounds=scale.rounds, cohort=scale.cohort, seed=seed, eval_every=scale.rounds)
    for name, ways in grid.methods.items():
        done = None
        for way, method in ways.items():
            began = time.perf_counter()
            if done is None:
                run = done = prepare(method, grid.seen, unseen=grid.unseen, settings=settings).run()
                training[name], examples[name] = time.perf_counter() - began, _rows_trained(done)
            else:
                run = follow(done, method)
            cells[name, way] = _cell(run, time.perf_counter() - began)
            tell(f"  seed {seed}, {name}, {way}: {_said(cells[name, way], grid.seen.num_clients)}")
    everyone = run.runner.everyone
    students = np.zeros(everyone.num_clients) if everyone.group is None else everyone.group
    seen = everyone.uid < grid.seen.num_clients
    device = str(jax.devices()[0].device_kind)
    rows = everyone.count[:, 2]
    return Played(cells, seen, rows, np.asarray(students), training, examples, device, repr(scale))


def _rows_trained(done: Run) -> float:
    """How many examples passed through local training, one epoch each."""
    phases = [*done.record.past, done.runner.visits(done.runner.phases[-1], done.state)]
    rows = done.runner.seen.count[:, 0]
    return float(sum((phase.visits * rows).sum() for phase in phases))


def _cell(run: Run, seconds: float) -> Cell:
    scores, told = run.record.latest("personal", "test"), run.record.latest("facts", "served")
    assert scores is not None
    facts = {} if told is None else dict(told.metrics)
    return Cell(scores.metrics["accuracy"], scores.metrics["loss"], facts, seconds)


def _said(cell: Cell, num_seen: int) -> str:
    seen, unseen = (100 * np.nanmean(part) for part in (cell.accuracy[:num_seen], cell.accuracy[num_seen:]))
    return f"seen {seen:.2f} %, unseen {unseen:.2f} %, {cell.seconds:.1f} s"


def save(played: Played, path: Path) -> None:
    """The grid as one file."""
    arrays: dict[str, Any] = {
        "seen": played.seen,
        "test_rows": played.test_rows,
        "students": played.students,
        "device": np.array(played.device),
        "scale": np.array(played.scale),
    }
    for base in BASES:
        arrays[f"training/{base}"] = played.training[base]
        arrays[f"examples/{base}"] = played.examples[base]
    for (base, way), cell in played.cells.items():
        mark = f"{base}/{way}"
        arrays.update(
            {f"{mark}/accuracy": cell.accuracy, f"{mark}/loss": cell.loss, f"{mark}/seconds": cell.seconds}
        )
        arrays.update({f"{mark}/fact {name}": values for name, values in cell.facts.items()})
    np.savez_compressed(path, **arrays)


def opened(path: Path, scale: Scale) -> Played:
    """A grid that was saved; one that was played with other settings is refused."""
    with np.load(path) as file:
        found = {name: file[name] for name in file.files}
    if str(found.get("scale")) != repr(scale):
        raise BadFile(f"{path} holds a grid that was played with other settings; use another folder")
    cells = {}
    for mark in (name.rpartition("/")[0] for name in found if name.endswith("/accuracy")):
        base, _, way = mark.partition("/")
        facts = {
            name.partition("fact ")[2]: values for name, values in found.items() if name.startswith(f"{mark}/fact ")
        }
        cells[base, way] = Cell(
            found[f"{mark}/accuracy"], found[f"{mark}/loss"], facts, float(found[f"{mark}/seconds"])
        )
    training, examples = (
        {base: float(found[f"{kind}/{base}"]) for base in BASES} for kind in ("training", "examples")
    )
    return Played(
        cells,
        found["seen"],
        found["test_rows"],
        found["students"],
        training,
        examples,
        str(found["device"]),
        str(found["scale"]),
    )
