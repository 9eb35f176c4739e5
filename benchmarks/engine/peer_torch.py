"""The engine benchmark as a plain PyTorch loop over the clients."""

from __future__ import annotations

from collections.abc import Callable

import harness
import numpy as np
import torch
from cases import LEARNING_RATE, PARAMETERS, SEED, Case
from torch import Tensor, nn
from torch.nn import functional

Step = Callable[[Tensor, Tensor], None]


def make_model(case: Case) -> nn.Module:
    """Return the model of the case."""
    if case.model == "logistic":
        return nn.Linear(784, case.classes)
    if case.model == "mlp":
        return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, case.classes))
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, case.classes),
    )


def make_tensors(case: Case, x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    """Convert the data once, with the channel axis where PyTorch expects it."""
    features = torch.from_numpy(x)
    if case.model == "cnn":
        features = features.permute(0, 1, 4, 2, 3).contiguous()
    return features, torch.from_numpy(y).long()


def direct_step(model: nn.Module) -> Step:
    """SGD without an optimizer object, which suits models of a few small layers."""
    params = list(model.parameters())

    def step(x: Tensor, y: Tensor) -> None:
        grads = torch.autograd.grad(functional.cross_entropy(model(x), y), params)
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-LEARNING_RATE)

    return step


def fused_step(model: nn.Module) -> Step:
    """SGD with the fused optimizer, which suits a model with a million parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, fused=True)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def train_client(step: Step, x: Tensor, y: Tensor, batch: int) -> None:
    """Run one epoch over one client's examples in a fresh random order."""
    order = torch.randperm(len(y))
    for x_batch, y_batch in zip(x[order].split(batch), y[order].split(batch), strict=True):
        step(x_batch, y_batch)


def build(case: Case, x: np.ndarray, y: np.ndarray) -> harness.RunRounds:
    """Set up the loop and return the function that runs rounds."""
    torch.manual_seed(SEED)
    model = make_model(case)
    params = [param.detach() for param in model.parameters()]
    assert sum(param.numel() for param in params) == PARAMETERS[case.model]
    step = fused_step(model) if case.model == "cnn" else direct_step(model)
    features, labels = make_tensors(case, x, y)

    def run_round() -> None:
        server = [param.clone() for param in params]
        delta = [torch.zeros_like(param) for param in params]
        total = 0
        for client in torch.randperm(case.clients)[: case.cohort].tolist():
            torch._foreach_copy_(params, server)
            train_client(step, features[client], labels[client], case.batch)
            weight = len(labels[client])
            torch._foreach_add_(delta, torch._foreach_sub(params, server), alpha=weight)
            total += weight
        torch._foreach_copy_(params, server)
        torch._foreach_add_(params, delta, alpha=1 / total)

    def run_rounds(rounds: int) -> None:
        for _ in range(rounds):
            run_round()

    return run_rounds


if __name__ == "__main__":
    harness.main("torch", ("torch",), build, torch.set_num_threads)
