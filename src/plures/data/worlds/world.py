"""A synthetic federation with the truth it was drawn from, and what all worlds are made with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plures.data.federation import SPLITS, Federation, from_arrays
from plures.errors import BadValue
from plures.keys import Purpose, derive, root
from plures.types import Key, Model


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """A federation, a model that fits it, and the truth it was drawn from (a row per client)."""

    federation: Federation
    model: Model
    truth: NDArray[Any]
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def weights(self) -> NDArray[Any]:
        """The number of training rows of each client."""
        return self.federation.count[:, 0].astype(float)


def data_key(seed: int) -> Key:
    """The key from which a world of this seed is drawn."""
    return derive(root(seed), Purpose.DATA)


def check_positive(**numbers: float) -> None:
    """Refuse sizes and scales that are not positive numbers."""
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise BadValue(name, number, "a positive number")


def check_sizes(**sizes: int) -> None:
    """Refuse sizes below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise BadValue(name, size, "1 or more")


def groups_of(num_clients: int, num_groups: int, **sizes: int) -> NDArray[Any]:
    """The group of every client; sizes below 1 are refused, and more groups than clients."""
    check_sizes(**sizes)
    if not 1 <= num_groups <= num_clients:
        raise BadValue("num_groups", num_groups, f"between 1 and num_clients ({num_clients})")
    return np.arange(num_clients) % num_groups


def assemble_clients(
    x: Any, y: Any, *, sizes: Sequence[int] | None = None, group: Any = None, **options: Any
) -> Federation:
    """A federation from (clients, rows, ...) arrays; ``sizes`` are the train, valid and test rows, in this order."""
    num_clients, rows = y.shape[:2]
    width = len(str(num_clients - 1))
    names = np.array([f"client-{k:0{width}d}" for k in range(num_clients)])
    kinds = (np.float32, np.float32 if options.get("task") == "regression" else np.int32)
    x, y = (
        np.asarray(part, kind).reshape(num_clients * rows, *part.shape[2:])
        for part, kind in zip((x, y), kinds, strict=True)
    )
    if sizes is not None:
        options["split"] = np.tile(np.repeat(SPLITS, sizes), num_clients)
    planted = None if group is None else dict(zip(names, group.tolist(), strict=True))
    return from_arrays(x, y, np.repeat(names, rows), group=planted, standardize_target=False, **options)
