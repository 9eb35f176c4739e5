"""The engine on one accelerator: examples per second, beside pooled training of the same network.

Run it where JAX sees the accelerator, from the repository root:
PYTHONPATH=src:benchmarks/engine python benchmarks/engine/gpu.py --out benchmarks
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from cases import CASES, LEARNING_RATE, Case, make_data
from jax import lax
from ours import MODELS, make_runner

from plures.engine.rounds import play
from plures.engine.state import first_state
from plures.models import cnn
from plures.types import Model, Weights

REPEATS = 7


def best_of(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The shortest of several timings, after one that compiles."""
    jax.block_until_ready(work())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(work())
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def federated(case: Case, executor: str) -> float:
    """Examples per second of FedAvg rounds."""
    runner = make_runner(case, *make_data(case), executor)
    setup = runner.setup(runner.phases[-1])
    held = [first_state(runner.method, runner.key, case.clients)]

    def work() -> Any:
        held[0], info = play(setup, runner.arrays, runner.places, runner.key, held[0], case.rounds)
        return held[0], info

    return case.examples / best_of(work)


def pooled(case: Case, model: Model, steps: int) -> float:
    """Examples per second of plain SGD with one set of weights and the batches of all clients together."""
    total = case.cohort * case.batch
    x, y = (jnp.asarray(v).reshape(-1, total, *v.shape[2:]) for v in make_data(case))

    def loss(params: Any, key: Any, index: Any) -> Any:
        batch = x[index % len(x)]
        outputs, _ = model.forward(key, Weights(params), batch, jnp.ones(total, bool))
        return model.loss(outputs, y[index % len(x)]).mean()

    def step(params: Any, index: Any) -> tuple[Any, None]:
        grads = jax.grad(loss)(params, jax.random.fold_in(jax.random.key(0), index), index)
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), None

    run = jax.jit(lambda params: lax.scan(step, params, jnp.arange(steps))[0])
    params = model.init(jax.random.key(0)).params
    return steps * total / best_of(lambda: run(params))


def with_library_convolution(case: Case) -> Model:
    """The same network with the library's convolution instead of patches."""
    ours = cnn.conv2d
    cnn.conv2d = _library_conv
    try:
        model = MODELS[case.model](case)
        # The layers are looked up when the model is traced, so trace with the library's in place.
        forward = model.forward

        def traced(key: Any, weights: Any, x: Any, mask: Any) -> Any:
            cnn.conv2d = _library_conv
            try:
                return forward(key, weights, x, mask)
            finally:
                cnn.conv2d = ours

        return replace(model, forward=traced)
    finally:
        cnn.conv2d = ours


def _library_conv(x: Any, kernel: Any, bias: Any = None) -> Any:
    out = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return out if bias is None else out + bias


def table(about: dict[str, Any]) -> str:
    """The results in Markdown, each federated rate beside the faster pooled training of its case."""
    rows = [tuple(row) for row in about["rows"]]
    lines = [
        "# The engine on one accelerator",
        "",
        f"{about['device']}, jax {about['jax']}, float32 (TF32 products), best of {about['repeats']} after compilation, one "
        "run. FedAvg, one local epoch, batch 20, 200 examples per client; pooled is plain SGD with one set of weights, the "
        "same network and the batches of all clients together.",
        "Bars: b at least 10,000,000 examples/s; c at least 400,000 at 20 clients and at least 70 % of pooled training.",
        "",
        "| case | who | examples/s | of the faster pooled |",
        "|---|---|---|---|",
    ]
    for case, who, rate in rows:
        rivals = [other for name, said, other in rows if name == case and said.startswith("pooled")]
        share = f"{rate / max(rivals):.1%}" if who == "plures" and rivals else ""
        lines.append(f"| {case} | {who} | {rate:,.0f} | {share} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("benchmarks"))
    arguments = parser.parse_args()
    rows: list[tuple[str, str, float]] = []

    def add(case: str, who: str, rate: float) -> None:
        rows.append((case, who, rate))
        print(f"{case:24} {who:40} {rate:14,.0f} examples/s", flush=True)

    mlp_case = replace(CASES["b"], rounds=50)
    add("b: MLP, 100 clients", "plures", federated(mlp_case, "auto"))
    for clients in (20, 200):
        case = replace(CASES["c"], clients=clients, cohort=clients, rounds=20 if clients == 20 else 4)
        name, steps = f"c: CNN, {clients} clients", 200 if clients == 20 else 40
        mine = federated(case, "auto")
        add(name, "plures", mine)
        add(name, f"pooled, batch {clients * 20}, patches", pooled(case, MODELS["cnn"](case), steps))
        add(
            name,
            f"pooled, batch {clients * 20}, library convolution",
            pooled(case, with_library_convolution(case), steps),
        )
        fastest = max(rate for case_, who, rate in rows if case_ == name and who.startswith("pooled"))
        print(f"{name}: {mine / fastest:.1%} of the faster pooled training", flush=True)
    device = jax.devices()[0].device_kind
    about = {"device": device, "jax": jax.__version__, "repeats": REPEATS, "rows": rows}
    (arguments.out / "engine-gpu.json").write_text(json.dumps(about, indent=2) + "\n")
    (arguments.out / "engine-gpu.md").write_text(table(about))


if __name__ == "__main__":
    main()
