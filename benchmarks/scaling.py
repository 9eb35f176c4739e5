"""How time and memory grow with the number of clients when the cohort is fixed.

A round should cost the same with 100 clients as with 100,000. Memory is what the data and the private rows need:
FedAvg has none, Ditto keeps a model per client.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

from plures.data import from_arrays
from plures.engine import Settings, prepare
from plures.engine.rounds import play
from plures.engine.state import first_state
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.models.linear import softmax
from plures.types import Plan

DIM, CLASSES, ROWS, COHORT, ROUNDS, REPEATS = 20, 10, 20, 20, 100, 7
NUMBERS = (100, 1_000, 10_000, 100_000)
METHODS = {"fedavg": fedavg, "ditto": ditto}


def measure(name: str, num_clients: int) -> dict[str, float]:
    """Best milliseconds per round and megabytes, in a process of its own."""
    owner = np.repeat(np.arange(num_clients), ROWS)
    x = np.asarray(jax.random.normal(jax.random.key(0), (len(owner), DIM)))
    federation = from_arrays(x, owner % CLASSES, owner, shares=(1.0, 0.0, 0.0), num_classes=CLASSES)
    method = METHODS[name](softmax((DIM,), CLASSES), plan=Plan(batch=10))
    runner = prepare(method, federation, settings=Settings(rounds=ROUNDS, cohort=COHORT))
    setup = runner.setup(runner.phases[-1])
    state = first_state(method, runner.key, num_clients)
    before = _resident()
    seconds = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        state, _ = jax.block_until_ready(play(setup, runner.arrays, runner.places, runner.key, state, ROUNDS))
        seconds.append(time.perf_counter() - start)
    private = sum(leaf.nbytes for leaf in jax.tree.leaves(state.private))
    return {
        "ms": 1e3 * min(seconds[1:]) / ROUNDS,
        "data_mb": (x.nbytes + federation.y.nbytes) / 1e6,
        "private_mb": private / 1e6,
        "growth_mb": _resident() - before,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=2, help="a method and a number of clients; prints JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]))))
        return
    lines = [
        "# Time and memory against the number of clients",
        "",
        f"Softmax regression {DIM} -> {CLASSES}, {ROWS} rows per client, {COHORT} clients per round, batch 10, one epoch; "
        f"best of {REPEATS} runs of {ROUNDS} rounds, {os.cpu_count()} CPU cores, jax {jax.__version__}, each row in its own "
        "process.",
        "Growth is resident memory gained from the first round on, the compiler's own memory included (most of it). Ditto's "
        "table of private models is copied once per compiled run, not per round. Made by `make bench-scaling`.",
        "",
        "| method | clients | ms per round | data MB | private MB | growth MB | peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in METHODS:
        for number in NUMBERS:
            command = [sys.executable, __file__, "--one", name, str(number)]
            got = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            cells = [f"{got[k]:.2f}" if k == "ms" else f"{got[k]:.0f}" for k in got]
            lines.append(f"| {name} | {number:,} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
