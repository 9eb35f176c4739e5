"""Cells of LG-Mix's comparison: federations whose clients see the same classes differently, methods, seeds.

Every method has as many settings to choose from; valid rows of the first seed choose. Test scores of the others are
thrown away unread. Fixed shares of LG-Mix train with the step size that was chosen for LG-Mix.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from papers.common.cells import read_cells
from plures.builders import build_method, build_model
from plures.data import Federation, load
from plures.engine import Run, Settings, prepare
from plures.method import Method
from plures.types import Model, Plan

SHIFTS = ("invert", "blur", "contrast", "background", "resolution", "rotation")
SHIFTED = "digits:num_clients={clients},num_groups=1,spread=0,seed={{seed}}|feature_shift:kinds=" + "+".join(SHIFTS)
ALONE, FEDAVG, FEDBN, LGMIX = "alone", "FedAvg", "FedBN", "LG-Mix"
PUBLISHED, PRIVATE = "LG-Mix, published", "LG-Mix, private norm"
TOLD = ("lam", "trace_own", "trace_global", "cosine")
# One client after another: for these networks a CPU is 1.5 to 5 times as fast as with clients side by side.
EXECUTOR = "chunked:1"


@dataclass(frozen=True)
class Part:
    """One federation: its data (``{seed}`` is filled in), model, plan, and the methods that are played (all unless said).

    ``every`` so many rounds every client is looked at.
    """

    name: str
    title: str
    data: str
    model: str
    batch: int
    rounds: int
    lrs: tuple[float, ...]
    every: int
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] | None = None
    domains: tuple[str, ...] = ()


class Way(NamedTuple):
    """A method of the comparison: its texts to choose from, the way whose step size it takes, its norm policy."""

    texts: tuple[str, ...]
    follows: str = ""
    norm: str = "share"


class Setting(NamedTuple):
    """A step size and a method's text."""

    lr: float
    text: str


Name: TypeAlias = tuple[str, str, int]
"""Part, method and seed of a cell."""


@dataclass(frozen=True)
class Cell:
    """One run of the chosen setting: every client's accuracy, and what the run cost and told.

    Clients are in the order of their domains. ``tried`` are the settings with their valid accuracies, ``path`` what LG-Mix
    tells of each client round by round.
    """

    part: str
    method: str
    seed: int
    lr: float
    text: str
    accuracy: list[float]
    domain: list[int]
    valid: float
    megabytes: float
    seconds: float
    tried: list[list[Any]] = field(default_factory=list)
    path: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> Name:
        """What no two cells share."""
        return self.part, self.method, self.seed


WAYS: Mapping[str, Way] = {
    ALONE: Way(("local_only",)),
    FEDAVG: Way(("fedavg",)),
    "FedProx": Way(("fedprox:lam=0.1", "fedprox:lam=1")),
    FEDBN: Way(("fedbn",)),
    "APFL": Way(("apfl",)),
    "Ditto": Way(("ditto:lam=0.1", "ditto:lam=1")),
    "FedRep": Way(("fedrep",)),
    LGMIX: Way(("lgmix",)),
    PUBLISHED: Way(("lgmix:published=true",)),
    PRIVATE: Way(("lgmix:norm=local",)),
    "FedAvg, own statistics": Way(("fedavg",), FEDAVG, "recalibrate"),
    "LG-Mix, private statistics": Way(("lgmix:norm=affine",), PRIVATE),
    "LG-Mix, lam 0.25": Way(("lgmix:lam=0.25",), LGMIX),
    "LG-Mix, lam 0.5": Way(("lgmix:lam=0.5",), LGMIX),
    "LG-Mix, lam 0.75": Way(("lgmix:lam=0.75",), LGMIX),
    "LG-Mix, lam by valid rows": Way(("lgmix:lam=valid",), LGMIX),
}
"""What is compared; those that follow another come after it."""

FEW = (ALONE, FEDAVG, FEDBN, LGMIX, PUBLISHED, PRIVATE, "FedAvg, own statistics")


def shifted(clients: int, **changes: Any) -> Part:
    """Digits of 8x8 pixels under six shifts."""
    part = Part(
        f"shift-{clients}",
        f"digits under six shifts, {clients} clients",
        SHIFTED.format(clients=clients) + ",seed={seed}",
        "mlp_norm",
        batch=10 if clients > 6 else 20,
        rounds=60,
        lrs=(0.03, 0.1, 0.2, 0.4),
        every=3,
        domains=SHIFTS,
    )
    return replace(part, **changes)


def by_domain(per_domain: int, rows: int, **changes: Any) -> Part:
    """MNIST, MNIST-M and USPS, a few clients each."""
    return replace(
        Part(
            f"domains-{3 * per_domain}",
            f"MNIST, MNIST-M and USPS, {3 * per_domain} clients",
            f"digit-domains:rows={rows},clients_per_domain={per_domain},seed={{seed}}",
            "digits_cnn_small",
            batch=20 if per_domain == 1 else 10,
            rounds=12,
            lrs=(0.05, 0.2),
            every=2,
            domains=("mnist", "mnist-m", "usps"),
        ),
        **changes,
    )


def people(**changes: Any) -> Part:
    """Thirty people with phones."""
    part = Part(
        "har-30", "HAR, 30 people", "har:inputs=raw", "har_cnn", batch=16, rounds=6, lrs=(0.05, 0.2), every=2
    )
    return replace(part, **changes)


def settings(part: Part, way: Way) -> list[Setting]:
    """What a way may choose from: as many settings for all, step sizes or fewer of them with two strengths."""
    number = len(part.lrs) // len(way.texts)
    first = (len(part.lrs) - number) // 2
    return [Setting(lr, text) for lr in part.lrs[first : first + number] for text in way.texts]


def best(tried: Sequence[tuple[Setting, float]]) -> Setting:
    """The setting with the best valid accuracy, the first of equals.

    >>> best([(Setting(0.1, "fedavg"), 0.5), (Setting(0.2, "fedavg"), 0.7)]).lr
    0.2
    """
    return max(tried, key=lambda one: one[1])[0]


def play_all(
    parts: Sequence[Part], *, known: Collection[Name] = (), chosen: Mapping[tuple[str, str], Setting] | None = None
) -> Iterator[Cell]:
    """All cells but those that are ``known``, one after another; ``chosen`` are settings of known cells."""
    picked = dict(chosen or {})
    for part in parts:
        wanted = [label for label in WAYS if part.methods is None or label in part.methods]
        missing = [label for label in wanted if any((part.name, label, seed) not in known for seed in part.seeds)]
        if not missing:
            continue
        federations = {seed: load(part.data.format(seed=seed)) for seed in part.seeds}
        model = build_model(part.model, federations[part.seeds[0]])
        for label in missing:
            for cell in _played(part, label, federations, model, picked):
                if cell.name not in known:
                    yield cell
            # Compiled programs take places in the memory map, of which a process has only so many.
            jax.clear_caches()  # type: ignore[no-untyped-call]


def _played(
    part: Part,
    label: str,
    federations: Mapping[int, Federation],
    model: Model,
    picked: dict[tuple[str, str], Setting],
) -> Iterator[Cell]:
    """The cells of one method: the first seed for every setting, the others for the chosen one."""
    way, first = WAYS[label], part.seeds[0]
    leader = picked.get((part.name, way.follows))
    tries = settings(part, way) if leader is None else [Setting(leader.lr, text) for text in way.texts]
    built = {setting: build(part, way, setting, model) for setting in tries}
    found = {
        setting: play((part.name, label, first), setting, built[setting], federations[first], part)
        for setting in tries
    }
    one = best([(setting, cell.valid) for setting, cell in found.items()])
    picked[part.name, label] = one
    yield replace(found[one], tried=[[*setting, cell.valid] for setting, cell in found.items()])
    for seed in part.seeds[1:]:
        yield play((part.name, label, seed), one, built[one], federations[seed], part)


def build(part: Part, way: Way, setting: Setting, model: Model) -> Method:
    """The method of a setting."""
    plan = Plan(epochs=1, batch=part.batch, lr=setting.lr)
    return build_method(setting.text, model, plan=plan, norm=way.norm)


def play(name: Name, setting: Setting, method: Method, federation: Federation, part: Part) -> Cell:
    """One run, scored on every client's own test rows."""
    began = time.perf_counter()
    how = Settings(rounds=part.rounds, seed=name[2], eval_every=part.every, executor=EXECUTOR)
    done = prepare(
        replace(
            method,
            views=replace(method.views, report=None, forecast=None),
        ),
        federation,
        settings=how,
    ).run()
    domain = np.arange(federation.num_clients) if federation.domain is None else federation.domain
    order = np.argsort(domain, kind="stable")
    valid, test = (done.record.latest("personal", split) for split in ("valid", "test"))
    assert valid is not None
    assert test is not None
    return Cell(
        *name,
        setting.lr,
        setting.text,
        _plain(test.metrics["accuracy"][order]),
        domain[order].tolist(),
        float(np.mean(valid.metrics["accuracy"])),
        done.num_bytes / 1e6 / federation.num_clients,
        time.perf_counter() - began,
        path=told(done, order),
    )


def told(done: Run, order: NDArray[Any]) -> list[dict[str, Any]]:
    """What LG-Mix tells of every client at each evaluation; nothing of other methods."""
    facts = [one for one in done.record.scores if one.kind == "facts" and set(TOLD) <= set(one.metrics)]
    return [{"round": one.round, **{name: _plain(one.metrics[name][order]) for name in TOLD}} for one in facts]


def _plain(values: NDArray[Any]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def loaded(file: Path) -> list[Cell]:
    """The cells of a file."""
    return read_cells(file, lambda row: Cell(**row))


Tell: TypeAlias = Callable[[str], None]
