"""A class-balanced tenth of CIFAR-10, dealt over clients with label skew (a Dirichlet draw)."""

from __future__ import annotations

import numpy as np

from plures import registry
from plures.data.federation import Examples, Federation, assemble
from plures.data.files import DataFile, locate, read_npz
from plures.data.partition import dirichlet
from plures.data.partition.redistribution import Dealing

SOURCE = DataFile(
    file="cifar10_subset.npz",
    sha256="4f70cd8c543c95effcf4d74fc72684fceaeeb90d112d8399a87f7e8f63f4809b",
    what="5,000 CIFAR-10 images, 500 of each class",
    origin="CIFAR-10 of Krizhevsky (2009)",
)
KEYS = ("x_train", "y_train", "x_test", "y_test")


@registry.dataset(title="CIFAR-10 (5,000 images), label skew", paper="Krizhevsky 2009")
def cifar10(*, num_clients: int = 20, alpha: float = 0.5, data_dir: str | None = None, seed: int = 0) -> Federation:
    """5,000 color images of 32x32 pixels, their classes dealt over clients by a Dirichlet draw.

    The file's training and test rows are pooled, and every client's rows are split anew.

    Args:
        num_clients: How many clients the images are dealt to.
        alpha: Concentration of the Dirichlet distribution: near 0 a client has few classes, large ones give everyone
            the same mix.
        data_dir: Folder in which the file lies; None takes that of the environment variable PLURES_DATA.
        seed: Seed of the dealing and of the split into train, valid and test rows.
    """
    return dirichlet(pool(data_dir), dealing=Dealing(num_clients=num_clients, seed=seed), alpha=alpha)


def pool(data_dir: str | None) -> Federation:
    """All images as those of a single client."""
    stored = read_npz(locate(SOURCE, data_dir), KEYS)
    x = np.concatenate([stored["x_train"], stored["x_test"]]) / np.float32(255)
    y = np.concatenate([stored["y_train"], stored["y_test"]]).astype(np.int32)
    nobody = np.zeros(len(y), np.int64)
    return assemble(
        Examples(x, y, nobody, nobody), names=("all",), task="classification", num_classes=10, title="cifar10"
    )
