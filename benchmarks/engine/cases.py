"""The cases of the engine benchmark and the synthetic data that goes with them.

Every library that takes part reads its case and its data from here, so that all
of them train the same model on the same numbers. Only numpy is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEARNING_RATE = 0.05
SEED = 0


@dataclass(frozen=True)
class Case:
    """One workload: federated averaging with one local epoch of plain SGD."""

    name: str
    clients: int
    examples_per_client: int
    cohort: int
    batch: int
    rounds: int
    classes: int
    shape: tuple[int, ...]
    model: str

    @property
    def examples(self) -> int:
        """Examples that all clients together process in one timed run."""
        return self.rounds * self.cohort * self.examples_per_client


CASES = {
    "a": Case("a", 1000, 60, 10, 10, 100, 10, (784,), "logistic"),
    "b": Case("b", 100, 200, 100, 20, 3, 62, (784,), "mlp"),
    "c": Case("c", 20, 200, 20, 20, 1, 62, (28, 28, 1), "cnn"),
}

# Exact parameter count of each model, for the scripts to check theirs against.
PARAMETERS = {
    "logistic": 784 * 10 + 10,
    "mlp": 784 * 128 + 128 + 128 * 62 + 62,
    "cnn": 320 + 18_496 + 1_179_776 + 7_998,
}


def make_data(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return x of shape (clients, examples, *shape) and integer labels y.

    Each class is a cloud of unit noise around its own center, so the models
    have something to learn and a training run can be checked for progress.
    """
    rng = np.random.default_rng(SEED)
    centers = 0.3 * rng.standard_normal((case.classes, *case.shape), dtype=np.float32)
    y = rng.integers(case.classes, size=(case.clients, case.examples_per_client))
    x = rng.standard_normal((*y.shape, *case.shape), dtype=np.float32)
    x += centers[y]
    return x, y.astype(np.int32)
