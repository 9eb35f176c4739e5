"""The engine benchmark on pfl: its federated averaging and simulated backend."""

from __future__ import annotations

import harness
import numpy as np
import torch
from cases import LEARNING_RATE, PARAMETERS, SEED, Case
from peer_torch import make_model, make_tensors
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional


class Network(nn.Module):
    """The shared model with the two methods that pfl asks of a module."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.body = make_model(case)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of one batch."""
        return functional.cross_entropy(self.body(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Report nothing; the benchmark never evaluates."""
        return {}


def make_backend(case: Case, x: np.ndarray, y: np.ndarray) -> SimulatedBackend:
    """Serve each client's examples in a fresh random order, all from memory."""
    features, labels = make_tensors(case, x, y)

    def make_dataset(client: int) -> PyTorchTensorDataset:
        order = torch.randperm(case.examples_per_client)
        return PyTorchTensorDataset((features[client][order], labels[client][order]))

    sampler = get_user_sampler("minimize_reuse", list(range(case.clients)))
    data = FederatedDataset(make_dataset, sampler)
    return SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])


def make_pfl_model(case: Case) -> PyTorchModel:
    """Wrap the network with plain SGD on the clients and on the server."""
    network = Network(case)
    params = list(network.parameters())
    assert sum(param.numel() for param in params) == PARAMETERS[case.model]
    central_optimizer = torch.optim.SGD(params, lr=1.0)
    return PyTorchModel(network, torch.optim.SGD, central_optimizer)


class TrainingOnly(FederatedAveraging):
    """Federated averaging that asks for no evaluation in any round.

    pfl evaluates in every round that the evaluation frequency divides, and so
    always in round zero. Starting the count at one leaves none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._current_central_iteration = 1


def build(case: Case, x: np.ndarray, y: np.ndarray) -> harness.RunRounds:
    """Set up pfl and return the function that runs rounds."""
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    model = make_pfl_model(case)
    backend = make_backend(case, x, y)
    train_params = NNTrainHyperParams(
        local_batch_size=case.batch, local_num_epochs=1, local_learning_rate=LEARNING_RATE
    )

    def run_rounds(rounds: int) -> None:
        params = NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=rounds + 2,
            train_cohort_size=case.cohort,
            val_cohort_size=None,
        )
        TrainingOnly().run(params, backend, model, train_params, send_metrics_to_platform=False)

    return run_rounds


if __name__ == "__main__":
    harness.main("pfl", ("pfl", "torch"), build, torch.set_num_threads)
