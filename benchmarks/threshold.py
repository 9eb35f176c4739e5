"""Threshold-Clustering of many points: distances by one matrix product against a loop over centers.

Every point is a center, four clusters twenty noises apart, ten rounds. Both ways are plures' own ("gram" and
"direct"), compiled, and run in turn in this process; the best of equally many runs counts.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import plures
from plures.aggregate import Clustered, Quantile, threshold_clustering

CLUSTERS, ROUNDS, DELTA = 4, 10, 20.0
SIZES = ((60, 20_000), (200, 50_000))  # points, dimension
REPEATS = 3
BAR, CLOSE = 50.0, 1e-6  # times faster, at the largest size; relative difference of centers


def make_points(number: int, dim: int) -> jax.Array:
    """Clusters ``DELTA`` apart with noise of total variance 1."""
    means = DELTA / math.sqrt(2.0) * jnp.eye(CLUSTERS, dim)
    noise = jax.random.normal(jax.random.key(0), (number, dim)) / math.sqrt(dim)
    return jnp.repeat(means, number // CLUSTERS, axis=0) + noise


class Timed(NamedTuple):
    """What a way of computing finds, its best seconds, and those it took to compile."""

    found: Clustered
    seconds: float
    compiling: float


def measure(points: jax.Array) -> dict[str, Timed]:
    """Both ways, run in turn."""
    made = {path: compiled(points, path) for path in ("direct", "gram")}
    seconds: dict[str, list[float]] = {path: [] for path in made}
    found = {}
    for _ in range(REPEATS):
        for path, (run, _) in made.items():
            start = time.perf_counter()
            found[path] = jax.block_until_ready(run(points))
            seconds[path].append(time.perf_counter() - start)
    return {path: Timed(found[path], min(seconds[path]), made[path][1]) for path in made}


def compiled(points: jax.Array, path: str) -> tuple[Callable[[jax.Array], Clustered], float]:
    """The compiled computation and the seconds that took."""
    rule = Quantile(q=1 / CLUSTERS)
    start = time.perf_counter()
    run = jax.jit(partial(threshold_clustering, radius=rule, max_iter=ROUNDS, tol=0.0, path=path))
    return run.lower(points).compile(), time.perf_counter() - start


def difference(one: Clustered, other: Clustered) -> float:
    """The largest distance between two centers, relative to the length of the center."""
    left, right = np.asarray(one.centers, float), np.asarray(other.centers, float)
    return float((np.linalg.norm(left - right, axis=1) / np.linalg.norm(right, axis=1)).max())


def main() -> None:
    lines = [
        "# Threshold-Clustering: all centers at once",
        "",
        f"Every point its own center, {CLUSTERS} clusters {DELTA:g} noises apart, quantile 1/{CLUSTERS}, {ROUNDS} rounds, float32. "
        f"*Direct* computes distances in the space of points, center after center; *gram* computes those of all pairs once. "
        f"Best of {REPEATS} runs each, in turn in one process, compiled before.",
        f"Bar: {BAR:g} times faster at the largest size, centers equal to {CLOSE:g}. Made by `make bench-threshold` with plures "
        f"{plures.__version__}, jax {jax.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPU cores, "
        f"load average {os.getloadavg()[0]:.2f} at the start.",
        "",
        "| points | dimension | direct s | gram s | times faster | difference of centers | compile s (direct, gram) |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, dim in SIZES:
        timed = measure(make_points(number, dim))
        direct, gram = timed["direct"], timed["gram"]
        apart, faster = difference(gram.found, direct.found), direct.seconds / gram.seconds
        lines.append(
            f"| {number} | {dim:,} | {direct.seconds:.2f} | {gram.seconds:.3f} | {faster:.0f} | {apart:.1e} | "
            f"{direct.compiling:.1f}, {gram.compiling:.1f} |"
        )
        assert apart <= CLOSE, f"{number} points: centers differ by {apart:.1e}"
    text = "\n".join(lines) + "\n"
    print(text)
    assert faster >= BAR, f"only {faster:.0f} times faster"
    Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
