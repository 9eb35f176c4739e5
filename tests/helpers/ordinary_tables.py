"""Tables as ordinary users have them, of which it is known what should be advised.

Thirty sites with 8 columns each. A site's target is a line of its columns, plus its level and noise. The tables differ in how sites
differ: in slopes, in levels, in noise, in sizes; in groups, by one outlier, or not at all. Random numbers are drawn in the order of the
list below, so that a table does not depend on which others are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from plures.data import Federation, load

SITES, COLUMNS = 30, 8


@dataclass(frozen=True)
class Sites:
    """How sites are drawn: a line each (``slopes``, ``levels``), their rows and noise; ``seed`` draws the rows."""

    slopes: np.ndarray
    levels: np.ndarray
    seed: int
    rows: int | list[int] = 40
    noise: float | np.ndarray = 1.0
    offset: float = 0.0
    classes: bool = False

    def frame(self) -> pl.DataFrame:
        """The table: site, columns and target."""
        rng, (num, width) = np.random.default_rng(self.seed), self.slopes.shape
        sizes, noises = np.broadcast_to(self.rows, num), np.broadcast_to(self.noise, num)
        parts = []
        for site in range(num):
            x = rng.normal(size=(sizes[site], width))
            line = x @ self.slopes[site] + self.levels[site]
            if self.classes:
                target = np.where(rng.random(sizes[site]) < 1 / (1 + np.exp(-line)), "yes", "no")
            else:
                target = np.round(line + noises[site] * rng.normal(size=sizes[site]) + self.offset, 6)
            columns = {f"x{k}": np.round(x[:, k], 6) for k in range(width)}
            parts.append(pl.DataFrame({"site": [f"site{site:03d}"] * sizes[site], **columns, "target": target}))
        return pl.concat(parts)


def ordinary_sites() -> dict[str, Sites]:
    """All tables by name."""
    rng = np.random.default_rng(1)
    common, none, odd = rng.normal(size=COLUMNS), np.zeros(SITES), np.arange(SITES) % 2 == 1
    same, first = np.tile(common, (SITES, 1)), np.eye(COLUMNS)[0]

    def around(size: float) -> tuple[np.ndarray, np.ndarray]:
        return common + size * rng.normal(size=(SITES, COLUMNS)), size * rng.normal(size=SITES)

    found = {"alike": Sites(same, none, 11), "moderate": Sites(*around(0.25), 12), "apart": Sites(*around(3.0), 13)}
    found["intercepts"] = Sites(same, 5 * rng.normal(size=SITES), 14, rows=25)
    found["oneslope"] = Sites(common + first * 3 * rng.normal(size=(SITES, 1)), none, 15, rows=25)
    found["offset"] = Sites(*around(0.25), 16, offset=1000.0)
    found["groups"] = Sites(common + np.where(odd, 3, -3)[:, None] * first, none, 17, rows=25)
    found["noises"] = Sites(*around(0.25), 18, noise=np.where(odd, 0.1, 3.0))
    found["sizes"] = Sites(*around(0.25), 19, rows=[6] * 20 + [400] * 10)
    found["tiny"] = Sites(*around(0.25), 20, rows=[1] * 5 + [2] * 5 + [3] * 5 + [40] * 15)
    slopes = rng.normal(size=5) + 0.4 * rng.normal(size=(SITES, 5))
    found["classes"] = Sites(slopes, 0.4 * rng.normal(size=SITES), 21, classes=True)
    outlier = (common + 20 * rng.normal(size=COLUMNS))[None]
    found["outlier"] = Sites(np.concatenate([same[1:], outlier]), none, 22)
    return found


def prices(*, offset: float = 12.0) -> pl.DataFrame:
    """Logarithms of prices: a small spread far from zero."""
    rng = np.random.default_rng(5)
    common = 0.15 * rng.normal(size=COLUMNS)
    slopes = common + 0.06 * rng.normal(size=(SITES, COLUMNS))
    levels = 0.06 * rng.normal(size=SITES)
    parts = []
    for site in range(SITES):
        x = rng.normal(size=(40, COLUMNS))
        target = np.round(x @ slopes[site] + levels[site] + 0.3 * rng.normal(size=40) + offset, 6)
        columns = {f"x{k}": np.round(x[:, k], 6) for k in range(COLUMNS)}
        parts.append(pl.DataFrame({"site": [f"s{site:02d}"] * 40, **columns, "target": target}))
    return pl.concat(parts)


def ordinary_table(name: str) -> pl.DataFrame:
    """The table of that name."""
    return prices() if name == "logprice" else ordinary_sites()[name].frame()


def read_table(table: pl.DataFrame, folder: Path, name: str = "table", **options: str) -> Federation:
    """A table as a user would have it read, through a file."""
    file = folder / f"{name}.csv"
    table.write_csv(file)
    return load(str(file), target="target", client="site", **options)
