"""What newcomers get from a finished run, by how much data they bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from plures.engine.clients import TEST, TRAIN, VALID
from plures.engine.evaluate import score
from plures.engine.result import Run

if TYPE_CHECKING:
    import polars as pl

AMOUNTS = (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def newcomers(done: Run, amounts: Sequence[int] = AMOUNTS) -> pl.DataFrame | None:
    """A row per unseen client and amount: its scores on all its test rows if it brings so many training rows.

    A client brings its first training rows and the same share of its valid rows; the last amount is all it has. None
    where there are no unseen clients. One pass serves all of them.
    """
    import polars as pl

    runner = done.runner
    number = runner.everyone.num_clients - runner.num_seen
    if not number:
        return None
    count = runner.everyone.count[runner.num_seen :]
    who, train = _amounts(count[:, TRAIN], amounts)
    share = train / np.maximum(count[who, TRAIN], 1)
    sizes = np.stack([train, np.round(share * count[who, VALID]), count[who, TEST]], 1)
    found = _scored(done, runner.num_seen + who, sizes.astype(np.int32))
    metrics = {f"personal_test_{name}": values for name, values in found["personal"]["test"].items()}
    uid = runner.everyone.uid[runner.num_seen :][who]
    columns: dict[str, Any] = {"uid": uid, "rows": train, "all": train == count[who, TRAIN], **metrics}
    return pl.DataFrame(columns).fill_nan(None)


def _amounts(have: np.ndarray, amounts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(whose, how many) rows: every amount below what a client has, and what it has.

    >>> [part.tolist() for part in _amounts(np.array([3, 7]), (0, 5))]
    [[0, 0, 1, 1, 1], [0, 3, 0, 5, 7]]
    """
    each = [[*(amount for amount in amounts if amount < most), most] for most in have.tolist()]
    return np.repeat(np.arange(len(each)), [len(one) for one in each]), np.concatenate(each).astype(np.int64)


def _scored(done: Run, rows: np.ndarray, sizes: np.ndarray) -> Any:
    """The scores of some unseen clients, each as if it had as many rows as said."""
    runner, state = done.runner, done.state
    those = replace(runner, layout=replace(runner.layout, equal=(False, False, runner.layout.equal[TEST])))
    clients = those.clients(state, done.store, rows)
    clients = clients._replace(place=clients.place._replace(sizes=jnp.asarray(sizes)))
    setup = those.scoring(those.setup(those.phases[-1]))
    return jax.device_get(score(setup, those.arrays, state.server, clients))
