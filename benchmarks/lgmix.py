"""LG-Mix: a round against one of FedAvg, and the streamed trace against a loop of outer products.

Run by ``make bench-lgmix``; names of parts (rounds, trace) print only those.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import plures
from plures.builders import build_method, build_model
from plures.data import Federation, from_arrays, load
from plures.engine import Settings, prepare
from plures.methods.lgmix.traces import FeatureMoments, trace_of
from plures.types import Plan

PARTS = ("rounds", "trace")
BAR = 1.4
TURNS, ROUNDS = 5, 3
METHODS = {
    "fedavg": "FedAvg",
    "lgmix": "LG-Mix",
    "lgmix:mode=eval": "LG-Mix, evaluation mode",
    "lgmix:published=true": "LG-Mix, published",
    "lgmix:lam=0.5": "LG-Mix, lam 0.5",
    "lgmix:lam=valid": "LG-Mix, lam by valid rows",
    "lgmix:lam=hutchinson": "LG-Mix, hutchinson",
    "lgmix:lam=ntk": "LG-Mix, ntk",
}


SLOW = ("lgmix:lam=ntk", "lgmix:lam=hutchinson")  # once is enough


def pictures(clients: int, rows: int) -> Federation:
    """Noise of 28x28x3 pixels: what a round costs does not depend on what is in them."""
    key_x, key_y = jax.random.split(jax.random.key(0))
    total = clients * rows
    x = np.asarray(jax.random.uniform(key_x, (total, 28, 28, 3)))
    y = np.asarray(jax.random.randint(key_y, (total,), 0, 10), np.int32)
    return from_arrays(x, y, np.repeat(np.arange(clients), rows), num_classes=10)


def worlds() -> list[tuple[str, Federation, str, int, tuple[str, ...]]]:
    """What is timed: a name, the data, the model, the size of a batch, the executors."""
    digits = load("digits:num_clients=18,num_groups=1,spread=0")
    return [
        (
            "digits_cnn_small, 28x28x3, 3 clients of 180 training rows",
            pictures(3, 300),
            "digits_cnn_small",
            32,
            ("chunked:1",),
        ),
        ("mlp_norm, digits, 18 clients of 60 training rows", digits, "mlp_norm", 10, ("chunked:1", "vectorized")),
    ]


def rounds() -> list[str]:
    """Seconds of a round, best of several, methods in turn; the first run of each, which compiles, does not count."""
    lines = [
        "## A round against one of FedAvg",
        "",
        f"A round of everybody in seconds of the processor, best of {TURNS} turns of {ROUNDS} rounds in one compiled call. Methods take turns, and time of the processor is "
        f"counted, so that other work on the machine counts little. The bar is {BAR:g} times FedAvg for LG-Mix as it is by default, in every executor. `chunked:1` is one client after another.",
        "",
        "| model and data | executor | " + " | ".join(METHODS.values()) + " |",
        "|---|---|" + "---|" * len(METHODS),
    ]
    for name, federation, model, batch, executors in worlds():
        for executor in executors:
            best = timed(federation, model, batch, executor)
            cells = [
                f"{1000 * best[text]:.1f} ms ({best[text] / best['fedavg']:.2f}x)" if text in best else ""
                for text in METHODS
            ]
            lines.append(f"| {name} | `{executor}` | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return [*lines, ""]


def timed(federation: Federation, model_name: str, batch: int, executor: str) -> dict[str, float]:
    """Method -> the least seconds of a round, evaluation not counted."""
    model = build_model(model_name, federation)
    ready = {}
    # Decompositions of many clients side by side now and then block one another for ever, with jax 0.10.2 on a CPU.
    texts = [text for text in METHODS if executor != "vectorized" or "published" not in text]
    for text in texts:
        method = build_method(text, model, plan=Plan(batch=batch, lr=0.05))
        runner = prepare(method, federation, settings=Settings(rounds=ROUNDS, executor=executor))
        ready[text] = (runner, runner._begin())
    best = dict.fromkeys(texts, float("inf"))
    for turn in range(TURNS + 1):
        for text, begun in ready.items():
            if turn > 1 and text in SLOW:
                continue
            seconds = one_turn(*begun)
            best[text] = min(best[text], seconds / ROUNDS) if turn else best[text]
    return best


def one_turn(runner: object, begun: tuple) -> float:
    """Seconds of the processor for the rounds of a run from its beginning, all in one call."""
    from plures import tree
    from plures.engine.rounds import play

    state, _, phase, _ = begun
    places = tree.at(runner.places, slice(0, runner.num_seen))
    setup = runner.setup(phase)
    copy = jax.tree.map(jnp.copy, state)
    jax.block_until_ready(copy)
    began = time.process_time()
    jax.block_until_ready(play(setup, runner.arrays, places, runner.key, copy, ROUNDS))
    return time.process_time() - began


def trace() -> list[str]:
    """The trace of 512 features, streamed by batches, against a loop of outer products and a decomposition."""
    rows, width, batch = 600, 512, 20
    features = np.maximum(np.asarray(jax.random.normal(jax.random.key(1), (rows, width))), 0)
    blocks = jnp.asarray(features.reshape(-1, batch, width))
    ours, streamed_seconds = best_of(jax.jit(streamed), blocks)
    parity, cross_seconds = best_of(jax.jit(with_eigenvalues), blocks)
    theirs, loop_seconds = best_of(looped, features)
    said = [
        ("streamed sums (default)", ours, streamed_seconds),
        ("streamed products, least eigenvalue by squaring (parity)", parity, cross_seconds),
        ("loop of outer products and SVD, as published", theirs, loop_seconds),
    ]
    lines = [
        "## The trace",
        "",
        f"{rows} rows of {width} features after a ReLU, best of {TURNS}. The last two leave the smallest eigenvalue out.",
        "",
        "| way | trace | ms | ms per row | times the first |",
        "|---|---|---|---|---|",
    ]
    for name, value, seconds in said:
        each = f"{1000 * seconds:.2f} | {1000 * seconds / rows:.4f} | {seconds / streamed_seconds:.0f}"
        lines.append(f"| {name} | {value:.4f} | {each} |")
    return [*lines, ""]


def streamed(blocks: jax.Array) -> jax.Array:
    """tr Cov by sums that grow by a batch."""
    return trace_of(_grown(blocks, cross=False), centered=True, normalized=False)


def with_eigenvalues(blocks: jax.Array) -> jax.Array:
    """The same without the smallest eigenvalue."""
    return trace_of(_grown(blocks, cross=True), centered=True, normalized=False, drop_smallest=True)


def _grown(blocks: jax.Array, *, cross: bool) -> FeatureMoments:
    counts = jnp.ones(blocks.shape[1], bool)
    step = lambda moments, block: (moments.with_rows(block, counts), None)  # noqa: E731
    return jax.lax.scan(step, FeatureMoments.none(blocks.shape[-1], cross=cross), blocks)[0]


def looped(features: np.ndarray) -> float:
    """A covariance by one outer product per row, then its singular values."""
    around = features - features.mean(0)
    total = np.zeros((features.shape[1],) * 2, features.dtype)
    for row in around:
        total += np.outer(row, row)
    return float(np.linalg.svd(total / len(features), compute_uv=False)[:-1].sum())


def best_of(function: object, given: object) -> tuple[float, float]:
    """What a function finds, and its least seconds; the first call does not count."""
    found, best = float(function(given)), float("inf")
    for _ in range(TURNS):
        began = time.perf_counter()
        float(function(given))
        best = min(best, time.perf_counter() - began)
    return found, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all, with a table written, without")
    given = parser.parse_args().parts
    lines = [
        "# LG-Mix",
        "",
        f"Made by `make bench-lgmix` with plures {plures.__version__}, jax {jax.__version__}, numpy {np.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} CPU cores, one thread of BLAS, load average {os.getloadavg()[0]:.2f} at the start, seed 0.",
        "",
    ]
    for name in given or PARTS:
        lines += {"rounds": rounds, "trace": trace}[name]()
    text = "\n".join(lines)
    print(text)
    if not given:
        Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
