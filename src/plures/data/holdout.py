"""Clients held out as unseen before anything is computed from the data, such as a scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
from numpy.typing import NDArray

from plures.data.federation import Federation, share_to_number
from plures.errors import BadValue, UnknownChoice
from plures.keys import Purpose, derive, root

HoldOut = int | float | tuple[str, ...] | str
AUTO_SHARE, AUTO_LEAST = 0.2, 10
WANTED = "a number of clients, a share between 0 and 1, or a list of names"


def choose_held_out(names: Sequence[str], hold_out: HoldOut, seed: int) -> NDArray[np.bool_]:
    """Which clients are held out: so many, such a share, or those of these names; 0 is none.

    "auto" is a fifth where there are ten clients or more, else none.
    Drawn ones are those that ``Federation.hold_out`` draws with the same seed.

    >>> choose_held_out(["a", "b", "c"], ("c",), 0)
    array([False, False,  True])
    """
    if hold_out in ("auto", ("auto",)):
        hold_out = AUTO_SHARE if len(names) >= AUTO_LEAST else 0
    if isinstance(hold_out, tuple | list):
        return _by_name(list(names), list(hold_out))
    if isinstance(hold_out, bool) or not isinstance(hold_out, int | float):
        raise BadValue("hold_out", hold_out, WANTED)
    if hold_out == 0:
        return np.zeros(len(names), bool)
    if isinstance(hold_out, int):
        return _draw(len(names), hold_out, seed)
    if not 0 < hold_out < 1:
        raise BadValue("hold_out", hold_out, WANTED)
    return _draw(len(names), share_to_number(hold_out, len(names)), seed)


def mark_held_out(federation: Federation, held_out: NDArray[np.bool_]) -> Federation:
    """The federation with these clients marked as unseen, if there are any."""
    return replace(federation, held_out=held_out if held_out.any() else None)


def with_held_out(federation: Federation, hold_out: HoldOut, seed: int) -> Federation:
    """The federation with clients chosen by number, share or name marked as unseen; drawn ones by their uids."""
    order = np.argsort(federation.uid)
    held_out = np.zeros(federation.num_clients, bool)
    held_out[order] = choose_held_out([federation.names[row] for row in order], hold_out, seed)
    return mark_held_out(federation, held_out)


def _draw(num_clients: int, number: int, seed: int) -> NDArray[np.bool_]:
    if not 0 < number < num_clients:
        raise BadValue("hold_out", number, f"between 0 and {num_clients - 1} of the {num_clients} clients")
    order = jax.random.permutation(derive(root(seed), Purpose.HOLD_OUT), num_clients)
    return np.isin(np.arange(num_clients), np.asarray(order)[:number])


def _by_name(names: list[str], chosen: list[str]) -> NDArray[np.bool_]:
    for name in chosen:
        if name not in names:
            raise UnknownChoice("client", str(name), names)
    if len(set(chosen)) < len(chosen):
        raise BadValue("hold_out", chosen, "a list without repeats")
    if not 0 < len(chosen) < len(names):
        raise BadValue("hold_out", chosen, "a list with at least one client that leaves at least one to train")
    return np.isin(names, chosen)
