"""``plures advise`` on worlds whose answer is known: how often it names the right family, and how long it takes.

    make bench-advice                          all worlds, ten seeds each, the clock, and benchmarks/advice.md
    .venv/bin/python benchmarks/advice.py --seeds 2 --worlds digits      a part, printed only

Seeds draw clients, rows, splits and whatever the world plants. Test rows are never read.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import scipy

import plures
from plures.advise.family_advice import FamilyAdvice, advise
from plures.data import Federation, from_arrays, load

FIRST, SEEDS, BAR = 200, 10, 9
"""Seeds below the first were looked at while the rule was made."""
CLOCK = {"clients": 1_000, "rows": 100, "columns": 50}
BAR_SECONDS = 60.0


class Known(NamedTuple):
    """A world, its kind, what there is to find, and the data for a seed."""

    name: str
    kind: str
    right: str
    make: Callable[[int], Federation]


def named(text: str) -> Callable[[int], Federation]:
    """Data by name; SEED stands for the seed."""
    return lambda seed: load(text.replace("SEED", str(seed)))


def exposures(seed: int) -> Federation:
    """Digits seen by cameras with a gain and an offset of their own: v becomes gain v + offset, cut off at 0 and 1."""
    plain = load(f"digits:num_groups=1,num_clients=40,seed={seed}")
    drawn = np.random.default_rng(seed)
    gain, offset = drawn.uniform(0.2, 0.8, plain.num_clients), drawn.uniform(0.0, 0.4, plain.num_clients)
    x = plain.x.copy()
    for place in range(plain.num_clients):
        first, size = plain.start[place, 0], plain.count[place].sum()
        x[first : first + size] = np.clip(gain[place] * x[first : first + size] + offset[place], 0.0, 1.0)
    return replace(plain, x=x)


def sensors(seed: int, *, classes: bool) -> Federation:
    """40 sensors that measure the same 12 things in units of their own; the target depends on the things, not on the units.

    Column j of sensor k is a_kj z_j + b_kj with log a_kj ~ N(0, 0.5) and b_kj ~ N(0, 1).
    """
    drawn = np.random.default_rng(seed)
    number, rows, dim = 40, 60, 12
    z = drawn.normal(size=(number, rows, dim))
    slope = drawn.normal(size=dim)
    signal = 2.0 * z @ slope / np.linalg.norm(slope)
    noise = drawn.logistic(size=signal.shape) if classes else drawn.normal(size=signal.shape)
    unit = np.exp(0.5 * drawn.normal(size=(number, 1, dim)))
    x = unit * z + drawn.normal(size=(number, 1, dim))
    y = (signal + noise > 0).astype(np.int32) if classes else (signal + noise).astype(np.float32)
    return from_arrays(
        x.reshape(-1, dim).astype(np.float32),
        y.ravel(),
        np.repeat(np.arange(number), rows),
        task="classification" if classes else "regression",
        seed=seed,
    )


WORLDS = (
    Known("digits in four rotations", "clustered", "clusters", named("digits:seed=SEED")),
    Known(
        "digits, four meanings of labels",
        "clustered",
        "clusters",
        named("digits:num_groups=1,seed=SEED|label_permutation_groups:seed=SEED"),
    ),
    Known("linear_clusters", "clustered", "clusters", named("linear_clusters:num_clients=40,seed=SEED")),
    Known("logistic_clusters", "clustered", "clusters", named("logistic_clusters:num_clients=40,seed=SEED")),
    Known("digits, unturned", "one global", "global", named("digits:num_groups=1,seed=SEED")),
    Known(
        "linear_offsets, radius 0",
        "one global",
        "global",
        named("linear_offsets:num_clients=40,radius=0,seed=SEED"),
    ),
    Known(
        "logistic_offsets, radius 0",
        "one global",
        "global",
        named("logistic_offsets:num_clients=40,radius=0,seed=SEED"),
    ),
    Known(
        "linear_offsets, radius 0.5", "all different", "personal", named("linear_offsets:num_clients=40,seed=SEED")
    ),
    Known(
        "logistic_offsets, radius 1",
        "all different",
        "personal",
        named("logistic_offsets:num_clients=40,dim=10,radius=1,rows=60,seed=SEED"),
    ),
    Known(
        "digits, Dirichlet labels",
        "all different",
        "personal",
        named("digits:num_groups=1,seed=SEED|dirichlet:num_clients=40,alpha=0.3,seed=SEED"),
    ),
    Known(
        "linear_offsets, far apart, many rows",
        "all different",
        "alone",
        named("linear_offsets:num_clients=40,radius=3,rows=400,seed=SEED"),
    ),
    Known("digits, own exposure each", "feature shift", "shift", exposures),
    Known(
        "digits, three cameras",
        "feature shift",
        "shift",
        named("digits:num_groups=1,seed=SEED|feature_shift:kinds=none+contrast+resolution,seed=SEED"),
    ),
    Known("sensors, own units each", "feature shift", "shift", lambda seed: sensors(seed, classes=False)),
    Known("sensors, classes", "feature shift", "shift", lambda seed: sensors(seed, classes=True)),
)


CLOSE = (
    Known(
        "linear_offsets, radius 0.15",
        "close",
        "personal",
        named("linear_offsets:num_clients=40,radius=0.15,seed=SEED"),
    ),
    Known(
        "logistic_offsets, radius 0.8, few rows",
        "close",
        "personal",
        named("logistic_offsets:num_clients=40,radius=0.8,rows=50,seed=SEED"),
    ),
    Known("linear_offsets, six clients", "close", "personal", named("linear_offsets:num_clients=6,seed=SEED")),
    Known(
        "digits, eight cameras", "close", "shift", named("digits:num_groups=1,seed=SEED|feature_shift:seed=SEED")
    ),
)
"""Worlds in which two families do nearly the same, or linear models do not see what is there; no bar."""


class Counted(NamedTuple):
    """How often the right family was named alone, beside a rival, or not at all; what was said instead; seconds."""

    right: int
    beside: int
    wrong: list[str]
    seconds: float


def answers(known: Known, seeds: int) -> Counted:
    """What is said of a world with each seed."""
    right = beside = 0
    wrong, began = [], time.perf_counter()
    for seed in range(FIRST, FIRST + seeds):
        found = advise(known.make(seed))
        if found.family == known.right and found.rival is None:
            right += 1
        elif known.right in found.wants:
            beside += 1
            wrong.append(f"{found.family} or {found.rival}")
        else:
            wrong.append(found.family + (f" or {found.rival}" if found.rival else ""))
    return Counted(right, beside, wrong, (time.perf_counter() - began) / seeds)


def clocked() -> tuple[float, float, FamilyAdvice]:
    """Seconds by the clock and of the processor for 1,000 clients of 100 rows and 50 columns, ten classes."""
    drawn = np.random.default_rng(0)
    number, rows, dim = CLOCK.values()
    x = drawn.normal(size=(number, rows, dim)).astype(np.float32)
    models = drawn.normal(size=(4, dim, 10))[np.arange(number) % 4]
    y = (np.matmul(x, models) + drawn.gumbel(size=(number, rows, 10))).argmax(2)
    made = from_arrays(x.reshape(-1, dim), y.ravel().astype(np.int32), np.repeat(np.arange(number), rows))
    began = time.perf_counter(), time.process_time()
    found = advise(made)
    return time.perf_counter() - began[0], time.process_time() - began[1], found


def lines_of(worlds: Sequence[Known], seeds: int, words: str) -> list[str]:
    """The table of answers."""
    lines = [
        f"| world | kind | right family | right of {seeds} | right, beside a rival | said instead | s each |",
        "|---|---|---|---|---|---|---|",
    ]
    for known in worlds:
        if words in known.name:
            found = answers(known, seeds)
            said = ", ".join(f"{one} ({found.wrong.count(one)})" for one in dict.fromkeys(found.wrong))
            lines.append(
                f"| {known.name} | {known.kind} | {known.right} | {found.right} | {found.beside} | {said} | {found.seconds:.1f} |"
            )
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Print, and write the table when everything was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--worlds", default="", help="only worlds whose names hold this")
    given = parser.parse_args()
    load_average = os.getloadavg()[0]
    lines, close = (lines_of(worlds, given.seeds, given.worlds) for worlds in (WORLDS, CLOSE))
    if given.worlds or given.seeds != SEEDS:
        return
    clock, processor, found = clocked()
    text = [
        "# FamilyAdvice",
        "",
        f"Made by `make bench-advice` with plures {plures.__version__}, jax {jax.__version__}, numpy {np.__version__}, scipy {scipy.__version__}, "
        f"Python {platform.python_version()}, {os.cpu_count()} CPU cores, load average {load_average:.2f} at the start.",
        "",
        "## The right family",
        "",
        f"Seeds {FIRST} to {FIRST + SEEDS - 1}; seeds below were looked at while the rule was made. Right: the family alone, without a rival. The bar is {BAR} of {SEEDS} in every world.",
        "",
        *lines,
        "",
        "## Close calls",
        "",
        "Worlds in which two families do nearly the same (the richer one is called right), and one in which linear models do not see what is there: digits "
        "inverted, turned or before a background do not become alike by centering and scaling. No bar.",
        "",
        *close,
        "",
        "## Time",
        "",
        f"{CLOCK['clients']:,} clients of {CLOCK['rows']} rows and {CLOCK['columns']} columns, ten classes, in four clusters: {clock:.0f} s by the clock, {processor:.0f} s of "
        f"the processor (one thread of BLAS, load average {os.getloadavg()[0]:.2f}); the bar is {BAR_SECONDS:.0f} s. {found.rows.num} clients, drawn at random, and their training and valid rows are looked "
        f"at. It says {found.family}, with {found.clusters.k if found.clusters else 0} clusters.",
        "",
    ]
    Path(__file__).with_suffix(".md").write_text("\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    main()
