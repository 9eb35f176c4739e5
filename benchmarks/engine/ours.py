"""The engine benchmark's cases in plures."""

from __future__ import annotations

from collections.abc import Callable

import harness
import jax
import numpy as np
from cases import LEARNING_RATE, PARAMETERS, Case

from plures.data import from_arrays
from plures.engine import Runner, Settings, prepare
from plures.engine.rounds import play
from plures.engine.state import first_state
from plures.methods.fedavg import fedavg
from plures.models.cnn import emnist_cnn
from plures.models.linear import softmax
from plures.models.mlp import mlp
from plures.types import Model, Plan

MODELS: dict[str, Callable[[Case], Model]] = {
    "logistic": lambda case: softmax(case.shape, case.classes),
    "mlp": lambda case: mlp(case.shape, case.classes, hidden=(128,)),
    "cnn": lambda case: emnist_cnn(case.shape, case.classes),
}


def make_runner(case: Case, x: np.ndarray, y: np.ndarray, executor: str = "auto") -> Runner:
    owner = np.repeat(np.arange(case.clients), case.examples_per_client)
    federation = from_arrays(
        x.reshape(-1, *case.shape), y.ravel(), owner, shares=(1.0, 0.0, 0.0), num_classes=case.classes
    )
    model = MODELS[case.model](case)
    params = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    assert sum(leaf.size for leaf in params) == PARAMETERS[case.model]
    method = fedavg(model, plan=Plan(batch=case.batch, lr=LEARNING_RATE))
    cohort = case.cohort if case.cohort < case.clients else None
    settings = Settings(rounds=case.rounds, cohort=cohort, executor=executor)
    return prepare(method, federation, settings=settings)


def build(case: Case, x: np.ndarray, y: np.ndarray) -> Callable[[int], None]:
    """A function that plays some rounds and waits for them."""
    runner = make_runner(case, x, y)
    setup = runner.setup(runner.phases[-1])
    state = first_state(runner.method, runner.key, case.clients)

    def run_rounds(number: int) -> None:
        nonlocal state
        state, _ = jax.block_until_ready(play(setup, runner.arrays, runner.places, runner.key, state, number))

    # Compile for the number of rounds that is timed.
    run_rounds(case.rounds)
    return run_rounds


if __name__ == "__main__":
    harness.main("plures", ("plures", "jax", "jaxlib", "numpy"), build)
