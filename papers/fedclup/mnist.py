"""FedCLUP on MNIST: ten clients of 200 images with c digits each, softmax regression and a small CNN.

The published experiment took rows in the order of their digit and cut the last tenth off for testing, so that all test
rows were of one digit. Here a client's 200 rows are shuffled and divided by digit into 180 training and 20 valid rows;
its 200 test rows are MNIST's test images of its own digits, in its own proportions.

Nothing here needs the tables of a study, so that it runs wherever the numerical core does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from papers.common.cells import read_cells
from plures.data import Federation, from_arrays
from plures.data.partition.labels import classes
from plures.data.partition.redistribution import Dealing
from plures.data.sets.mnist_writers import mnist_writers
from plures.engine import Settings, prepare
from plures.keys import Purpose, derive, root
from plures.method import Method
from plures.models.build import CLASSIFICATION, from_functions
from plures.models.conv import conv2d, max_pool2
from plures.models.linear import softmax
from plures.registry import METHODS
from plures.study.statistics import worst_decile
from plures.types import Key, Model, Plan, Tree

CLIENTS, DEALT = 10, 260  # those chosen, of so many: with more the rarest digit would not give each 200 rows
ROWS = (180, 20, 200)  # train, valid, test
LR, EPOCHS, ROUNDS = 0.01, 5, 20
LAMS: Mapping[str, tuple[float, ...]] = {"softmax": (0.5, 1.5, 2.5), "cnn": (0.2, 0.5, 2.5)}
BATCH: Mapping[str, int] = {"softmax": 32, "cnn": 16}


class Way(NamedTuple):
    """A method of the comparison: its name in the registry and its options."""

    method: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """What is played: models, digits per client, seeds, methods (all unless said) and rounds."""

    models: tuple[str, ...]
    digits: tuple[int, ...]
    seeds: tuple[int, ...]
    methods: tuple[str, ...] | None = None
    rounds: int = ROUNDS


Name: TypeAlias = tuple[str, str, int, int]
"""Model, method, digits and seed of a cell."""


@dataclass(frozen=True)
class Cell:
    """One run: mean and worst decile of personal accuracies on test rows, and what it cost."""

    model: str
    method: str
    digits: int
    seed: int
    mean: float
    worst_decile: float
    valid: float
    megabytes: float
    seconds: float

    @property
    def name(self) -> Name:
        """What no two cells share."""
        return self.model, self.method, self.digits, self.seed


def cnn(shape: tuple[int, ...] = (28, 28), num_outputs: int = 10) -> Model:
    """Two padded 3x3 convolutions (32 and 64) with ReLU and 2x2 max-pools, a layer of 128, a head: 421,642 numbers."""
    pooled = (shape[0] // 4) * (shape[1] // 4) * 64

    def init(key: Key) -> Tree:
        shapes = {
            "conv_0": (3, 3, 1, 32),
            "conv_1": (3, 3, 32, 64),
            "dense_0": (pooled, 128),
            "head": (128, num_outputs),
        }
        keys = jax.random.split(key, len(shapes))
        return {name: _layer(own, one) for own, (name, one) in zip(keys, shapes.items(), strict=True)}

    def apply(params: Tree, x: Array) -> Array:
        x = x.reshape(x.shape[0], *shape, 1).astype(jnp.float32)
        for name in ("conv_0", "conv_1"):
            wide = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            # Bias and ReLU after the pool: the same numbers, a quarter of the work.
            x = jax.nn.relu(max_pool2(conv2d(wide, params[name]["kernel"])) + params[name]["bias"])
        x = x.reshape(x.shape[0], -1)
        x = jax.nn.relu(x @ params["dense_0"]["kernel"] + params["dense_0"]["bias"])
        return x @ params["head"]["kernel"] + params["head"]["bias"]

    parts = {"body": ("conv_*", "dense_*"), "head": ("head/*",)}
    return from_functions(init=init, apply=apply, task=CLASSIFICATION, parts=parts)


def _layer(key: Key, shape: tuple[int, ...]) -> Tree:
    """Uniform within 1 / sqrt(inputs), kernel and bias: the default of the published code's library."""
    key_kernel, key_bias = jax.random.split(key)
    most = 1 / math.sqrt(math.prod(shape[:-1]))
    kernel = jax.random.uniform(key_kernel, shape, minval=-most, maxval=most)
    return {"kernel": kernel, "bias": jax.random.uniform(key_bias, shape[-1:], minval=-most, maxval=most)}


class Pictures(NamedTuple):
    """MNIST's images and labels: those to train with, and those to test with."""

    x: NDArray[Any]
    y: NDArray[Any]
    test_x: NDArray[Any]
    test_y: NDArray[Any]


@cache
def pictures() -> Pictures:
    """MNIST from the user's data folder, as it was divided by its authors."""
    federation = mnist_writers()
    held_out = np.zeros(federation.num_clients, bool) if federation.held_out is None else federation.held_out
    first, size = federation.start.min(1), federation.count.sum(1)
    test = np.zeros(len(federation.y), bool)
    for client in np.flatnonzero(held_out):
        test[first[client] : first[client] + size[client]] = True
    return Pictures(federation.x[~test], federation.y[~test], federation.x[test], federation.y[test])


def dealt(digits: int, seed: int, source: Pictures | None = None) -> Federation:
    """Ten clients with ``digits`` digits each: as many rows of every digit, up to one, dealt without replacement."""
    source = pictures() if source is None else source
    # Dealt are the places of rows, not the images: nothing large is copied.
    place = np.arange(len(source.y), dtype=np.float32)[:, None]
    whole = from_arrays(place, source.y, np.zeros(len(source.y), int), num_classes=10, shares=(1.0, 0.0, 0.0))
    dealing = Dealing(num_clients=DEALT, shares=(1.0, 0.0, 0.0), seed=seed)
    parts = classes(whole, dealing=dealing, per_client=digits)
    key = derive(root(seed), Purpose.DATA)
    chosen = np.asarray(jax.random.permutation(key, DEALT))[:CLIENTS]
    own = [_one(jax.random.fold_in(key, int(one)), parts, int(one), source) for one in chosen]
    x, y = (np.concatenate([one[part] for one in own]) for part in (0, 1))
    split = np.tile(np.repeat(["train", "valid", "test"], ROWS), CLIENTS)
    owner = np.repeat(np.arange(CLIENTS), sum(ROWS))
    return from_arrays(x, y, owner, split=split, num_classes=10, title=f"MNIST, {digits} digits per client")


def _one(key: Key, parts: Federation, client: int, source: Pictures) -> tuple[NDArray[Any], NDArray[Any]]:
    """The images and labels of one client: training rows, valid rows, test rows."""
    at, y = parts.rows_of(parts.names[client], "train")
    at = at[:, 0].astype(np.int64)
    held = np.unique(y)
    key_own, key_test = jax.random.split(key)
    train, valid = _spread(key_own, y, held, ROWS[:2])
    (test,) = _spread(key_test, source.test_y, held, ROWS[2:])
    own = at[np.concatenate([train, valid])]
    return np.concatenate([source.x[own], source.test_x[test]]), np.concatenate(
        [source.y[own], source.test_y[test]]
    )


def _spread(key: Key, y: NDArray[Any], held: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Places in ``y`` for parts of these sizes, shuffled: every part has as many of each held label, up to one."""
    order = np.asarray(jax.random.permutation(key, len(y)))
    queues = [order[y[order] == label] for label in held]
    used, found = np.zeros(len(held), np.int64), []
    for shift, size in enumerate(sizes):
        # The labels that get one row more differ from part to part.
        each = (size + (np.arange(len(held)) + shift) % len(held)) // len(held)
        taken = [queue[a : a + n] for queue, a, n in zip(queues, used, each, strict=True)]
        used += each
        found.append(np.concatenate(taken))
        assert len(found[-1]) == size, "a digit is too rare for this many rows"
    return found


def ways(model: str) -> dict[str, Way]:
    """What is compared: alone, one model for all, FedCLUP with three strengths and its own choice, and neighbors."""
    middle = LAMS[model][1]
    found = {"alone": Way("local_only", {}), "FedAvg": Way("fedavg", {})}
    for lam in LAMS[model]:
        # The published runs average: gamma = 1 / lam.
        found[f"FedCLUP, lam {lam:g}"] = Way("fedclup", {"lam": lam, "gamma": "mean"})
    found["FedCLUP, lam auto"] = Way("fedclup", {"lam": "auto"})
    found["FedCLUP, lam by valid rows"] = Way("fedclup", {"lam": "valid"})
    found["MR-MTL"] = Way("mr_mtl", {"lam": middle})
    found["pFedMe"] = Way("pfedme", {"lam": middle})
    found["L2GD"] = Way("l2gd", {"lam": middle})
    found["Ditto"] = Way("ditto", {"lam": middle})
    return {name: way for name, way in found.items() if way.method in METHODS}


def built(model: str, way: Way) -> Method:
    """The method of a way, with the published plan."""
    made = softmax((28, 28), 10) if model == "softmax" else cnn()
    # pFedMe trains five times a round: with an epoch each it does as much work as the others.
    plan = Plan(epochs=1 if way.method == "pfedme" else EPOCHS, batch=BATCH[model], lr=LR)
    return METHODS[way.method].factory(made, plan=plan, **way.options)


def play(name: Name, method: Method, federation: Federation, rounds: int) -> Cell:
    """One run, scored on every client's own test rows."""
    began = time.perf_counter()
    quiet = replace(
        method,
        views=replace(method.views, report=None, forecast=None),
    )
    done = prepare(quiet, federation, settings=Settings(rounds=rounds, seed=name[3])).run()
    valid, test = (done.record.latest("personal", split) for split in ("valid", "test"))
    assert valid is not None
    assert test is not None
    scores = np.asarray(test.metrics["accuracy"], float)
    worst = float(worst_decile(scores, higher_is_better=True))
    least = float(np.mean(valid.metrics["accuracy"]))
    cost = (done.num_bytes / 1e6, time.perf_counter() - began)
    return Cell(*name, float(scores.mean()), worst, least, *cost)


def play_all(scale: Scale, *, known: Collection[Name] = (), tell: Callable[[Cell], None]) -> list[Cell]:
    """All cells of a scale but those that are ``known``; if all are, no file is opened.

    Every federation has the same shape, so that a method is compiled once.
    """
    found: list[Cell] = []
    federations: dict[tuple[int, int], Federation] = {}
    for model in scale.models:
        for label, way in ways(model).items():
            if scale.methods is not None and label not in scale.methods:
                continue
            names = [name for name in _wanted(model, label, scale) if name not in known]
            method = built(model, way) if names else None
            for name in names:
                assert method is not None
                where = name[2:]
                if where not in federations:
                    federations[where] = dealt(*where)
                found.append(play(name, method, federations[where], scale.rounds))
                tell(found[-1])
    return found


def _wanted(model: str, label: str, scale: Scale) -> Iterator[Name]:
    for digits, seed in product(scale.digits, scale.seeds):
        yield model, label, digits, seed


def loaded(file: Path) -> list[Cell]:
    """The cells of a file."""
    return read_cells(file, lambda row: Cell(**row))
