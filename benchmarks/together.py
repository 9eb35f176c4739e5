"""Seeds and step sizes side by side: what it gains over one run after another, on this machine.

Run it from the repository root: PYTHONPATH=src python benchmarks/together.py --out benchmarks
What is in together.json for this device already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plures.data import Federation, load
from plures.engine import Family, Runner, Settings, prepare, run_together
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.models.linear import softmax
from plures.models.mlp import mlp
from plures.types import Method, Model, Plan

ROUNDS, CLIENTS, REPEATS = 60, 40, 3
SEEDS = (3, 8)
PLAN = Plan(epochs=1, batch=10, lr=0.1)
LRS = tuple(float(f"{lr:.3g}") for lr in np.geomspace(0.02, 0.5, 8))
METHODS = {"fedavg": fedavg, "ditto": ditto}


def models(world: Federation) -> dict[str, Model]:
    shape, outputs = world.shape, world.num_outputs
    widths = {"perceptron 64": (64,), "perceptron 512x512": (512, 512)}
    return {
        "softmax": softmax(shape, outputs),
        **{name: mlp(shape, outputs, hidden=one) for name, one in widths.items()},
    }


def settings(seed: int = 0) -> Settings:
    return Settings(rounds=ROUNDS, seed=seed, eval_every=ROUNDS, executor="vectorized")


def timed(work: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    jax.block_until_ready([one.state.server for one in found])
    return time.perf_counter() - began, found


def losses(runs: list[Any]) -> np.ndarray:
    return np.array([run.record.latest("personal", "valid").metrics["loss"] for run in runs], float)


def seeds_row(name: str, method: Method, world: Federation, number: int) -> dict[str, Any]:
    """Seeds one after another and side by side, the best of several after one that compiles."""

    def ready() -> list[Runner]:
        return [prepare(method, world, settings=settings(seed)) for seed in range(number)]

    apart = [timed(lambda: [one.run() for one in ready()]) for _ in range(1 + REPEATS)]
    beside = [timed(lambda: run_together(ready())) for _ in range(1 + REPEATS)]
    gap = float(np.abs(losses(apart[-1][1]) - losses(beside[-1][1])).max())
    return {
        "what": f"{number} seeds",
        "case": name,
        "one after another": min(seconds for seconds, _ in apart[1:]),
        "side by side": min(seconds for seconds, _ in beside[1:]),
        "with compiling, one after another": apart[0][0],
        "with compiling, side by side": beside[0][0],
        "gap": gap,
    }


def steps_row(name: str, make: Any, model: Model, world: Federation) -> dict[str, Any]:
    """Step sizes compiled one by one, with one program, and side by side; compiling counts, as it does in tuning."""

    def built(lr: Any) -> Method:
        method: Method = make(model, plan=replace(PLAN, lr=lr))
        return method

    def anew() -> list[Any]:
        return [prepare(built(lr), world, settings=settings()).run() for lr in LRS]

    def ready() -> list[Runner]:
        family = Family(lambda numbers: built(numbers["lr"]), built(LRS[0]))
        return [
            prepare(built(lr), world, settings=settings(), family=family, numbers={"lr": np.float32(lr)})
            for lr in LRS
        ]

    alone, one, beside = (
        timed(anew),
        timed(lambda: [runner.run() for runner in ready()]),
        timed(lambda: run_together(ready())),
    )
    expected = losses(alone[1])
    return {
        "what": f"{len(LRS)} step sizes",
        "case": name,
        "compiled one by one": alone[0],
        "one program": one[0],
        "side by side": beside[0],
        "gap": float(max(np.nanmax(np.abs(losses(found) - expected)) for found in (one[1], beside[1]))),
    }


STUDIES = {"compare, 60 rounds": 60, "compare, 400 rounds": 400, "tune, 8 trials of 40 rounds": 40}


def study_row(case: str) -> dict[str, Any]:
    """A whole study both ways, with compiling, the best of two each; these need polars."""
    from plures.study import compare, tune

    world, spent = load("digits"), dict[bool, list[float]]({False: [], True: []})
    compare(["fedavg"], world, rounds=2, seeds=(0,), plan=PLAN)
    for together in (False, True, False, True):
        began = time.perf_counter()
        if case.startswith("compare"):
            names = ["local_only", "fedavg", "ditto", "hypcluster:num_clusters=4"]
            compare(names, world, rounds=STUDIES[case], seeds=(0, 1, 2), plan=PLAN, together=together)
        else:
            tune(["fedavg", "ditto"], world, rounds=STUDIES[case], trials=8, plan=PLAN, together=together)
        spent[together].append(time.perf_counter() - began)
    return {
        "what": "study",
        "case": case,
        "one after another": min(spent[False]),
        "side by side": min(spent[True]),
    }


def measure(rows: list[dict[str, Any]], keep: Callable[[], None]) -> None:
    """Add the rows that are not there yet, and keep each at once."""
    world = load("digits", num_clients=CLIENTS)
    done = {(row["what"], row["case"]) for row in rows}
    for label, model in models(world).items():
        for name, make in METHODS.items():
            case = f"{name}, {label}"
            works = {f"{n} seeds": partial(seeds_row, case, make(model, plan=PLAN), world, n) for n in SEEDS}
            works[f"{len(LRS)} step sizes"] = partial(steps_row, case, make, model, world)
            for what, work in works.items():
                if (what, case) not in done:
                    rows.append(work())
                    keep()
                    print(rows[-1], flush=True)
    for case in STUDIES:
        if ("study", case) not in done:
            rows.append(study_row(case))
            keep()
            print(rows[-1], flush=True)


def device() -> str:
    kind = jax.devices()[0].device_kind
    return f"{os.cpu_count()} CPU cores" if jax.default_backend() == "cpu" else kind


def report(found: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "# Seeds and step sizes side by side",
        "",
        f"Digits, {CLIENTS} clients, {ROUNDS} rounds of one local epoch with batch 10, one evaluation at the end. Ratios say how many times as",
        "fast it is than one after another (seeds, after compiling, best of "
        f"{REPEATS}) or than compiling every step size anew (with compiling, once).",
        "`gap` is the largest difference of any client's valid loss. `make bench-together`.",
    ]
    for name, rows in found.items():
        seeds = [row for row in rows if "seeds" in row["what"]]
        steps = [row for row in rows if "step" in row["what"]]
        lines += [
            "",
            f"## {name}",
            "",
            "| case | seeds | s, one after another | s, side by side | ratio | gap |",
            "|---|---|---|---|---|---|",
        ]
        for row in seeds:
            ratio = row["one after another"] / row["side by side"]
            lines.append(
                f"| {row['case']} | {row['what'].split()[0]} | {row['one after another']:.2f} | {row['side by side']:.2f} | "
                f"{ratio:.2f} | {row['gap']:.1e} |"
            )
        lines += [
            "",
            f"| case | s, {len(LRS)} step sizes compiled one by one | s, one program | ratio | s, side by side | ratio | gap |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in steps:
            base = row["compiled one by one"]
            lines.append(
                f"| {row['case']} | {base:.1f} | {row['one program']:.1f} | {base / row['one program']:.1f} | "
                f"{row['side by side']:.1f} | {base / row['side by side']:.1f} | {row['gap']:.1e} |"
            )
        studies = [row for row in rows if row["what"] == "study"]
        if studies:
            lines += [
                "",
                "Whole studies with compiling, best of two: four methods with three seeds, and tuning of two methods.",
                "",
                "| study | s, one after another | s, side by side | ratio |",
                "|---|---|---|---|",
            ]
        for row in studies:
            apart, beside = row["one after another"], row["side by side"]
            lines.append(f"| {row['case']} | {apart:.1f} | {beside:.1f} | {apart / beside:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("benchmarks"))
    parser.add_argument("--read", action="store_true", help="Only write the page.")
    out = parser.parse_args().out
    file = out / "together.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    if not parser.parse_args().read:
        measure(found.setdefault(device(), []), lambda: file.write_text(json.dumps(found, indent=1)) and None)
    (out / "together.md").write_text(report(found))


if __name__ == "__main__":
    main()
