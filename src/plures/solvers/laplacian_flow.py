"""Flows on a graph with given outflows: the electrical one, found by solving with the Laplacian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from scipy.sparse import csc_array, csr_array, diags_array
from scipy.sparse.linalg import cg, splu

from plures.solvers.graph import Graph, Ints, lengths, sums_by
from plures.types import Floats

Solve = Callable[[Floats], Floats]

DENSE, DIRECT = 150, 3_000
"""Up to so many clients the Laplacian is inverted, or factored; beyond them conjugate gradients are tried first."""

TRIAL = 100
"""Conjugate-gradient steps that must do for a large graph. Where they do not, it conducts badly, and factors well."""


def corrected(graph: Graph, u: Floats, ask: Floats) -> Floats:
    """``u`` plus the electrical flow that makes its outflow ``ask``.

    Within each connected part ``ask`` should sum to zero; where it does not, its mean is taken off.
    """
    if not len(graph):
        return u
    potential = solver_of(graph)(ask - graph.outflow(u))
    return u + graph.weight[:, None] * graph.gaps(potential)


def strain(graph: Graph, u: Floats) -> float:
    """The largest |u_e| / w_e: the least alpha at which the flow is allowed."""
    return float((lengths(u) / graph.weight).max()) if len(graph) else 0.0


_SOLVERS: WeakKeyDictionary[Graph, Solve] = WeakKeyDictionary()


def solver_of(graph: Graph) -> Solve:
    """Potentials for outflows, (clients, dim) to (clients, dim); made once for a graph."""
    if graph not in _SOLVERS:
        _SOLVERS[graph] = _made(graph)
    return _SOLVERS[graph]


def _made(graph: Graph) -> Solve:
    if not len(graph):
        return np.zeros_like
    if graph.is_uniform:
        scale = 1.0 / (graph.num * graph.weight[0])
        return lambda ask: scale * (ask - ask.mean(0))
    number, part = graph.parts()
    size = np.bincount(part, minlength=number)[:, None]

    def centered(ask: Floats) -> Floats:
        return ask - (sums_by(part, ask, number) / size)[part]

    if graph.num <= DENSE:
        # One over its size between any two of a part makes the Laplacian invertible, and changes nothing for what is centered.
        inverse = np.linalg.inv(_full(graph.laplacian) + (part[:, None] == part) / size[part])
        return lambda ask: inverse @ centered(ask)
    if graph.num > DIRECT and _conducts(graph, centered):
        return _iterated(graph, centered)
    return _factored(graph, part, centered)


def _full(matrix: Any) -> Floats:
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def _factored(graph: Graph, part: Ints, centered: Solve) -> Solve:
    """One client of every part is held at zero, so that the rest is positive definite."""
    held = np.unique(part, return_index=True)[1]
    free = np.setdiff1d(np.arange(graph.num), held)
    factor = splu(
        csc_array(graph.laplacian)[free][:, free].tocsc(),
        permc_spec="MMD_AT_PLUS_A",
        options={"SymmetricMode": True},
    )

    def solve(ask: Floats) -> Floats:
        found = np.zeros_like(ask)
        found[free] = factor.solve(np.ascontiguousarray(centered(ask)[free]))
        return found

    return solve


def _conducts(graph: Graph, centered: Solve) -> bool:
    """Whether a few conjugate-gradient steps solve for some outflow."""
    ask = centered(np.cos(np.arange(graph.num, dtype=float))[:, None])
    return bool(_by_gradients(graph)(ask[:, 0], TRIAL)[1] == 0)


def _by_gradients(graph: Graph) -> Callable[[Floats, int], tuple[Floats, int]]:
    laplacian = csr_array(graph.laplacian)
    scale = diags_array(1.0 / np.maximum(graph.degree, 1e-300))
    return lambda column, most: cg(laplacian, column, rtol=1e-10, atol=0.0, maxiter=most, M=scale)


def _iterated(graph: Graph, centered: Solve) -> Solve:
    run = _by_gradients(graph)
    return lambda ask: np.stack([run(column, 20 * TRIAL)[0] for column in centered(ask).T], axis=1)
