"""Federations: building them, loading them by name, and worlds with known answers."""

from __future__ import annotations

from typing import Any

from plures.data import digits, worlds
from plures.data.federation import SPLITS, Federation, from_arrays
from plures.data.worlds import World
from plures.errors import UnknownChoice
from plures.registry import DATASETS, WORLDS

__all__ = ["SPLITS", "Federation", "World", "digits", "from_arrays", "load", "worlds"]


def load(name: str, **options: Any) -> Federation:
    """A federation by the name of its data set or world.

    >>> load("digits").num_clients
    40
    """
    if name in WORLDS:
        WORLDS[name].check_options(options)
        federation: Federation = WORLDS[name].factory(**options).federation
        return federation
    if name not in DATASETS:
        raise UnknownChoice("data set", name, [*DATASETS, *WORLDS])
    entry = DATASETS[name]
    entry.check_options(options)
    loaded: Federation = entry.factory(**options)
    return loaded
