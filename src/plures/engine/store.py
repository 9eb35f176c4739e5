"""Where private rows live: in memory (part of State), or on disk when they do not fit."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from plures.types import Tree


class DiskStore:
    """One file per leaf of the private state, a row per client; only a cohort's rows are ever read."""

    def __init__(self, folder: Path, shape: Tree, num_clients: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        leaves, self._structure = jax.tree.flatten(shape)
        self.files = [folder / f"rows-{i}.bin" for i in range(len(leaves))]
        self._tables = [
            np.memmap(file, leaf.dtype, "r+" if file.exists() else "w+", shape=(num_clients, *leaf.shape))
            for file, leaf in zip(self.files, leaves, strict=True)
        ]

    def get(self, rows: np.ndarray) -> Tree:
        """The private states of some clients, stacked."""
        return jax.tree.unflatten(self._structure, [jnp.asarray(table[rows]) for table in self._tables])

    def put(self, rows: np.ndarray, private: Tree) -> None:
        """Replace the private states of some clients."""
        for table, leaf in zip(self._tables, jax.tree.leaves(private), strict=True):
            table[rows] = np.asarray(leaf)

    def flush(self) -> None:
        """Write everything to the files."""
        for table in self._tables:
            table.flush()
