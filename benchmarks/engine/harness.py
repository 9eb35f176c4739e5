"""The command line, the timing and the output that all benchmark scripts share."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

import numpy as np
from cases import CASES, Case, make_data

RunRounds = Callable[[int], None]
Build = Callable[[Case, np.ndarray, np.ndarray], RunRounds]


def parse_arguments() -> argparse.Namespace:
    """Read which case to run and how often."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=sorted(CASES), required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="threads per operation (PyTorch only)")
    return parser.parse_args()


def time_runs(run_rounds: RunRounds, rounds: int, repeats: int) -> list[float]:
    """Warm up, then return the wall-clock seconds of each run of `rounds` rounds."""
    run_rounds(max(1, rounds // 10))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run_rounds(rounds)
        seconds.append(time.perf_counter() - start)
    return seconds


def main(
    peer: str,
    packages: Sequence[str],
    build: Build,
    set_threads: Callable[[int], None] | None = None,
) -> None:
    """Time one case and print the result as one line of JSON.

    `build` sets everything up and returns a function that runs a number of
    rounds and comes back only when the work of all of them is done. A library
    whose thread count can be chosen passes `set_threads`.
    """
    arguments = parse_arguments()
    case = CASES[arguments.case]
    if set_threads:
        set_threads(arguments.threads)
    run_rounds = build(case, *make_data(case))
    versions = {name: version(name) for name in packages}
    result = {
        "peer": peer,
        "case": case.name,
        "versions": {"python": platform.python_version(), **versions},
        "seconds": time_runs(run_rounds, case.rounds, arguments.repeats),
        "threads": arguments.threads if set_threads else None,
        "examples": case.examples,
        "rounds": case.rounds,
    }
    print(json.dumps(result), flush=True)
