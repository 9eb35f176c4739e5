"""Files for the tests, written from text, frames or arrays."""

import numpy as np
import pytest


@pytest.fixture
def csv(tmp_path):
    """Write a CSV file from its lines and give its path."""

    def write(*lines, name="table.csv", folder=None, encoding="utf-8"):
        path = (tmp_path if folder is None else tmp_path / folder) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding=encoding)
        return path

    return write


@pytest.fixture
def npz(tmp_path):
    """Write a client's NPZ file into the folder "clients" and give the folder."""

    def write(name, **arrays):
        folder = tmp_path / "clients"
        folder.mkdir(exist_ok=True)
        np.savez(folder / name, **arrays)
        return folder

    return write


@pytest.fixture
def frame():
    """A table with a number, a category, a date, a truth and a number with holes, for six clients of 20 rows."""
    import polars as pl

    row = np.arange(120)
    wave = np.sin(row * 1.7)
    return pl.DataFrame(
        {
            "site": [f"s{number}" for number in row % 6],
            "size": 50.0 + 10.0 * wave,
            "color": [("red", "green", "blue")[number] for number in (row * 7) % 3],
            "day": np.datetime64("2024-01-01") + (row * 11) % 50,
            "old": (row % 4) == 0,
            "hole": [None if number % 5 == 0 else float(number % 9) for number in row],
            "label": [("no", "yes")[int(value > 0)] for value in wave],
        }
    )
