"""Exam scores of 139 London schools: one regression, an own offset and slopes for each school."""

from __future__ import annotations

import numpy as np

from plures import registry
from plures.data.federation import Federation, from_arrays
from plures.data.files import DataFile, locate, read_npz
from plures.data.holdout import HoldOut, choose_held_out, mark_held_out
from plures.data.scale import federated_scale
from plures.data.splits import SHARES, stratified
from plures.keys import Purpose, derive, root

SOURCE = DataFile(
    file="school_139.npz",
    sha256="8ebc3480657b6e65b0a8da4d9af34b1e4b38f4bb52ce81319c8ce8b6b50d681c",
    what="exam scores of 15,362 pupils of 139 schools",
    origin="the Inner London Education Authority's school data, as used for multi-task learning",
)
KEYS = ("x", "y", "school")


@registry.dataset(title="School exam scores", paper="Inner London Education Authority, 139 schools")
def school(
    *, hold_out: HoldOut = 0, hold_out_seed: int = 0, data_dir: str | None = None, seed: int = 0
) -> Federation:
    """15,362 pupils of 139 schools, 28 facts about each; the exam score (1 to 70 points) is to be predicted.

    Inputs are standardized by the training rows of seen schools; a column that is the same for all becomes 0.

    Args:
        hold_out: Schools that are held out as unseen: a number, a share, names joined by "+", "auto" (a fifth of ten
            or more) or 0 for none.
        hold_out_seed: Seed that draws who is held out.
        data_dir: Folder in which the file lies; None takes that of the environment variable PLURES_DATA.
        seed: Seed of the split into train, valid and test rows.
    """
    stored = read_npz(locate(SOURCE, data_dir), KEYS)
    numbers, owner = np.unique(stored["school"], return_inverse=True)
    names = np.array([f"school-{number:03d}" for number in numbers])
    held_out = choose_held_out(names.tolist(), hold_out, hold_out_seed)
    codes = stratified(derive(root(seed), Purpose.SPLIT), owner, stored["y"], SHARES)
    scale = federated_scale(stored["x"], owner, (codes == 0) & ~held_out[owner])
    federation = from_arrays(
        scale.apply(stored["x"]),
        stored["y"].astype(np.float32),
        names[owner],
        task="regression",
        split=codes,
        title="school",
    )
    return mark_held_out(federation, held_out)
