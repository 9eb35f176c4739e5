"""Convex clustering: one strength against CVXPY with Clarabel, paths of 100 strengths, and 100,002 clients at once.

    make bench-convex                 everything, and benchmarks/convex.md
    .venv/bin/python benchmarks/convex.py few paths          some parts, printed only

Numbers of 60 clients are the best of several runs in one process; every path and every large run has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score

import plures
from plures.data.worlds.known_optima import ellipses, on_ellipses
from plures.solvers import (
    Clients,
    Graph,
    Problem,
    as_clients,
    complete,
    consensus,
    follow,
    grid,
    nearest,
    objective,
    points_as_clients,
    solve,
)

PARTS = ("few", "paths", "large")
DRAWS, ALPHAS = (0, 1, 2, 3), (0.08, 0.02)
LAMBDAS, LEAST, NEIGHBORS = 100, 1e-3, 10
LIMIT = 240.0  # seconds that a path may take
LARGE, LARGE_ALPHA, LARGE_DRAWS = 100_002, 0.1, (0, 1, 2)


def hinges(num_clients: int, *, balanced: bool = True, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tables (N, 10, 2) and classes (N, 10) of the ellipses."""
    federation = ellipses(num_clients=num_clients, balanced=balanced, test_rows=2, seed=seed).federation
    rows = federation.start[:, 0][:, None] + np.arange(10)
    return federation.x[rows].astype(float), federation.y[rows].astype(float)


def clients_of(x: np.ndarray, y: np.ndarray) -> Clients:
    return as_clients(x, y, loss="squared_hinge", ridge=1e-3, intercept_ridge=1e-3)


def best_of(number: int, function: Callable[[], Any]) -> tuple[float, Any]:
    """The least seconds of so many calls, and the last result."""
    seconds, found = [], None
    for _ in range(number):
        start = time.perf_counter()
        found = function()
        seconds.append(time.perf_counter() - start)
    return min(seconds), found


def by_cvxpy(clients: Clients, graph: Graph, alpha: float) -> tuple[float, float, np.ndarray]:
    """Seconds of ``problem.solve()`` on a new problem, Clarabel's own, and the models."""
    import cvxpy as cp
    from scipy import sparse

    number, dim = clients.num, clients.dim
    x = cp.Variable((number, dim))
    rows = sparse.block_diag([clients.a[i] for i in range(number)], format="csr")
    sign = (2 * clients.y - 1).reshape(-1)
    short = cp.pos(1 - cp.multiply(sign, rows @ cp.reshape(x, (number * dim,), order="C")))
    loss = cp.sum(cp.multiply(clients.share.reshape(-1), cp.square(short)))
    ridge = 0.5 * cp.sum(cp.multiply(np.tile(clients.ridge, (number, 1)), cp.square(x)))
    edges = np.arange(len(graph))
    values = np.concatenate([np.ones(len(graph)), -np.ones(len(graph))])
    places = np.concatenate([edges, edges]), np.concatenate([graph.head, graph.tail])
    gaps = sparse.csr_array((values, places), shape=(len(graph), number)) @ x
    problem = cp.Problem(cp.Minimize(loss + ridge + alpha * cp.sum(cp.norm(gaps, 2, axis=1))))
    start = time.perf_counter()
    problem.solve(solver=cp.CLARABEL)
    return time.perf_counter() - start, float(problem.solver_stats.solve_time), np.asarray(x.value)


def few() -> list[str]:
    """Sixty clients, one alpha, from nothing to the proof."""
    lines = [
        "## 60 clients, one alpha, complete graph (1,770 norms)",
        "",
        "Squared hinge, 10 points each, 3 numbers per model. Ours: from arrays of rows to the certificate, best of 5. CVXPY: "
        "`problem.solve()` with Clarabel on a problem that was just built, best of 3, and the seconds that Clarabel itself reports.",
        "",
        "| draw | alpha | clusters | ours ms | proved | CVXPY ms | Clarabel ms | times faster | CVXPY's value above ours (relative) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for seed in DRAWS:
        x, y = hinges(60, seed=seed)
        graph = complete(60)
        for alpha in ALPHAS:
            seconds, found = best_of(5, lambda x=x, y=y, a=alpha: solve(Problem(clients_of(x, y), complete(60), a)))
            clients = found.partition.clients
            runs = [by_cvxpy(clients, graph, alpha) for _ in range(3)]
            whole, inner = min(run[0] for run in runs), min(run[1] for run in runs)
            more = objective(clients, graph, alpha, runs[0][2]) / found.value - 1
            lines.append(
                f"| {seed} | {alpha:g} | {found.num_clusters} | {1e3 * seconds:.1f} | {_said(found.certificate.exact)} | "
                f"{1e3 * whole:.0f} | {1e3 * inner:.0f} | {whole / seconds:.0f} | {more:.1e} |"
            )
    x, y = hinges(60, seed=2)
    ours, found = best_of(5, lambda: solve(Problem(clients_of(x, y), complete(60), 0.08)))
    theirs, _ = best_of(2, lambda: term_by_term(found.partition.clients, 0.08))
    said = (
        f"The problem as CVXPY sees it above is one expression of sparse matrices. Written term by term, a norm for every pair, "
        f"`problem.solve()` takes {theirs:.2f} s (draw 2, alpha 0.08, best of 2): {theirs / ours:.0f} times ours."
    )
    return [*lines, "", said, ""]


def term_by_term(clients: Clients, alpha: float) -> None:
    """The same problem by CVXPY, as one would write it down first."""
    import cvxpy as cp

    number = clients.num
    x = cp.Variable((number, clients.dim))
    signs = 2 * clients.y - 1
    shorts = [cp.pos(1 - cp.multiply(signs[i], clients.a[i] @ x[i])) for i in range(number)]
    loss = cp.sum([clients.share[i] @ cp.square(short) for i, short in enumerate(shorts)])
    norms = cp.sum([cp.norm(x[i] - x[j]) for i in range(number) for j in range(i)])
    problem = cp.Problem(cp.Minimize(loss + 0.5 * cp.sum(cp.square(x) @ clients.ridge) + alpha * norms))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        problem.solve(solver=cp.CLARABEL)


def paths() -> list[str]:
    """A hundred alphas, each with its proof."""
    lines = [
        f"## Paths of {LAMBDAS} alphas",
        "",
        f"From alpha_hat to {LEAST:g} of it, evenly on the logarithmic scale, on the graph of {NEIGHBORS} nearest neighbors (two moons: of "
        "points; ellipses: of gradients at the global model). `graph` is everything before the path: arrays, neighbors, global model, alpha_hat.",
        "",
        "| problem | clients | edges | graph s | path s | proved | clusters at the end | gap, largest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, number, repeats in (
        ("two moons, quadratic", 1_000, 3),
        ("ellipses, squared hinge", 1_002, 2),
        ("two moons, quadratic", 20_000, 1),
    ):
        runs = [one for _ in range(repeats) if (one := _apart("one-path", name, str(number), limit=LIMIT))]
        if not runs:
            lines.append(f"| {name} | {number:,} | | | not finished in {LIMIT:g} s | | | |")
        else:
            best = min(runs, key=lambda run: run["path"])
            lines.append(
                f"| {name} | {number:,} | {best['edges']:,} | {best['graph']:.2f} | {best['path']:.2f} | {best['proved']} of {LAMBDAS} | "
                f"{best['clusters']:,} | {best['gap']:.1e} |"
            )
        print(lines[-1], flush=True)
    return [*lines, ""]


def _apart(*words: str, limit: float | None = None) -> dict[str, Any] | None:
    """What a process of its own tells as JSON; None where it takes longer than the limit."""
    try:
        done = subprocess.run(
            [sys.executable, __file__, *words], capture_output=True, text=True, check=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout.splitlines()[-1])


def one_path(name: str, number: int) -> None:
    """One path, told as JSON."""
    if name.startswith("two moons"):
        points, _ = make_moons(number, noise=0.05, random_state=0)
        start = time.perf_counter()
        clients = points_as_clients(points)
        graph = nearest(points, NEIGHBORS)
    else:
        x, y = hinges(number)
        start = time.perf_counter()
        clients = clients_of(x, y)
        graph = nearest(consensus(clients).gradients, NEIGHBORS)
    whole = consensus(clients, graph, tol=1e-3)
    before = time.perf_counter()
    found = follow(clients, graph, grid(whole.alpha_hat, LAMBDAS, LEAST), whole)
    done = time.perf_counter()
    facts = {
        "edges": len(graph),
        "graph": before - start,
        "path": done - before,
        "proved": sum(one.certificate.exact for one in found),
        "clusters": found[-1].num_clusters,
        "gap": max(one.certificate.gap / abs(one.value) for one in found),
    }
    print(json.dumps(facts))


def large() -> list[str]:
    """Certified solutions of very many clients, each in a process of its own."""
    lines = [
        f"## {LARGE:,} clients, one alpha",
        "",
        f"Ellipses, classes drawn freely, 10 points each, clients in random order; {NEIGHBORS} nearest neighbors of gradients at the global model, "
        f"alpha {LARGE_ALPHA:g}. Timed from raw arrays to the certificate, once per draw.",
        "",
        "| draw | edges | arrays s | global model and graph s | solution and proof s | in all s | clusters | proved | agreement with planted groups | memory MB (before) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for seed in LARGE_DRAWS:
        one = _apart("one-large", str(seed))
        assert one is not None
        lines.append(
            f"| {seed} | {one['edges']:,} | {one['arrays']:.2f} | {one['graph']:.2f} | {one['solve']:.2f} | {one['seconds']:.2f} | "
            f"{one['clusters']} | {_said(one['exact'])} | {one['agree']:.5f} | {one['memory']:.0f} ({one['before']:.0f}) |"
        )
        print(lines[-1], flush=True)
    return [*lines, ""]


def free_hinges(number: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tables, classes and groups of clients in random order; every point's class is drawn by itself."""
    keys = jax.random.split(jax.random.key(seed), 3)
    group = np.asarray(jax.random.permutation(keys[0], np.arange(number) % 3))
    angle = 2 * np.pi * np.arange(3) / 3
    truth = np.stack([np.cos(angle), np.sin(angle)], axis=1)[group]
    y = np.asarray(jax.random.bernoulli(keys[1], shape=(number, 10)))
    return on_ellipses(keys[2], truth, y), y.astype(float), group


def one_large(seed: int = 0, number: int = LARGE) -> None:
    """One run, told as JSON."""
    x, y, group = free_hinges(number, seed)
    before, start = _memory(), time.perf_counter()
    clients = clients_of(x, y)
    arrays = time.perf_counter()
    whole = consensus(clients)
    graph = nearest(whole.gradients, NEIGHBORS)
    ready = time.perf_counter()
    found = solve(Problem(clients, graph, LARGE_ALPHA), start=np.broadcast_to(whole.model, (number, clients.dim)))
    done = time.perf_counter()
    facts = {
        "edges": len(graph),
        "arrays": arrays - start,
        "graph": ready - arrays,
        "solve": done - ready,
        "seconds": done - start,
        "clusters": found.num_clusters,
        "exact": found.certificate.exact,
        "agree": adjusted_rand_score(group, found.label),
        "memory": _memory(),
        "before": before,
    }
    print(json.dumps(facts))


def _memory() -> float:
    """The most that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _said(truth: bool) -> str:
    return "yes" if truth else "no"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all, with a table written, without")
    given = parser.parse_args().parts
    if given[:1] == ["one-large"]:
        one_large(*(int(number) for number in given[1:]))
        return
    if given[:1] == ["one-path"]:
        one_path(given[1], int(given[2]))
        return
    import clarabel
    import cvxpy

    lines = [
        "# Convex clustering",
        "",
        f"Made by `make bench-convex` with plures {plures.__version__}, numpy {np.__version__}, cvxpy {cvxpy.__version__}, clarabel "
        f"{clarabel.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPU cores, load average {os.getloadavg()[0]:.2f} at the start.",
        "",
    ]
    for name in given or PARTS:
        lines += {"few": few, "paths": paths, "large": large}[name]()
    text = "\n".join(lines)
    print(text)
    if not given:
        Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
