"""What both sides of the HypCluster benchmark train on: unequal clients of four planted groups, and start models.

One side makes a world and saves it, the other one loads it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from cases import CASES

CLUSTERS, COHORT, BATCH, LEARNING_RATE, SEED = 4, 20, 20, 0.05, 0
NUM_CLIENTS, MEDIAN_ROWS, RATIO = 200, 60, 20.0
WIDTH = 784

# The engine benchmark's cases whose models are taken, and the widths behind the input.
ENGINE_CASE = {"logistic": CASES["a"], "mlp": CASES["b"]}
LAYERS = {"logistic": (10,), "mlp": (128, 62)}


@dataclass(frozen=True)
class World:
    """All clients' rows one after another, and a (clusters, inputs, outputs) kernel and a bias per layer."""

    model: str
    sizes: np.ndarray
    x: np.ndarray
    y: np.ndarray
    kernels: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]

    @property
    def owner(self) -> np.ndarray:
        """Whose each row is."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def save(self, file: Path) -> None:
        """Write everything to an .npz file."""
        layers = {f"kernel_{i}": kernel for i, kernel in enumerate(self.kernels)}
        layers |= {f"bias_{i}": bias for i, bias in enumerate(self.biases)}
        np.savez(file, model=self.model, sizes=self.sizes, x=self.x, y=self.y, **layers)


def load(file: Path) -> World:
    """The world that was saved."""
    with np.load(file) as found:
        model = str(found["model"])
        numbers = range(len(LAYERS[model]))
        kernels = tuple(found[f"kernel_{i}"] for i in numbers)
        biases = tuple(found[f"bias_{i}"] for i in numbers)
        return World(model, found["sizes"], found["x"], found["y"], kernels, biases)


def unequal_sizes() -> np.ndarray:
    """Lognormal, with a ratio of 20 between the 95th and the 5th percentile, as in the padding benchmark."""
    spread = math.log(RATIO) / (2 * 1.6448536)
    draw = np.random.default_rng(SEED).standard_normal(NUM_CLIENTS)
    return np.maximum(1, np.rint(MEDIAN_ROWS * np.exp(spread * draw))).astype(int)


def one_batch_sizes() -> np.ndarray:
    """Divisors of the batch: one step per client, even where a short batch is filled up with repeats."""
    return np.resize([BATCH, BATCH // 2, BATCH // 4], COHORT)


def make_world(model: str, sizes: np.ndarray) -> World:
    """Client k belongs to group k mod 4; each group has class centers of its own."""
    rng = np.random.default_rng(SEED)
    classes = LAYERS[model][-1]
    centers = 0.3 * rng.standard_normal((CLUSTERS, classes, WIDTH), dtype=np.float32)
    group = np.repeat(np.arange(len(sizes)) % CLUSTERS, sizes)
    y = rng.integers(classes, size=len(group)).astype(np.int32)
    x = rng.standard_normal((len(group), WIDTH), dtype=np.float32) + centers[group, y]
    widths = (WIDTH, *LAYERS[model])
    kernels = tuple(
        rng.standard_normal((CLUSTERS, before, after), dtype=np.float32) / np.float32(math.sqrt(before))
        for before, after in pairwise(widths)
    )
    biases = tuple(np.zeros((CLUSTERS, after), np.float32) for after in widths[1:])
    return World(model, sizes, x, y, kernels, biases)
