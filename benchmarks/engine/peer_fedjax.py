"""The engine benchmark on FedJAX: its own federated averaging and client sampler."""

from __future__ import annotations

import haiku as hk
import harness
import jax
import numpy as np
from cases import LEARNING_RATE, PARAMETERS, SEED, Case

# FedJAX 0.0.17 still calls this name, which newer versions of JAX have dropped.
jax.tree_map = jax.tree_util.tree_map

import fedjax  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402


def dense_model(case: Case, hidden: tuple[int, ...]) -> fedjax.Model:
    """Build a stack of dense layers; no hidden layer gives logistic regression."""

    def forward(batch: dict[str, jax.Array]) -> jax.Array:
        return hk.nets.MLP((*hidden, case.classes))(batch["x"])

    sample = {"x": np.zeros((1, *case.shape), np.float32), "y": np.zeros(1, np.int32)}
    return fedjax.create_model_from_haiku(
        transformed_forward_pass=hk.transform(forward),
        sample_batch=sample,
        train_loss=lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits),
    )


def make_model(case: Case) -> fedjax.Model:
    """Return the model of the case; FedJAX ships the EMNIST network itself."""
    if case.model == "cnn":
        return fedjax.models.emnist.create_conv_model(only_digits=False)
    return dense_model(case, (128,) if case.model == "mlp" else ())


def make_sampler(case: Case, x: np.ndarray, y: np.ndarray) -> fedjax.client_samplers.ClientSampler:
    """Hand the data to FedJAX, with uniform sampling without replacement."""
    clients = {client: {"x": x[client], "y": y[client]} for client in range(case.clients)}
    data = fedjax.InMemoryFederatedData(clients)
    return fedjax.client_samplers.UniformGetClientSampler(data, case.cohort, seed=SEED)


def build(case: Case, x: np.ndarray, y: np.ndarray) -> harness.RunRounds:
    """Set up FedJAX and return the function that runs rounds."""
    model = make_model(case)
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(LEARNING_RATE),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=case.batch, num_epochs=1),
    )
    sampler = make_sampler(case, x, y)
    params = model.init(jax.random.PRNGKey(SEED))
    assert hk.data_structures.tree_size(params) == PARAMETERS[case.model]
    state = algorithm.init(params)

    def run_rounds(rounds: int) -> None:
        nonlocal state
        for _ in range(rounds):
            state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)

    return run_rounds


if __name__ == "__main__":
    harness.main("fedjax", ("fedjax", "jax", "jaxlib", "dm-haiku"), build)
