"""Where private rows live: in memory (part of State), or on disk when they do not fit."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from plures import tree
from plures.types import Tree


class DiskStore:
    """One file per leaf of the private state, a row per client; only a cohort's rows are ever read."""

    def __init__(self, folder: Path, shape: Tree, num_clients: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._shape = shape
        leaves = [jax.eval_shape(tree.plain, leaf) for leaf in jax.tree.leaves(shape)]
        self.files = [folder / f"rows-{i}.bin" for i in range(len(leaves))]
        self._tables = [
            np.memmap(file, leaf.dtype, "r+" if file.exists() else "w+", shape=(num_clients, *leaf.shape))
            for file, leaf in zip(self.files, leaves, strict=True)
        ]

    def get(self, rows: np.ndarray) -> Tree:
        """The private states of some clients, stacked."""
        leaves, structure = jax.tree.flatten(self._shape)
        found = [tree.from_plain(table[rows], leaf) for table, leaf in zip(self._tables, leaves, strict=True)]
        return jax.tree.unflatten(structure, found)

    def put(self, rows: np.ndarray, private: Tree) -> None:
        """Replace the private states of some clients."""
        for table, leaf in zip(self._tables, jax.tree.leaves(private), strict=True):
            table[rows] = np.asarray(tree.plain(leaf))

    def flush(self) -> None:
        """Write everything to the files."""
        for table in self._tables:
            table.flush()
