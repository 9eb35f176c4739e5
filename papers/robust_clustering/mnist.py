"""Federated-Clustering on MNIST: rotated images and private labels, attackers, and the table of attacks and defences.

Nothing here needs the tables of a study, so that it runs wherever the numerical core does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from papers.common.cells import read_cells
from plures.aggregate.averaging import Averaging
from plures.attacks.attackers import attacker_uids
from plures.data import Federation, from_arrays
from plures.data.partition.images import rotate
from plures.data.sets.mnist_writers import mnist_writers
from plures.engine import Run, Settings, prepare
from plures.keys import Purpose, derive, root
from plures.method import Attack, Method
from plures.methods.clustering.hypcluster import hypcluster
from plures.methods.clustering.ifca import ifca
from plures.methods.clustering.oracle import oracle
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.methods.local_only import local_only
from plures.methods.threshold.federated_clustering import ComparisonOptions, federated_clustering
from plures.methods.threshold.gradients import ThresholdOptions
from plures.methods.threshold.momentum_clustering import MomentumOptions, momentum_clustering
from plures.models.mlp import mlp
from plures.registry import CHANNELS
from plures.study.statistics import worst_decile
from plures.types import Plan

GROUPS = 4
SHARE = 0.2  # of all clients are attackers
HIDDEN = 200
PLAN = Plan(epochs=1, batch=32, lr=0.1)
WITH_ATTACKERS = ("table", "attackers")
KINDS = ("private label", "rotation")
INSIDE = "geometric_median"
ALONE = "alone"
SUBSET = 25  # clients that are compared with each other in the runs round by round, as in the published code

ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "large_noise": {},
    "sign_flip": {},
    "label_flip": {},
    "alie": {},
    "ipm": {},
    "mimic": {},
    "edge": {"num_near": 10, "direction": "against"},
    "nan": {},
}


@dataclass(frozen=True)
class Scale:
    """How large the MNIST parts are: clients, rows of each (train, valid, test), rounds, seeds."""

    clients: int
    rows: tuple[int, int, int]
    rounds: int
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """What is played of a part: how large, and which methods and attacks, all of them unless said."""

    scale: Scale
    methods: tuple[str, ...] | None = None
    attacks: tuple[str, ...] | None = None


def _small(clients: int) -> Scale:
    return Scale(clients, (64, 20, 40), 12, (0,))


PARTS: Mapping[str, Mapping[str, Part]] = {
    "small": {
        "private label": Part(_small(16), (ALONE, "FedAvg", "Federated-Clustering", "known groups")),
        "rotation": Part(_small(16), ("FedAvg", "Federated-Clustering")),
        "attackers": Part(_small(15), ("FedAvg", "Federated-Clustering"), ("large_noise",)),
        "table": Part(
            _small(15),
            ("Federated-Clustering, mean", "FedAvg, mean", "FedAvg, median"),
            ("none", "large_noise"),
        ),
    },
    "full": {
        "private label": Part(Scale(60, (200, 40, 100), 60, (0, 1))),
        "rotation": Part(Scale(60, (200, 40, 100), 60, (0, 1))),
        "attackers": Part(Scale(100, (200, 40, 100), 60, (0,))),
        "table": Part(Scale(50, (200, 40, 100), 60, (0, 1, 2))),
    },
}
Name: TypeAlias = tuple[str, str, str, int]
"""Part, method, attack and seed of a cell."""


@dataclass(frozen=True)
class Cell:
    """A method under an attack with one seed: scores of honest clients on their test rows."""

    part: str
    method: str
    attack: str
    seed: int
    mean: float
    worst_decile: float
    recovery: float | None  # adjusted Rand index of the clusters of honest clients
    curve: tuple[float, ...]  # mean on valid rows, evaluation by evaluation
    megabytes: float
    seconds: float

    @property
    def name(self) -> Name:
        """What no two cells share."""
        return self.part, self.method, self.attack, self.seed


@cache
def _pictures() -> tuple[NDArray[Any], NDArray[Any]]:
    federation = mnist_writers()
    return federation.x, federation.y


def dealt(kind: str, scale: Scale, seed: int, *, with_attackers: bool) -> Federation:
    """Equal shares of MNIST in four groups: group g turns its images by g quarters, or calls digit c (c + g) mod 10.

    The honest clients are divided evenly, and so are the attackers among them.
    """
    x, y = _pictures()
    number, each = scale.clients, sum(scale.rows)
    order = np.asarray(jax.random.permutation(derive(root(seed), Purpose.DATA), len(y)))[: number * each]
    attacker = np.zeros(number, bool)
    if with_attackers:
        attacker[attacker_uids(number, share=SHARE)] = True
    group = np.where(attacker, np.cumsum(attacker) - 1, np.cumsum(~attacker) - 1) % GROUPS
    owner = np.repeat(np.arange(number), each)
    images, labels = x[order], y[order].copy()
    for g in range(1, GROUPS):
        mine = group[owner] == g
        if kind == "rotation":
            images[mine] = rotate(images[mine], 90.0 * g)
        else:
            labels[mine] = (labels[mine] + g) % 10
    split = np.tile(np.repeat(["train", "valid", "test"], scale.rows), number)
    planted = {str(uid): int(g) for uid, g in enumerate(group)}
    return from_arrays(images, labels, owner, split=split, num_classes=10, group=planted, title=f"MNIST, {kind}")


def honest(num_clients: int, *, with_attackers: bool) -> NDArray[np.bool_]:
    """(clients,) who never attacks: they are scored, in the run without an attack too."""
    attackers: Sequence[int] | NDArray[Any] = attacker_uids(num_clients, share=SHARE) if with_attackers else ()
    return ~np.isin(np.arange(num_clients), attackers)


def attack_of(name: str) -> Attack | None:
    """An attack by the same clients in every part and seed."""
    if name == "none":
        return None
    found: Attack = CHANNELS[name].factory(share=SHARE, **ATTACKS[name])
    return found


def table_methods(num_clients: int) -> dict[str, Method]:
    """What the table of attacks and defences compares."""
    model = mlp((28, 28), 10, hidden=(HIDDEN,))
    attackers = round(SHARE * num_clients)
    rules = {
        "mean": "mean",
        "median": "median",
        "trimmed mean": f"trimmed_mean:share={SHARE}",
        "Krum": f"krum:num_byzantine={attackers}",
        "Multi-Krum": f"multi_krum:num_byzantine={attackers}",
        "geometric median": "geometric_median",
        "centered clipping": "centered_clip",
        "bucketing": "bucketing",
    }
    found = {
        f"FedAvg, {name}": fedavg(model, plan=PLAN, averaging=Averaging(aggregate=rule))
        for name, rule in rules.items()
    }
    for word, rule in (("mean", "mean"), ("robust", INSIDE)):
        center = "center" if word == "mean" else rule
        found[f"Ditto, {word}"] = ditto(model, plan=PLAN, averaging=Averaging(aggregate=rule))
        found[f"HypCluster, {word}"] = hypcluster(
            model, plan=PLAN, num_clusters=GROUPS, averaging=Averaging(aggregate=rule)
        )
        found[f"Federated-Clustering, {word}"] = federated_clustering(
            model, plan=PLAN, clustering=_clustering(), comparison=ComparisonOptions(aggregate=center)
        )
        found[f"Momentum-Clustering, {word}"] = momentum_clustering(
            model,
            plan=PLAN,
            num_clusters=GROUPS,
            clustering=_clustering(),
            options=MomentumOptions(alpha=0.3, aggregate=center),
        )
        found[f"known groups, {word}"] = oracle(
            model, plan=PLAN, num_groups=GROUPS, averaging=Averaging(aggregate=rule)
        )
    # A cluster more than there are groups: attackers that all send the same need one too.
    found[f"Momentum-Clustering, K = {GROUPS + 1}"] = momentum_clustering(
        model, plan=PLAN, num_clusters=GROUPS + 1, clustering=_clustering(), options=MomentumOptions(alpha=0.3)
    )
    found[ALONE] = local_only(model, plan=PLAN)
    return found


def _clustering() -> ThresholdOptions:
    """As many as are honest in a group: a share of (1 - SHARE) / GROUPS of all clients."""
    return ThresholdOptions(radius=f"quantile:q={(1 - SHARE) / GROUPS}")


def first_methods() -> dict[str, Method]:
    """What is compared without attackers, as in Table 1 of the paper, with baselines as they should be."""
    model = mlp((28, 28), 10, hidden=(HIDDEN,))
    return {
        ALONE: local_only(model, plan=PLAN),
        "FedAvg": fedavg(model, plan=PLAN),
        "Ditto": ditto(model, plan=PLAN, lam=1.0),
        "IFCA": ifca(model, plan=PLAN, num_clusters=GROUPS),
        "HypCluster": hypcluster(model, plan=PLAN, num_clusters=GROUPS),
        "Federated-Clustering": federated_clustering(
            model, plan=PLAN, clustering=ThresholdOptions(radius="quantile:q=0.2")
        ),
        "Federated-Clustering, M = 3, groups": federated_clustering(
            model,
            plan=PLAN,
            clustering=ThresholdOptions(radius="quantile:q=0.2", max_iter=3, tol=0.0),
            comparison=ComparisonOptions(groups=5),
        ),
        "Momentum-Clustering": momentum_clustering(
            model,
            plan=PLAN,
            num_clusters=GROUPS,
            clustering=ThresholdOptions(radius="quantile:q=0.2"),
            options=MomentumOptions(alpha=0.3),
        ),
        "known groups": oracle(model, plan=PLAN, num_groups=GROUPS),
    }


def attacker_methods(num_clients: int) -> dict[str, Method]:
    """What is compared round by round under two attacks, as in Figure 6 of the paper."""
    model, groups = mlp((28, 28), 10, hidden=(HIDDEN,)), max(num_clients // SUBSET, 1)
    return {
        "FedAvg": fedavg(model, plan=PLAN),
        "FedAvg, geometric median": fedavg(model, plan=PLAN, averaging=Averaging(aggregate="geometric_median")),
        "Federated-Clustering": federated_clustering(
            model, plan=PLAN, clustering=_clustering(), comparison=ComparisonOptions(groups=groups)
        ),
        "known groups": oracle(model, plan=PLAN, num_groups=GROUPS),
    }


def methods_of(part: str, num_clients: int) -> dict[str, Method]:
    """What is compared in a part."""
    if part == "table":
        return table_methods(num_clients)
    return attacker_methods(num_clients) if part == "attackers" else first_methods()


def play(
    part: str,
    name: str,
    method: Method,
    federation: Federation,
    attack: str,
    seed: int,
    rounds: int,
    every: int = 0,
) -> Cell:
    """One run, scored on the honest clients; ``every`` so many rounds for the curve."""
    lie = attack_of(attack)
    settings = Settings(
        rounds=rounds, seed=seed, channels=() if lie is None else (lie,), eval_every=every or rounds
    )
    began = time.perf_counter()
    quiet = replace(
        method,
        views=replace(method.views, report=None, forecast=None),
    )
    done = prepare(quiet, federation, settings=settings).run()
    fine = honest(federation.num_clients, with_attackers=part in WITH_ATTACKERS)
    return cell(part, name, attack, seed, done, fine, time.perf_counter() - began)


def cell(part: str, name: str, attack: str, seed: int, done: Run, fine: NDArray[np.bool_], seconds: float) -> Cell:
    """What is worth keeping of a run."""
    test, told = done.record.latest("personal", "test"), done.record.latest("facts", "served")
    assert test is not None
    scores = np.asarray(test.metrics["accuracy"], float)[fine]
    clusters = None if told is None else told.metrics.get("cluster")
    group = done.runner.everyone.group
    found = None
    if clusters is not None and group is not None:
        found = float(adjusted_rand_score(group[fine], np.asarray(clusters)[fine].astype(int)))
    valid = [one for one in done.record.scores if (one.kind, one.split) == ("personal", "valid")]
    curve = tuple(float(np.nanmean(np.asarray(one.metrics["accuracy"], float)[fine])) for one in valid)
    worst = float(worst_decile(scores, higher_is_better=True))
    return Cell(part, name, attack, seed, float(scores.mean()), worst, found, curve, done.num_bytes / 1e6, seconds)


def loaded(file: Path) -> list[Cell]:
    """The cells of a file."""
    return read_cells(file, lambda row: Cell(**{**row, "curve": tuple(row["curve"])}))


def play_part(
    part: str,
    scale: Scale,
    *,
    methods: Sequence[str] | None = None,
    attacks: Sequence[str] | None = None,
    known: Collection[Name] = (),
    tell: Callable[[Cell], None],
) -> list[Cell]:
    """All cells of a part: "table" (attacks and defences), "attackers" (round by round), or a kind without attackers.

    Those that are ``known`` are left out, and if all are, no file is opened.
    """
    built = methods_of(part, scale.clients)
    names = _wanted(part, methods or built, attacks or _attacks(part), scale.seeds)
    wanted = [name for name in names if name not in known]
    with_attackers = part in WITH_ATTACKERS
    kind = KINDS[0] if with_attackers else part
    federations = {
        seed: dealt(kind, scale, seed, with_attackers=with_attackers) for seed in {name[3] for name in wanted}
    }
    every = max(scale.rounds // 20, 1) if part == "attackers" else 0
    found: list[Cell] = []
    for _, method, attack, seed in wanted:
        found.append(play(part, method, built[method], federations[seed], attack, seed, scale.rounds, every))
        tell(found[-1])
    return found


def _attacks(part: str) -> Sequence[str]:
    return {"table": tuple(ATTACKS), "attackers": ("none", "large_noise", "sign_flip")}.get(part, ("none",))


def _wanted(part: str, methods: Iterable[str], attacks: Iterable[str], seeds: Iterable[int]) -> Iterator[Name]:
    """Every cell once; who trains alone uploads nothing, so that attacks make no difference."""
    for method, attack, seed in product(methods, attacks, seeds):
        if method != ALONE or attack == "none":
            yield part, method, attack, seed
