"""Step sizes that share a program: what it gains over compiling each of them, on this machine.

Run it from the repository root: PYTHONPATH=src python benchmarks/shared_programs.py --out benchmarks
What is in shared_programs.json for this device already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plures.data import Federation, load
from plures.engine import Family, Runner, Settings, prepare
from plures.method import Method
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.models.linear import softmax
from plures.models.mlp import mlp
from plures.types import Model, Plan

ROUNDS, CLIENTS = 60, 40
PLAN = Plan(epochs=1, batch=10, lr=0.1)
LRS = tuple(float(f"{lr:.3g}") for lr in np.geomspace(0.02, 0.5, 8))
SETTINGS = Settings(rounds=ROUNDS, eval_every=ROUNDS, executor="vectorized")
METHODS = {"fedavg": fedavg, "ditto": ditto}


def models(world: Federation) -> dict[str, Model]:
    shape, outputs = world.shape, world.num_outputs
    widths = {"perceptron 64": (64,), "perceptron 512x512": (512, 512)}
    return {
        "softmax": softmax(shape, outputs),
        **{name: mlp(shape, outputs, hidden=one) for name, one in widths.items()},
    }


def timed(runners: list[Runner]) -> float:
    began = time.perf_counter()
    jax.block_until_ready([runner.run().state.server for runner in runners])
    return time.perf_counter() - began


def row(case: str, make: Any, model: Model, world: Federation) -> dict[str, Any]:
    """Step sizes compiled one by one, and with one program; compiling counts, as it does in tuning."""

    def built(lr: Any) -> Method:
        method: Method = make(model, plan=replace(PLAN, lr=lr))
        return method

    family = Family(lambda numbers: built(numbers["lr"]), built(LRS[0]))
    alone = [prepare(built(lr), world, settings=SETTINGS) for lr in LRS]
    sharing = [
        prepare(built(lr), world, settings=SETTINGS, family=family, numbers={"lr": np.float32(lr)}) for lr in LRS
    ]
    return {"case": case, "compiled one by one": timed(alone), "one program": timed(sharing)}


def measure(rows: list[dict[str, Any]], keep: Callable[[], None]) -> None:
    """Add the rows that are not there yet, and keep each at once."""
    world = load("digits", num_clients=CLIENTS)
    done = {row["case"] for row in rows}
    for label, model in models(world).items():
        for name, make in METHODS.items():
            if f"{name}, {label}" not in done:
                rows.append(row(f"{name}, {label}", make, model, world))
                keep()
                print(rows[-1], flush=True)


def device() -> str:
    kind = jax.devices()[0].device_kind
    return f"{os.cpu_count()} CPU cores" if jax.default_backend() == "cpu" else kind


def report(found: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "# Step sizes that share a program",
        "",
        f"Digits, {CLIENTS} clients, {ROUNDS} rounds of one local epoch with batch 10, one evaluation at the end: {len(LRS)} step sizes, each",
        "compiled anew, and all with the program of one `Family`. Compiling counts, measured once. `make bench-programs`.",
    ]
    for name, rows in found.items():
        lines += [
            "",
            f"## {name}",
            "",
            "| case | s, compiled one by one | s, one program | ratio |",
            "|---|---|---|---|",
        ]
        for row in rows:
            alone, sharing = row["compiled one by one"], row["one program"]
            lines.append(f"| {row['case']} | {alone:.1f} | {sharing:.1f} | {alone / sharing:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("benchmarks"))
    parser.add_argument("--read", action="store_true", help="Only write the page.")
    out = parser.parse_args().out
    file = out / "shared_programs.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    if not parser.parse_args().read:
        measure(found.setdefault(device(), []), lambda: file.write_text(json.dumps(found, indent=1)) and None)
    (out / "shared_programs.md").write_text(report(found))


if __name__ == "__main__":
    main()
