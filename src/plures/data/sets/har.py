"""Activities from a phone at the waist: every person is a client and moves in an own way.

Windows of 2.56 s (128 steps) overlap by half, so windows of one recording share numbers. A recording therefore
lies whole in one split: folds 0 and 1 train, fold 2 validates, fold 3 tests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Federation, from_arrays
from plures.data.files import DataFile, locate, read_npz
from plures.data.holdout import HoldOut, choose_held_out, mark_held_out
from plures.data.scale import federated_scale
from plures.errors import UnknownChoice

SOURCE = DataFile(
    file="uci_har.npz",
    sha256="e278d4f015a33c3dd18789e63c6d92d5509c06d87ee5b68bc950dd1559ee691c",
    what="10,299 windows of phone signals of 30 people",
    origin="UCI, Human Activity Recognition Using Smartphones",
)
KEYS = ("halves", "first_half", "y", "subject", "fold")
INPUTS = ("raw", "summary")
PART_OF_FOLD = np.array([0, 0, 1, 2])
BINS = slice(1, 17)


@registry.dataset(title="Human activity (UCI HAR)", paper="Anguita et al., ESANN 2013")
def har(
    *,
    inputs: str = "summary",
    hold_out: HoldOut = 0,
    hold_out_seed: int = 0,
    data_dir: str | None = None,
    seed: int = 0,
) -> Federation:
    """10,299 windows of phone signals of 30 people, six activities, split by whole recordings.

    Inputs are standardized by the training rows of seen people.

    Args:
        inputs: "summary" gives 195 numbers per window, "raw" the window itself: 128 steps of 9 channels.
        hold_out: People that are held out as unseen: a number, a share, names joined by "+", "auto" (a fifth of ten
            or more) or 0 for none.
        hold_out_seed: Seed that draws who is held out.
        data_dir: Folder in which the file lies; None takes that of the environment variable PLURES_DATA.
        seed: Changes nothing: recordings have their splits in the file.
    """
    if inputs not in INPUTS:
        raise UnknownChoice("kind of inputs", inputs, INPUTS)
    stored = read_npz(locate(SOURCE, data_dir), KEYS)
    numbers, owner = np.unique(stored["subject"], return_inverse=True)
    names = np.array([f"subject-{number:02d}" for number in numbers])
    held_out, codes = choose_held_out(names.tolist(), hold_out, hold_out_seed), PART_OF_FOLD[stored["fold"]]
    windows = windows_of(stored["halves"], stored["first_half"])
    use = (codes == 0) & ~held_out[owner]
    federation = from_arrays(
        standardize(summary(windows), owner, use) if inputs == "summary" else standardize(windows, owner, use),
        stored["y"].astype(np.int32),
        names[owner],
        num_classes=6,
        split=codes,
        title="har",
    )
    return mark_held_out(replace(federation, unit="recording"), held_out)


def windows_of(halves: NDArray[Any], first_half: NDArray[Any]) -> NDArray[np.float32]:
    """The windows, (rows, 128, 9): each is a half and the one after it."""
    return np.concatenate([halves[first_half], halves[first_half + 1]], axis=1).astype(np.float32)


def summary(windows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Numbers about each window, (rows, 195).

    Per channel: mean, deviation, smallest, largest, mean absolute step (45); per three-axis sensor: mean and
    deviation of its length (6); log(1 + size) of the frequencies 1 to 16 of each channel (144).
    """
    steps = np.abs(np.diff(windows, axis=1))
    rows, length, channels = windows.shape
    sensors = np.linalg.norm(windows.reshape(rows, length, channels // 3, 3), axis=3)
    waves = np.log1p(np.abs(np.fft.rfft(windows, axis=1)[:, BINS]))
    parts = [windows.mean(1), windows.std(1), windows.min(1), windows.max(1), steps.mean(1)]
    parts += [sensors.mean(1), sensors.std(1), waves.reshape(rows, -1)]
    return np.concatenate(parts, axis=1).astype(np.float32)


def standardize(x: NDArray[Any], owner: NDArray[Any], use: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Inputs standardized per column of their last axis by the rows in ``use``."""
    repeats = int(np.prod(x.shape[1:-1], dtype=int))
    table = x.reshape(-1, x.shape[-1])
    scale = federated_scale(table, np.repeat(owner, repeats), np.repeat(use, repeats))
    return scale.apply(table).reshape(x.shape)
